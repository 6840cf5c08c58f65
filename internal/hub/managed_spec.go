package hub

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	maxResponseTimeout = 1200
	maxCAPEM           = 64 << 10
	maxBasicAuth       = 255
	defaultTCPPort     = "80"
	defaultTLSPort     = "443"
)

// managed is a valid managed tunnel: what it claims, and what serves it.
type managed struct {
	*claim
	// anyPort: a free port is chosen when it is placed.
	anyPort bool
	// byLabel: the label was said, not the hostname.
	byLabel bool
	agent   *store.Token
}

func (m *managed) nameField() string {
	if m.protocol != "" {
		return "port"
	}
	return "hostname"
}

// field names what is claimed in the words of the API.
func (m *managed) field() (string, string) {
	if m.protocol == "" && m.byLabel {
		return "label", m.tunnel.Label
	}
	f, v := m.claim.field()
	return managedField(f), v
}

// managedField is a field of a declared entry in the words of the API.
func managedField(f string) string {
	switch f {
	case "listen_port":
		return "port"
	case "listen_port_range":
		return "port_last"
	}
	return f
}

// parseManaged checks what needs no store, completes defaults and returns t in canonical form.
func (h *Hub) parseManaged(t *hubv1.Tunnel) (*managed, *Problem) {
	m := &managed{byLabel: t.GetLabel() != ""}
	if _, ok := schemes[t.GetKind()]; !ok {
		return nil, invalid("kind", t.GetKind().String(), "use http, tls, tcp or udp", "is no kind of tunnel")
	}
	if t.GetAddress() != "" {
		return nil, invalid("address", t.GetAddress(), "leave it away: a managed tunnel is served at every address", "cannot be chosen")
	}
	if p := h.parseLabel(t); p != nil {
		return nil, p
	}
	hostKind := t.GetKind() == wirev1.Kind_KIND_HTTP || t.GetKind() == wirev1.Kind_KIND_TLS
	if !hostKind && t.GetPort() == 0 && t.GetPortLast() == 0 {
		m.anyPort = true
	}
	completeOrigins(t)
	d := &hubv1.DeclaredTunnel{Name: t.GetName(), Kind: t.GetKind(), Hostname: t.GetHostname(), Port: t.GetPort(), PortLast: t.GetPortLast(),
		CarrierPolicy: t.GetCarrierPolicy(), Origins: t.GetOrigins(), Rules: t.GetRules(), HttpPorts: t.GetHttpPorts()}
	if m.anyPort {
		d.Port = 1
	}
	if len(d.Origins) == 0 {
		return nil, invalid("origins", "", "give the origin as SCHEME://HOST:PORT", "are missing")
	}
	c, p := parseEntry(d)
	if p != nil {
		p.Field = managedField(p.Field)
		return nil, p
	}
	m.claim = c
	spec := proto.CloneOf(t)
	spec.Hostname, spec.Rules, spec.CarrierPolicy, spec.HttpPorts = c.tunnel.Hostname, c.tunnel.Rules, c.tunnel.CarrierPolicy, c.tunnel.HttpPorts
	spec.Port, spec.PortLast = c.tunnel.Port, c.tunnel.PortLast
	c.tunnel = spec
	if m.anyPort {
		spec.Port = 0
	}
	if p := m.parseAccess(); p != nil {
		return nil, p
	}
	for _, check := range []func(*hubv1.Tunnel) *Problem{checkHTTPSettings, checkOriginSettings, checkBasicAuth, checkHealth} {
		if p := check(spec); p != nil {
			return nil, p
		}
	}
	return m, nil
}

// parseLabel makes label and hostname agree.
func (h *Hub) parseLabel(t *hubv1.Tunnel) *Problem {
	if k := t.GetKind(); k != wirev1.Kind_KIND_HTTP && k != wirev1.Kind_KIND_TLS {
		if t.Label != "" {
			return invalid("label", t.Label, "leave it away, or use kind http or tls", "is not for tunnels with a port")
		}
		return nil
	}
	switch {
	case t.Label == "" && t.Hostname == "":
		return invalid("label", "", "give a label below "+h.cfg.Domain+", or a hostname", "is missing")
	case t.Label != "":
		l := sanitiseLabel(t.Label)
		if l == "" {
			return invalid("label", t.Label, "use letters, digits and hyphens", "has no letter or digit")
		}
		name := l + "." + h.cfg.Domain
		if t.Hostname != "" && t.Hostname != name {
			return invalid("hostname", t.Hostname, "give one of label and hostname", "is given beside the label %q, which means %s", t.Label, name)
		}
		t.Label, t.Hostname = l, name
	default:
		p, err := hostname.Parse(t.Hostname)
		if err != nil {
			return invalid("hostname", t.Hostname, "give a name as a.example.com or *.example.com", "%v", err)
		}
		t.Hostname = p.String()
		if l, ok := strings.CutSuffix(t.Hostname, "."+h.cfg.Domain); ok && !strings.ContainsAny(l, ".*") {
			t.Label = l
		}
	}
	return nil
}

