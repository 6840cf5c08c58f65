package edge

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/pages"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	sessionPath   = "/.adit/session"
	challengePath = "/.well-known/acme-challenge/"
)

// Roles is what the front needs of an edge. A server adds the hub's protocols to it.
func (e *Edge) Roles() front.Roles {
	return front.Roles{
		Tunnel:    e.tunnel,
		Own:       func(name string) bool { return e.own[name] },
		OtherEdge: e.otherEdge,
		Protocols: []front.Protocol{{
			ALPN: opening.ALPNSession, TLS: e.acceptor.TLSConfig(), Wrap: link.WrapTCP, TCP: e.acceptor.ServeTLS, QUIC: e.acceptor.ServeQUIC,
		}, {
			ALPN: forward.ALPN, TLS: e.forwards.tls, TCP: e.forwards.serve,
		}},
		Raw:         e.acceptor.ServeRaw,
		Certificate: e.certificate,
		HTTP:        http.HandlerFunc(e.serveHTTP),
		PlainHTTP:   http.HandlerFunc(e.servePlain),
	}
}

// tunnel is what a server name means on 443.
func (e *Edge) tunnel(local netip.AddrPort, name string) *front.Tunnel {
	t := e.view.Load().table.Host(local, name)
	switch {
	case t == nil:
		return nil
	case t.Tunnel.GetKind() == wirev1.Kind_KIND_TLS:
		return &front.Tunnel{Passthrough: func(ctx context.Context, c *front.Conn) { e.raw.Serve(ctx, c, t) }}
	default:
		return &front.Tunnel{Enter: func() (func(), bool) { return e.enter(t.Tunnel.GetId()) }}
	}
}

// enter counts a connection for a tunnel of kind http. HTTP/2 may use it for others of the same
// certificate, too: it is counted where it was made for.
func (e *Edge) enter(id string) (leave func(), ok bool) {
	if !e.perTunnel.Acquire(id) {
		e.metrics.connections.WithLabelValues("http", string(reason.RateLimited)).Inc()
		return nil, false
	}
	e.metrics.connections.WithLabelValues("http", string(reason.OK)).Inc()
	return func() { e.perTunnel.Release(id) }, true
}

// serveHTTP serves what came over TLS: own names by whoever they belong to, all else by tunnels.
func (e *Edge) serveHTTP(w http.ResponseWriter, r *http.Request) {
	host, err := hostname.FromHost(r.Host)
	if err != nil || !e.own[host] {
		e.proxy.ServeHTTP(w, r)
		return
	}
	switch {
	case !e.reached(r, host):
		fail(w, r, reason.New(reason.WrongHost, reason.HopEdge, "the connection was made for another name; open a new one for %s", host))
	case r.URL.Path == sessionPath:
		front.HandOver(r.Context())
		e.acceptor.ServeHTTP(w, r)
	case e.cfg.OwnHTTP != nil:
		e.cfg.OwnHTTP.ServeHTTP(w, r)
	default:
		fail(w, r, reason.New(reason.NoRoute, reason.HopEdge, "this is an edge; there is nothing to see at its own name"))
	}
}

// reached reports whether a request for one of our own names came over a connection that was made
// for one of them, or whose certificate says so.
func (e *Edge) reached(r *http.Request, host string) bool {
	if r.TLS == nil {
		return true
	}
	name, err := hostname.Normalize(r.TLS.ServerName)
	return err == nil && (name == host || e.own[name] || e.covers(name, host))
}

func fail(w http.ResponseWriter, r *http.Request, err *reason.Error) {
	pages.Write(w, r, rand.Text(), err)
}

// servePlain serves port 80: challenges of certificate authorities, and the way to https.
func (e *Edge) servePlain(w http.ResponseWriter, r *http.Request) {
	if token, ok := strings.CutPrefix(r.URL.Path, challengePath); ok {
		if e.cfg.Challenge != nil && e.cfg.Challenge(w, r) {
			return
		}
		if c := e.view.Load().challenges[typeHTTP+"/"+token]; c != nil {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, c.GetKeyAuthorization())
			return
		}
	}
	host, err := hostname.FromHost(r.Host)
	if err != nil {
		fail(w, r, reason.Wrap(err, reason.BadRequest, reason.HopVisitor, "the request names no host"))
		return
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	port, own := front.ClearPort(r.Context()), e.own[host]
	var t *route.Entry
	if !own {
		t = e.view.Load().table.Host(local.AddrPort(), host)
	}
	switch {
	case t != nil && e.servesClear(t.Tunnel, port):
		e.serveClear(w, r, t.Tunnel)
		return
	case t == nil && !own || port != 0:
		fail(w, r, reason.New(reason.NoRoute, reason.HopEdge, "nothing is published as %s in clear text on this port", host))
		return
	}
	target, ok := secureURL(host, e.cfg.HTTPSPort, r.URL)
	if !ok {
		fail(w, r, reason.New(reason.BadRequest, reason.HopVisitor, "the request target is not a path"))
		return
	}
	// The method stays, as a form that is sent to http must arrive at https as one.
	status := http.StatusPermanentRedirect
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		status = http.StatusMovedPermanently
	}
	http.Redirect(w, r, target, status)
}

