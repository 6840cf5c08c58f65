package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// forward carries the request to the origin and the answer back.
func (x *exchange) forward() {
	r := x.in
	if httpAgain(r.Header.Get("Upgrade")) {
		// Ignoring an upgrade is anybody's right.
		r.Header.Del("Upgrade")
	}
	if bodyless(r) {
		x.forwardBodyless()
		return
	}
	if protocol := connectProtocol(r); protocol != "" {
		r = x.bridged(protocol)
	}
	if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		x.body = newRequestBody(x, r.Body)
		// HTTP/1.1's server closes the body when the answer begins, unless it is told not to: the
		// end of an upload would be an error then, and a conversation impossible.
		_ = x.w.rc.EnableFullDuplex() // the other versions' servers never do
	}
	if r.Context().Value(http.ServerContextKey) == nil {
		// Only under this key does httputil believe that a server will recover its panic, and
		// break a half-sent answer off instead of making it look whole. HTTP/3's server does.
		r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{}))
	}
	proxy := httputil.ReverseProxy{
		Rewrite:        x.rewrite,
		Transport:      roundTripper{x},
		FlushInterval:  -1, // every stream is delivered as it is written
		BufferPool:     &x.p.buffers,
		ModifyResponse: x.answered,
		ErrorLog:       x.p.errorLog,
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			x.fail(x.explain(err))
		},
	}
	proxy.ServeHTTP(x.w, r)
}

// responseLimit is how long the origin may take to begin its answer after the request was sent.
func (x *exchange) responseLimit() time.Duration {
	if s := x.rules.Tunnel().GetResponseTimeoutSeconds(); s > 0 {
		return time.Duration(s) * time.Second
	}
	return x.p.cfg.ResponseHeader
}

func (x *exchange) originConfig() *hubv1.Origin {
	return x.rules.Tunnel().GetOrigins()[x.origin]
}

// rewrite makes the request for the origin. Hop-by-hop headers are gone already, so that what
// is set here stays.
func (x *exchange) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	raw, rewritten := x.rule.Rewrite(x.path)
	_, query, hasQuery := strings.Cut(x.in.RequestURI, "?")
	// The host is set when the connection is chosen.
	out.URL = &url.URL{Scheme: "http", RawQuery: query, ForceQuery: hasQuery}
	setPath(out.URL, raw)
	if x.body != nil {
		out.Body = x.body
	}
	out.Trailer = pr.In.Trailer // filled at the end of the body
	x.setForwarded(out.Header)
	filtered := x.rule.RequestHeaders(out.Header, identity)
	out.Host = x.originHost(rewritten, filtered)
	if b := x.rules.Tunnel().GetUpstreamBasicAuth(); b != nil {
		out.SetBasicAuth(b.GetUser(), b.GetPassword())
	}
}

// setPath makes u's request target raw, byte for byte.
func setPath(u *url.URL, raw string) {
	if !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
		return
	}
	// An opaque part that starts so would be read as a host. ParsePath has accepted it, so it
	// unescapes.
	u.Path, _ = url.PathUnescape(raw)
	u.RawPath = raw
}

// originHost is the Host that the origin sees: what a filter says, else what the origin's
// host_header says, else the visitor's.
func (x *exchange) originHost(rewritten, filtered string) string {
	if filtered != "" {
		return filtered
	}
	if rewritten != "" {
		return rewritten
	}
	o := x.originConfig()
	switch o.GetHostHeader() {
	case "":
		return x.in.Host
	case "origin":
		if u, err := url.Parse(o.GetUrl()); err == nil {
			return u.Host
		}
		return x.in.Host
	default:
		return o.GetHostHeader()
	}
}

// answered looks at the origin's answer before the visitor gets it.
func (x *exchange) answered(res *http.Response) error {
	if b := x.w.bridge; b != nil {
		if err := b.check(res); err != nil {
			return err
		}
	}
	x.w.empty = res.ContentLength == 0 && len(res.Trailer) == 0
	// It tells of the origin's own listeners, which the visitor cannot reach.
	res.Header.Del("Alt-Svc")
	x.rule.ResponseHeaders(res.Header)
	if len(res.Trailer) > 0 && x.in.ProtoMajor == 1 && x.in.Method != http.MethodHead {
		// HTTP/1.1 has room for trailers only where the length is not known before.
		res.Header.Del("Content-Length")
	}
	return nil
}

// httpAgain reports whether an upgrade leads to more HTTP (h2c, HTTP/2.0, TLS/1.0): requests in
// it would pass the edge unseen, past access, rules and headers.
func httpAgain(upgrade string) bool {
	for token := range strings.SplitSeq(strings.ToLower(upgrade), ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(token), "/")
		if name == "h2c" || name == "h2" || name == "h3" || name == "http" || name == "tls" {
			return true
		}
	}
	return false
}

// roundTripper lets httputil.ReverseProxy use the pool.
type roundTripper struct{ x *exchange }

func (rt roundTripper) RoundTrip(out *http.Request) (*http.Response, error) {
	res, err := rt.x.p.pool.roundTrip(rt.x, out)
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols {
		if rwc, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &switched{ReadWriteCloser: rwc, w: rt.x.w}
		}
	}
	return res, err
}

// explain is why a request got no answer from the origin.
func (x *exchange) explain(err error) *reason.Error {
	var known *reason.Error
	var timeout interface{ Timeout() bool }
	broken := x.body.broken()
	switch {
	case x.body.timedOut():
		return reason.Wrap(broken, reason.VisitorTimeout, reason.HopVisitor, "nothing more of the request came for %v", x.p.cfg.BodyIdle)
	case x.in.Context().Err() != nil:
		return reason.Wrap(context.Cause(x.in.Context()), reason.ClientClosed, reason.HopVisitor, "the visitor closed before the answer")
	case broken != nil:
		var large *http.MaxBytesError
		if errors.As(broken, &large) {
			return reason.Wrap(broken, reason.TooLarge, reason.HopVisitor, "the request is larger than %d bytes", large.Limit)
		}
		if x.in.ProtoMajor > 1 || closedBy(broken) {
			return reason.Wrap(broken, reason.ClientClosed, reason.HopVisitor, "the visitor closed before the end of its request")
		}
		return reason.Wrap(broken, reason.BadRequest, reason.HopVisitor, "the request's body is malformed")
	case errors.As(err, &known):
		return known
	case x.ride != nil && x.ride.refusal() != nil:
		return x.ride.refusal()
	case errors.As(err, &timeout) && timeout.Timeout():
		return reason.Wrap(err, reason.OriginTimeout, reason.HopOrigin, "the origin did not begin to answer within %v", x.responseLimit())
	case x.ride != nil:
		e := x.ride.lost()
		e.Err = err
		return e
	}
	return reason.Wrap(err, reason.Internal, reason.HopEdge, "the request could not be sent")
}

// closedBy reports whether reading from an HTTP/1.1 visitor failed because it closed, rather than
// for what it sent.
func closedBy(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op)
}