// completeOrigins fills in the ports that their schemes imply, and one rule over several origins.
func completeOrigins(t *hubv1.Tunnel) {
	for _, o := range t.Origins {
		u, err := url.Parse(o.GetUrl())
		if err != nil || u.Host == "" || u.Port() != "" || u.Path != "" && u.Path != "/" {
			continue
		}
		switch u.Scheme {
		case "http", "h2c":
			o.Url = u.Scheme + "://" + net.JoinHostPort(u.Hostname(), defaultTCPPort)
		case "https":
			o.Url = u.Scheme + "://" + net.JoinHostPort(u.Hostname(), defaultTLSPort)
		}
	}
	for _, o := range t.Origins {
		o.Url = strings.TrimSuffix(o.Url, "/")
	}
	if len(t.Rules) == 0 && len(t.Origins) > 0 {
		t.Rules = evenRules(len(t.Origins))
	}
	if t.GetKind() != wirev1.Kind_KIND_HTTP && len(t.Rules) == 1 && proto.Equal(t.Rules[0], evenRules(1)[0]) {
		t.Rules = nil // parseEntry makes it
	}
}

// evenRules is one rule that matches everything, over n origins.
func evenRules(n int) []*hubv1.Rule {
	r := &hubv1.Rule{}
	for i := range n {
		r.Origins = append(r.Origins, &hubv1.WeightedOrigin{Origin: uint32(i), Weight: 1})
	}
	return []*hubv1.Rule{r}
}

func (m *managed) parseAccess() *Problem {
	t := m.tunnel
	a, f := access.Canonical(t.GetKind(), t.GetAccess())
	if f != nil {
		return ofFault(f)
	}
	t.Access = a
	if t.CarrierPolicy == hubv1.CarrierPolicy_CARRIER_POLICY_RAW && !access.Open(a) {
		return invalid("carrier_policy", "raw", "use auto, latency or throughput, or make the tunnel public", "raw lanes are for public tunnels only: they cannot check who comes")
	}
	return nil
}

func ofFault(f *access.Fault) *Problem {
	return &Problem{Code: reason.Invalid, Field: f.Field, Value: f.Value, Text: f.Text, Remedy: f.Remedy}
}

func checkHTTPSettings(t *hubv1.Tunnel) *Problem {
	if len(t.GetName()) == 0 {
		t.Name = t.GetLabel()
		if t.Name == "" {
			t.Name = t.GetHostname()
		}
	}
	if s := t.GetResponseTimeoutSeconds(); s > maxResponseTimeout {
		return invalid("response_timeout_seconds", fmt.Sprint(s), fmt.Sprintf("give 1 to %d seconds, or 0 for the edge's default", maxResponseTimeout), "is too long")
	}
	if t.GetKind() == wirev1.Kind_KIND_HTTP {
		return nil
	}
	switch {
	case t.GetResponseTimeoutSeconds() != 0:
		return invalid("response_timeout_seconds", fmt.Sprint(t.GetResponseTimeoutSeconds()), "leave it away, or use kind http", "has a meaning with kind http only")
	case t.GetWebsocketOff():
		return invalid("websocket_off", "true", "leave it away, or use kind http", "has a meaning with kind http only")
	}
	return nil
}

func checkOriginSettings(t *hubv1.Tunnel) *Problem {
	for i, o := range t.GetOrigins() {
		field := fmt.Sprintf("origins[%d].", i)
		scheme, _, _ := strings.Cut(o.GetUrl(), "://")
		tls := scheme == "https" || scheme == "tls"
		if p := checkHostHeader(t.GetKind(), field, o.GetHostHeader()); p != nil {
			return p
		}
		if o.GetServerName() != "" {
			n, err := hostname.Normalize(o.GetServerName())
			switch {
			case !tls:
				return invalid(field+"server_name", o.GetServerName(), "leave it away, or use an https or tls origin", "has a meaning with TLS towards the origin only")
			case err != nil:
				return invalid(field+"server_name", o.GetServerName(), "give a name as the origin's certificate has it", "%v", err)
			}
			o.ServerName = n
		}
		if o.GetInsecureSkipVerify() && !tls {
			return invalid(field+"insecure_skip_verify", "true", "leave it away, or use an https or tls origin", "has a meaning with TLS towards the origin only")
		}
		if len(o.GetCaPem()) == 0 {
			continue
		}
		switch {
		case !tls:
			return invalid(field+"ca_pem", "", "leave it away, or use an https or tls origin", "has a meaning with TLS towards the origin only")
		case o.GetInsecureSkipVerify():
			return invalid(field+"ca_pem", "", "leave one of them away", "is given beside insecure_skip_verify, which verifies nothing")
		}
		if err := checkCA(o.GetCaPem()); err != nil {
			return invalid(field+"ca_pem", "", "give PEM certificates: BEGIN CERTIFICATE … END CERTIFICATE", "%v", err)
		}
	}
	return nil
}

