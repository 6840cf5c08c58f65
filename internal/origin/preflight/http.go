package preflight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// reply is what an origin answered to one request.
type reply struct {
	// host is the Host that was sent, path where.
	host, path string
	status     int
	header     http.Header
	body       []byte
	// err is set instead of an answer; refusal too, where the connection failed.
	err     error
	refusal *reason.Error
}

func (r *run) dial(ctx context.Context, spec *origin.Spec) (*origin.Conn, *reason.Error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.each)
	defer cancel()
	c, err := r.c.dialer.Dial(ctx, spec, &wirev1.StreamHeader{Kind: wirev1.Kind_KIND_HTTP, Alpn: []string{"http/1.1"}})
	if err != nil {
		return nil, reason.Of(err, reason.HopAgent)
	}
	return c, nil
}

// get asks for path with a Host, as the edge would ask for a visitor, with further headers.
func (r *run) get(ctx context.Context, spec *origin.Spec, host, path string, further http.Header) *reply {
	ctx, cancel := context.WithTimeout(ctx, r.c.each)
	defer cancel()
	out := &reply{host: host, path: path}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, e := r.dial(ctx, spec)
		if e != nil {
			out.refusal = e
			return nil, e
		}
		return c, nil
	}
	tr := &http.Transport{DialContext: dial, DialTLSContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}
	scheme := "http"
	switch spec.Scheme {
	case origin.SchemeHTTPS:
		scheme = "https"
	case origin.SchemeH2C:
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(spec.Host, strconv.Itoa(int(spec.Port)))+path, nil)
	if err != nil {
		out.err = err
		return out
	}
	req.Host = host
	public := r.ask.GetHostname()
	if public == "" {
		public = host
	}
	for k, v := range map[string]string{
		"User-Agent": "adit-preflight", "Accept": "text/html,*/*;q=0.8", "X-Forwarded-Proto": "https",
		"X-Forwarded-Host": public, "X-Forwarded-For": "192.0.2.1", "X-Real-Ip": "192.0.2.1",
	} {
		req.Header.Set(k, v)
	}
	for k, v := range further {
		req.Header[k] = v
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		out.err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	out.status, out.header = resp.StatusCode, resp.Header
	if resp.StatusCode != http.StatusSwitchingProtocols {
		// What came until an error is good enough.
		out.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	}
	return out
}

// fine tells whether a person would see something of the service, if only its sign-in.
func (a *reply) fine() bool {
	return a.err == nil && (a.status < 400 || a.status == http.StatusUnauthorized || a.status == http.StatusMethodNotAllowed || a.status == http.StatusUpgradeRequired)
}

func (a *reply) String() string {
	if a.err != nil {
		return "Host " + a.host + ": " + plain(a.err)
	}
	return fmt.Sprintf("Host %s: %d %s", a.host, a.status, http.StatusText(a.status))
}

// plain is an error without the URL that net/http puts before it.
func plain(err error) string {
	var u *url.Error
	var e *reason.Error
	switch {
	case errors.As(err, &e):
		return e.Detail
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &u):
		return u.Err.Error()
	}
	return err.Error()
}

// http tries an HTTP origin.
func (r *run) http(ctx context.Context, spec *origin.Spec) {
	own := spec.Host
	if p := spec.Port; (p != 80 || spec.TLS()) && (p != 443 || !spec.TLS()) {
		own = net.JoinHostPort(spec.Host, strconv.Itoa(int(p)))
	}
	visitor, hostHeader := r.ask.GetHostname(), r.ask.GetOrigin().GetHostHeader()
	first := visitor
	if first == "" {
		first = own
	}
	a := r.get(ctx, spec, first, "/", nil)
	var b *reply
	if a.err != nil && a.refusal == nil && first != own {
		// Some drop the connection of whoever names a host that they do not know.
		b = r.get(ctx, spec, own, "/", nil)
	}
	if (b == nil || b.err != nil) && (a.err != nil || a.status == http.StatusBadRequest) {
		switch next := r.otherProtocol(ctx, spec, a); {
		case next == nil:
			return
		case next != spec:
			spec, b = next, nil
			a = r.get(ctx, spec, first, "/", nil)
		}
	}
	if ctx.Err() != nil {
		return
	}
	replies := map[string]*reply{"visitor": a}
	switch {
	case visitor == "":
		replies = map[string]*reply{"origin": a}
	case b != nil:
		replies["origin"] = b
	case own != visitor:
		replies["origin"] = r.get(ctx, spec, own, "/", nil)
	}
	used := r.hosts(ctx, spec, replies, hostHeader)
	if used == nil || ctx.Err() != nil {
		return
	}
	page := r.follow(ctx, spec, used)
	r.headers(spec, used)
	if page != used {
		r.headers(spec, page)
	}
	r.page(spec, page)
	r.referer(ctx, spec, used)
	r.webSocket(ctx, spec, used, page)
}