// servesClear reports whether a tunnel's host is served in clear text on a port of its own, or (0) on
// the plain HTTP listener.
func (e *Edge) servesClear(t *hubv1.Tunnel, port uint16) bool {
	return slices.ContainsFunc(t.GetHttpPorts(), func(p uint32) bool {
		if port == 0 {
			return e.plainHTTP(p)
		}
		return p == uint32(port)
	})
}

// plainHTTP reports whether a clear HTTP port is the plain HTTP listener: 80, whatever that is bound
// to, or the port that it is bound to.
func (e *Edge) plainHTTP(p uint32) bool {
	return e.cfg.HTTPPort != 0 && (p == 80 || p == uint32(e.cfg.HTTPPort))
}

// serveClear serves a request in clear text. Its connection counts for the tunnel that the first one
// is for, since nothing told before which that is.
func (e *Edge) serveClear(w http.ResponseWriter, r *http.Request, t *hubv1.Tunnel) {
	if !front.Enter(r.Context(), func() (func(), bool) { return e.enter(t.GetId()) }) {
		w.Header().Set("Connection", "close")
		fail(w, r, reason.New(reason.RateLimited, reason.HopEdge, "%s has %d connections, its cap; raise --max-connections-per-tunnel", t.GetName(), e.cfg.MaxConnsPerTunnel))
		return
	}
	e.proxy.ServeHTTP(w, r)
}

// secureURL is where a request to port 80 is sent. Only path and query are the visitor's.
func secureURL(host string, port uint16, u *url.URL) (string, bool) {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if path[0] != '/' {
		return "", false
	}
	if port != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	target := "https://" + host + path
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	return target, true
}

// otherEdge carries a connection for another edge's name to that edge: a balancer in front of
// several may mix them up. It reports false for names of no edge we know.
func (e *Edge) otherEdge(ctx context.Context, c *front.Conn) bool {
	id, ok := strings.CutSuffix(c.ServerName, strings.TrimPrefix(e.name, e.cfg.Key.ID()))
	if !ok {
		return false
	}
	edge := e.view.Load().edges[id]
	if edge == nil || id == e.cfg.Key.ID() || !e.transit.enter(c.Visitor()) {
		return false
	}
	go func() {
		defer e.transit.leave()
		e.spliceTo(ctx, c, edge)
	}()
	return true
}

const (
	otherEdgeDial = 5 * time.Second
	maxTransit    = 1024
)

// transit are the connections carried to other edges. It breaks the loop that a wrong advertised
// address makes: a connection that we dialled ourselves is carried no further, and they are capped.
type transit struct {
	mu   sync.Mutex
	n    int
	ours map[netip.AddrPort]bool
}

func (t *transit) enter(from netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ours[from] || t.n >= maxTransit {
		return false
	}
	t.n++
	return true
}

func (t *transit) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
}

// dialled notes the address that our own connection comes from, until undo.
func (t *transit) dialled(c net.Conn) (undo func()) {
	ap := c.LocalAddr().(*net.TCPAddr).AddrPort()
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ours == nil {
		t.ours = map[netip.AddrPort]bool{}
	}
	t.ours[ap] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.ours, ap)
	}
}

func (e *Edge) spliceTo(ctx context.Context, c *front.Conn, edge *hubv1.Edge) {
	defer func() { _ = c.Close() }()
	for _, a := range edge.GetAddress().GetAddresses() {
		d := net.Dialer{Timeout: otherEdgeDial}
		up, err := d.DialContext(ctx, "tcp", a)
		if err != nil {
			e.cfg.Log.Debug("another edge is not reached", "edge", edge.GetAddress().GetId(), "address", a, "err", err)
			continue
		}
		undo := e.transit.dialled(up)
		relay(ctx, c, up.(*net.TCPConn))
		undo()
		return
	}
}

// relay copies both ways until both have ended or one failed.
func relay(ctx context.Context, c *front.Conn, up *net.TCPConn) {
	end := func() { _, _ = c.Close(), up.Close() }
	defer context.AfterFunc(ctx, end)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.Copy(up, c); err != nil {
			end()
		}
		_ = up.CloseWrite()
	}()
	if _, err := io.Copy(c, up); err != nil {
		end()
	}
	_ = c.CloseWrite()
	<-done
	_ = up.Close()
}