func checkHostHeader(kind wirev1.Kind, field, v string) *Problem {
	switch {
	case v == "" || v == "origin":
		if v != "" && kind != wirev1.Kind_KIND_HTTP {
			return invalid(field+"host_header", v, "leave it away, or use kind http", "has a meaning with kind http only")
		}
		return nil
	case kind != wirev1.Kind_KIND_HTTP:
		return invalid(field+"host_header", v, "leave it away, or use kind http", "has a meaning with kind http only")
	}
	host := v
	if strings.Contains(v, ":") {
		var port string
		var err error
		if host, port, err = net.SplitHostPort(v); err != nil || !portRule.MatchString(port) {
			return invalid(field+"host_header", v, `give a name as app.example.com, "origin", or nothing for the visitor's`, "is no Host")
		}
	}
	if !httpguts.ValidHostHeader(v) || net.ParseIP(host) == nil && !hostname.Valid(host) && !localName.MatchString(host) {
		return invalid(field+"host_header", v, `give a name as app.example.com, "origin", or nothing for the visitor's`, "is no Host")
	}
	return nil
}

var (
	portRule  = regexp.MustCompile(`^[0-9]{1,5}$`)
	localName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
)

func checkCA(data []byte) error {
	if len(data) > maxCAPEM {
		return fmt.Errorf("has more than %d bytes", maxCAPEM)
	}
	n := 0
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			return fmt.Errorf("holds a block of type %s", b.Type)
		}
		if _, err := x509.ParseCertificate(b.Bytes); err != nil {
			return fmt.Errorf("certificate %d does not parse", n)
		}
		n++
	}
	if n == 0 || len(strings.TrimSpace(string(data))) > 0 {
		return errors.New("is not only PEM certificates")
	}
	return nil
}

func checkBasicAuth(t *hubv1.Tunnel) *Problem {
	b := t.GetUpstreamBasicAuth()
	if b == nil {
		return nil
	}
	const field = "upstream_basic_auth."
	control := func(s string) bool {
		return strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
	}
	switch {
	case t.GetKind() != wirev1.Kind_KIND_HTTP:
		return invalid("upstream_basic_auth", b.GetUser(), "leave it away, or use kind http", "has a meaning with kind http only")
	case b.GetUser() == "" || len(b.GetUser()) > maxBasicAuth || strings.Contains(b.GetUser(), ":") || control(b.GetUser()):
		return invalid(field+"user", b.GetUser(), fmt.Sprintf("give 1 to %d characters without a colon", maxBasicAuth), "is no user name")
	case b.GetPassword() == "":
		return invalid(field+"password", "", "give it again: it is never shown, so it cannot be kept from what was read", "is missing")
	case len(b.GetPassword()) > maxBasicAuth || control(b.GetPassword()):
		// The value stays out of errors.
		return invalid(field+"password", "", fmt.Sprintf("give 1 to %d printable characters", maxBasicAuth), "is no password")
	}
	return nil
}

func checkHealth(t *hubv1.Tunnel) *Problem {
	c := t.GetHealthCheck()
	if c == nil {
		return nil
	}
	switch {
	case t.GetKind() == wirev1.Kind_KIND_UDP:
		return invalid("health_check", "", "leave it away", "is not possible with udp: silence says nothing there")
	case c.GetPath() != "" && t.GetKind() != wirev1.Kind_KIND_HTTP:
		return invalid("health_check.path", c.GetPath(), "leave it away: a connection is tried", "has a meaning with kind http only")
	case c.GetPath() != "" && (!strings.HasPrefix(c.GetPath(), "/") || len(c.GetPath()) > 2048 || strings.ContainsFunc(c.GetPath(), func(r rune) bool { return r <= 0x20 || r >= 0x7f || r == '#' })):
		return invalid("health_check.path", c.GetPath(), "give a path as /healthz", "is no path")
	case c.GetIntervalSeconds() != 0 && (c.GetIntervalSeconds() < 5 || c.GetIntervalSeconds() > 3600):
		return invalid("health_check.interval_seconds", fmt.Sprint(c.GetIntervalSeconds()), "give 5 to 3600, or 0 for 30", "is out of range")
	case c.GetTimeoutSeconds() > 60:
		return invalid("health_check.timeout_seconds", fmt.Sprint(c.GetTimeoutSeconds()), "give 1 to 60, or 0 for 5", "is out of range")
	}
	return nil
}
