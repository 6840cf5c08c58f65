// Package preflight tries an origin as a tunnel would and tells what would go wrong. It only
// reads: GET requests without credentials, redirects followed one step within the origin.
package preflight

import (
	"context"
	"fmt"
	"sort"
	"time"
	"unicode/utf8"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// requestTime bounds one request, totalTime a whole check.
	requestTime = 4 * time.Second
	totalTime   = 20 * time.Second
	// maxBody is what is read of a body, in bytes; maxEvidence what is told of it, in characters.
	maxBody     = 64 << 10
	maxEvidence = 300
)

// Severities of findings.
const (
	failure = "error"
	warning = "warning"
	note    = "info"
)

// Checker tries origins through a dialler and its target guard.
type Checker struct {
	dialer *origin.Dialer
	// total and each are replaced by tests.
	total, each time.Duration
}

// New returns a checker that dials with d.
func New(d *origin.Dialer) *Checker { return &Checker{dialer: d, total: totalTime, each: requestTime} }

// run is one check.
type run struct {
	c     *Checker
	ask   *hubv1.PreflightAsk
	out   *hubv1.PreflightAnswer
	found map[string]bool
}

// fix is the setting that would help.
type fix struct{ field, value, text string }

// Check tries the origin of ask, for at most 20 s.
func (c *Checker) Check(ctx context.Context, ask *hubv1.PreflightAsk) *hubv1.PreflightAnswer {
	ctx, cancel := context.WithTimeout(ctx, c.total)
	defer cancel()
	r := &run{c: c, ask: ask, out: &hubv1.PreflightAnswer{Checked: true}, found: map[string]bool{}}
	if schemesOf[ask.GetKind()] == nil {
		return &hubv1.PreflightAnswer{Why: "the kind of tunnel is missing"}
	}
	if spec := r.readURL(); spec != nil {
		switch ask.GetKind() {
		case wirev1.Kind_KIND_HTTP:
			r.http(ctx, spec)
		case wirev1.Kind_KIND_TLS:
			r.passthrough(ctx, spec)
		case wirev1.Kind_KIND_TCP:
			r.tcp(ctx, spec)
		case wirev1.Kind_KIND_UDP:
			r.udp(ctx, spec)
		}
	}
	if ctx.Err() != nil {
		r.unchecked(fmt.Sprintf("there was no time for the whole check, which takes at most %v; the origin is slow", c.total))
	}
	rank := map[string]int{failure: 0, warning: 1, note: 2}
	sort.SliceStable(r.out.Findings, func(i, j int) bool {
		return rank[r.out.Findings[i].GetSeverity()] < rank[r.out.Findings[j].GetSeverity()]
	})
	return r.out
}

// unchecked says that the check, or the rest of it, could not be done. That is not the same as
// having found nothing.
func (r *run) unchecked(why string) {
	r.out.Checked = false
	if r.out.Why == "" {
		r.out.Why = why
	}
}

// add notes a finding, once.
func (r *run) add(id, severity, text, evidence string, f fix) {
	if r.found[id] {
		return
	}
	r.found[id] = true
	r.out.Findings = append(r.out.Findings, &hubv1.Finding{
		Id: id, Severity: severity, Text: text, Evidence: clip(evidence), FixField: f.field, FixValue: f.value, FixText: f.text,
	})
}

// clip cuts evidence at maxEvidence characters and makes it printable.
func clip(s string) string {
	var out []rune
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case c == '\n' || c == '\r' || c == '\t':
			c = ' '
		case c < ' ' || c == 0x7f || c == utf8.RuneError:
			c = '.'
		}
		out = append(out, c)
		if len(out) == maxEvidence {
			return string(out[:maxEvidence-1]) + "…"
		}
	}
	return string(out)
}

// unreached explains why the origin could not be dialled.
func (r *run) unreached(spec *origin.Spec, e *reason.Error) {
	if e.Code == reason.OriginDenied {
		r.add("origin_denied", failure, "The agent must not dial this origin: its target guard forbids it.", e.Detail,
			fix{"", "", "Choose another address; --allow-target and --deny-target of the agent say what it may dial."})
		return
	}
	r.add("origin_unreachable", failure, "The agent cannot connect to "+spec.String()+".", e.Detail,
		fix{"origin", "", "Is the service running, on this address and port, and reachable from the agent's host?"})
}

// tcp tries a TCP origin: it can only be connected to.
func (r *run) tcp(ctx context.Context, spec *origin.Spec) {
	c, e := r.dial(ctx, spec)
	switch {
	case e == nil:
		_ = c.Close()
	case e.Code == reason.OriginTLS && r.certificate(ctx, spec, e):
	case e.Code == reason.OriginTLS:
		r.add("origin_is_plaintext", failure, "The origin does not speak TLS on this port.", e.Detail, fix{"origin", "tcp" + spec.String()[len("tls"):], "Write the origin without TLS."})
	default:
		r.unreached(spec, e)
	}
}

// udp can only tell whether the target is permitted: no answer to a datagram means nothing.
func (r *run) udp(ctx context.Context, spec *origin.Spec) {
	port := spec.Port
	if port == 0 {
		port = 1
	}
	c, err := r.c.dialer.DialUDP(ctx, spec, port)
	if err != nil {
		r.unreached(spec, reason.Of(err, reason.HopAgent))
		return
	}
	_ = c.Close()
	r.unchecked("a UDP service cannot be checked: it need not answer a datagram that it does not know")
}

// passthrough tries an origin that ends the visitors' TLS itself.
func (r *run) passthrough(ctx context.Context, spec *origin.Spec) {
	host := r.ask.GetHostname()
	inner := *spec
	inner.Scheme, inner.ServerName, inner.InsecureSkipVerify = origin.SchemeTLS, host, true
	if host == "" {
		inner.ServerName = spec.Host
	}
	c, e := r.dial(ctx, &inner)
	switch {
	case e == nil:
		defer func() { _ = c.Close() }()
		cert := peerCertificate(c)
		if host == "" || cert == nil || cert.VerifyHostname(host) == nil {
			return
		}
		r.add("origin_certificate_not_trusted", warning, "The origin's certificate is not for "+host+": visitors' programs will refuse it.", describe(cert),
			fix{"", "", "Give the service a certificate for " + host + ", or let TLS end at the edge (kind http)."})
	case e.Code == reason.OriginTLS:
		r.add("origin_is_plaintext", failure, "The origin does not speak TLS, so visitors of a passthrough tunnel cannot either.", e.Detail,
			fix{"kind", "http", "Let TLS end at the edge (kind http)."})
	default:
		r.unreached(spec, e)
	}
}