// otherProtocol looks whether the origin speaks another protocol than its scheme says, after a
// reply that failed. It returns the origin to go on with; nil = there is nothing more to try.
func (r *run) otherProtocol(ctx context.Context, spec *origin.Spec, a *reply) *origin.Spec {
	if e := a.refusal; e != nil && e.Code != reason.OriginTLS {
		r.unreached(spec, e)
		return nil
	}
	other := *spec
	at := spec.String()[len(spec.Scheme):]
	if spec.TLS() {
		if a.refusal == nil {
			return r.failed(a, spec)
		}
		other.InsecureSkipVerify = true
		if r.certificate(ctx, spec, a.refusal) {
			return &other
		}
		other.Scheme = origin.SchemeHTTP
		if b := r.get(ctx, &other, a.host, "/", nil); b.err == nil {
			r.add("origin_is_plaintext", failure, "The origin speaks plain HTTP on this port, not TLS.", a.refusal.Detail,
				fix{"origin", "http" + at, "Write the origin with http://."})
			return &other
		}
		r.add("origin_request_failed", failure, "The TLS handshake with the origin fails.", a.refusal.Detail, fix{"", "", "Does the service speak TLS on this port?"})
		return nil
	}
	other.Scheme, other.InsecureSkipVerify = origin.SchemeHTTPS, true
	if c, e := r.dial(ctx, &other); e == nil {
		_ = c.Close()
		r.add("origin_wants_https", failure, "The origin speaks TLS on this port, not plain HTTP.", a.String(), fix{"origin", "https" + at, "Write the origin with https://."})
		if verified := other; !spec.InsecureSkipVerify {
			verified.InsecureSkipVerify = false
			if _, e := r.dialOnce(ctx, &verified); e != nil && e.Code == reason.OriginTLS {
				r.certificate(ctx, &verified, e)
			}
		}
		return &other
	}
	if spec.Scheme == origin.SchemeH2C && a.err != nil {
		other.Scheme = origin.SchemeHTTP
		if b := r.get(ctx, &other, a.host, "/", nil); b.err == nil {
			r.add("origin_request_failed", failure, "The origin does not speak HTTP/2 without TLS.", a.String(), fix{"origin", "http" + at, "Write the origin with http://."})
			return &other
		}
	}
	if a.err == nil {
		return spec
	}
	return r.failed(a, spec)
}

func (r *run) failed(a *reply, spec *origin.Spec) *origin.Spec {
	if a.err == nil {
		return spec
	}
	r.add("origin_request_failed", failure, "The origin takes the connection, but a request to it fails.", a.String(),
		fix{"", "", "Does the service speak HTTP on this port? Its log may say more."})
	return nil
}

// dialOnce only tells whether a dial works.
func (r *run) dialOnce(ctx context.Context, spec *origin.Spec) (bool, *reason.Error) {
	c, e := r.dial(ctx, spec)
	if e == nil {
		_ = c.Close()
	}
	return e == nil, e
}

// certificate reports what is wrong with the certificate after a handshake that failed; false if
// the handshake fails without verification too.
func (r *run) certificate(ctx context.Context, spec *origin.Spec, e *reason.Error) bool {
	loose := *spec
	loose.InsecureSkipVerify = true
	c, err := r.dial(ctx, &loose)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	cert := peerCertificate(c)
	f := fix{"insecure_skip_verify", "true", "Give the tunnel the CA with ca_pem (or the agent with --origin-ca-file); or switch verification off, if the way from agent to origin is trusted."}
	if cert != nil && spec.ServerName == "" && cert.VerifyHostname(spec.Host) != nil && len(cert.DNSNames) > 0 {
		f = fix{"server_name", strings.TrimPrefix(cert.DNSNames[0], "*."), "Name the host that the certificate is for."}
	}
	r.add("origin_certificate_not_trusted", failure, "The agent does not trust the origin's certificate: "+e.Detail+".", describe(cert), f)
	return true
}

func peerCertificate(c *origin.Conn) *x509.Certificate {
	t, ok := c.Conn.(*tls.Conn)
	if !ok || len(t.ConnectionState().PeerCertificates) == 0 {
		return nil
	}
	return t.ConnectionState().PeerCertificates[0]
}

func describe(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	names := c.DNSNames
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return fmt.Sprintf("subject %s, issuer %s, for %s, valid until %s", c.Subject, c.Issuer, strings.Join(names, " "), c.NotAfter.UTC().Format(time.DateOnly))
}
