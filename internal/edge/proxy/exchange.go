package proxy

import (
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/edge/pages"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/reason"
)

// ownPath is where the edge's own pages live on every tunnel's host.
const ownPath = "/.adit"

// exchange is one request and its answer: what was decided about it, and what became of it.
type exchange struct {
	p     *Proxy
	start time.Time
	in    *http.Request
	w     *writer
	name  string // see id

	visitor visitor
	local   netip.AddrPort
	conn    *front.Visitor // nil if the server set none

	rules  *route.Rules
	rule   *route.Rule
	path   route.Path
	origin uint32
	class  wirev1.Class

	body    *requestBody // nil without one
	interim interim      // of a request without body
	ride    *ride        // of the request to the origin
	failure *reason.Error
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{p: p, start: time.Now(), in: r}
	x.conn = front.VisitorFrom(r.Context())
	x.visitor = resolveVisitor(r, p.cfg.TrustedProxies)
	switch a := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.TCPAddr:
		x.local = plain(a.AddrPort())
	case *net.UDPAddr:
		x.local = plain(a.AddrPort())
	}
	x.w = newWriter(x, w)
	return x
}

// id names the request in its log line and on an error's page.
func (x *exchange) id() string {
	if x.name == "" {
		x.name = rand.Text()
	}
	return x.name
}

// decide finds out where the request goes, or why it goes nowhere.
func (x *exchange) decide() *reason.Error {
	r := x.in
	host, err := requestHost(r)
	if err != nil {
		return err
	}
	if x.rules, err = x.tunnel(host); err != nil {
		return err
	}
	if err := refusedTrailer(r); err != nil {
		return err
	}
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	path, perr := route.ParsePath(raw)
	if perr != nil {
		return reason.Wrap(perr, reason.BadRequest, reason.HopVisitor, "the request target is not valid")
	}
	x.path = path
	own, certain := path.Below(ownPath)
	if own && !certain {
		return reason.New(reason.BadRequest, reason.HopVisitor, "the path is ambiguous about %s/", ownPath)
	}
	if own {
		return nil
	}
	if !access.Open(x.rules.Tunnel().GetAccess()) {
		if x.visitor.proto != "https" {
			// Whatever would let the visitor in could be read on the way.
			return reason.New(reason.AccessDenied, reason.HopEdge, "the tunnel is protected and so lets nobody in over clear text; use https://%s", host)
		}
		return reason.New(reason.AccessDenied, reason.HopEdge,
			"the tunnel is protected and this edge cannot sign visitors in; --access public opens it to everyone")
	}
	if x.rules.Tunnel().GetWebsocketOff() && isWebSocket(r) {
		return reason.New(reason.AccessDenied, reason.HopEdge, "WebSocket is switched off for this tunnel")
	}
	if looped(r.Header) {
		return reason.New(reason.LoopDetected, reason.HopEdge,
			"the request passed an edge %d times already; the tunnel's origin must be the service, not a public address", maxHops)
	}
	if x.rule, err = x.rules.Match(r, path); err != nil {
		return err
	}
	if err := x.rule.Problem(); err != nil {
		return err
	}
	if x.rule.Redirect() != nil {
		return nil
	}
	x.class = classOf(r)
	x.origin, err = x.rule.Passing(x.p.failing(x.rules.Tunnel()))
	return err
}

// tunnel returns the rules of host's tunnel, unless the connection was made for another one that
// host may not share it with.
func (x *exchange) tunnel(host string) (*route.Rules, *reason.Error) {
	rules := x.p.cfg.Lookup(x.local, host)
	if tls := x.in.TLS; tls != nil {
		sni, err := hostname.Normalize(tls.ServerName)
		if err != nil {
			sni = ""
		}
		if sni != host && !x.shares(sni, host, rules) {
			return nil, reason.New(reason.WrongHost, reason.HopEdge,
				"the connection was made for %q and may not be used for %q; open another one", sni, host)
		}
	}
	if rules == nil {
		return nil, reason.New(reason.NoRoute, reason.HopEdge, "no tunnel is published at %s", host)
	}
	if rules.Tunnel().GetKind() != wirev1.Kind_KIND_HTTP {
		return nil, reason.New(reason.WrongHost, reason.HopEdge,
			"%s is a tunnel whose TLS ends at the origin; this connection's ended at the edge", host)
	}
	return rules, nil
}

// shares reports whether a connection made for sni may carry requests for host.
func (x *exchange) shares(sni, host string, rules *route.Rules) bool {
	if sni == "" || !x.p.cfg.Covers(sni, host) {
		return false
	}
	for _, rs := range []*route.Rules{rules, x.p.cfg.Lookup(x.local, sni)} {
		if rs != nil && rs.Tunnel().GetKind() == wirev1.Kind_KIND_TLS {
			return false
		}
	}
	return true
}

// serve answers a request about which everything is decided.
func (x *exchange) serve() {
	if x.rule == nil {
		if x.p.cfg.Local == nil {
			x.fail(reason.New(reason.NoRoute, reason.HopEdge, "the edge has no page at this path"))
			return
		}
		x.p.cfg.Local.ServeHTTP(x.w, x.in)
		return
	}
	if rd := x.rule.Redirect(); rd != nil {
		location, status := x.rule.Location(rd, x.visitor.proto, x.in.Host, x.path, x.in.URL.RawQuery)
		x.rule.ResponseHeaders(x.w.Header())
		x.w.Header().Set("Location", location)
		x.w.WriteHeader(status)
		return
	}
	x.forward()
}

// fail answers with err's page, if nothing was answered yet.
func (x *exchange) fail(err *reason.Error) {
	x.failure = err
	if x.w.status != 0 || err.Code == reason.ClientClosed {
		return
	}
	pages.Write(x.w, x.in, x.id(), err)
}

// finish closes the books on the exchange, also when the copy of an answer was broken off: then
// the panic goes on to the server, which cuts the visitor's stream so that it notices.
func (x *exchange) finish() {
	broken := recover()
	x.w.stop()
	if x.body != nil {
		x.body.end()
	}
	if x.ride != nil {
		x.ride.end()
	}
	if broken != nil && x.failure == nil {
		x.failure = x.broken()
	}
	status := x.w.status
	if x.failure != nil && x.failure.Code == reason.ClientClosed || status == 0 {
		status = reason.ClientClosed.HTTPStatus()
	}
	took := time.Since(x.start)
	x.p.metrics.observe(status, took)
	x.outcome(status)
	x.log(status, took)
	if broken == nil && x.failure != nil && x.w.status == 0 {
		broken = http.ErrAbortHandler // else the server would answer 200 in our place
	}
	if broken != nil {
		panic(broken)
	}
}

// outcome tells who asked what became of the request.
func (x *exchange) outcome(status int) {
	if x.p.cfg.Done == nil || x.rules == nil {
		return
	}
	o := Outcome{TunnelID: x.rules.Tunnel().GetId(), Status: status}
	if !x.w.headed.IsZero() {
		o.FirstByte = x.w.headed.Sub(x.start)
	}
	if x.failure != nil {
		o.Reason = x.failure.Code
	}
	x.p.cfg.Done(o)
}

// broken says why an answer ended before its end.
func (x *exchange) broken() *reason.Error {
	switch {
	case x.w.timedOut():
		return reason.New(reason.VisitorTimeout, reason.HopVisitor, "the visitor took nothing of the answer for %v", x.p.cfg.BodyIdle)
	case x.w.failed.Load() || x.in.Context().Err() != nil:
		return reason.New(reason.ClientClosed, reason.HopVisitor, "the visitor closed before the end of the answer")
	case x.ride != nil:
		return x.ride.lost()
	}
	return reason.New(reason.Internal, reason.HopEdge, "the handler was broken off")
}

func (x *exchange) log(status int, took time.Duration) {
	r := x.in
	if !x.p.log.Enabled(r.Context(), slog.LevelInfo) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request", x.id()), slog.String("method", r.Method), slog.String("host", r.Host),
		slog.String("path", x.path.Raw), slog.String("proto", r.Proto), slog.Int("status", status),
		slog.String("visitor", x.visitor.String()), slog.Duration("duration", took),
		slog.Int64("bytes_out", x.w.bytes.Load()),
	}
	if x.body != nil {
		attrs = append(attrs, slog.Int64("bytes_in", x.body.bytes.Load()))
	}
	if x.rules != nil {
		attrs = append(attrs, slog.String("tunnel", x.rules.Tunnel().GetId()))
	}
	if x.ride != nil {
		attrs = append(attrs, slog.String("replica", x.ride.replica()))
	}
	if f := x.failure; f != nil {
		attrs = append(attrs, slog.String("reason", string(f.Code)), slog.String("hop", f.Hop), slog.String("detail", f.Refusal().GetDetail()))
	}
	x.p.log.LogAttrs(r.Context(), slog.LevelInfo, "http request", attrs...)
}

// visitorID is the number of the visitor's connection, 0 if it has none.
func (x *exchange) visitorID() uint64 {
	if x.conn == nil {
		return 0
	}
	return x.conn.ID
}
