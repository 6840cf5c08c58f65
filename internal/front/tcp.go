package front

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"time"

	"github.com/adit-dev/adit/internal/front/sniff"
)

const (
	alpnACME = "acme-tls/1"
	// authTimeout bounds a handshake under a protocol of ours: nobody is authenticated before.
	authTimeout = 5 * time.Second
)

// alert is a fatal unrecognized_name (RFC 6066) as a TLS record.
var alert = []byte{21, 3, 3, 0, 2, 2, 112}

// phase is how far a tracked connection is.
type phase int

const (
	phaseHello   phase = iota // nobody's yet
	phaseVisitor              // somebody serves it
)

// accept takes connections of l until it is closed and serves each in a goroutine.
func (f *Front) accept(l net.Listener, serve func(*Conn)) {
	var pause time.Duration
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely: others will free some.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			f.cfg.Log.Error("accept failed", "address", l.Addr(), "err", err, "pause", pause)
			select {
			case <-time.After(pause):
				continue
			case <-f.closing:
				return
			}
		}
		pause = 0
		if !f.room(c) {
			continue
		}
		f.wg.Go(func() {
			if fc := f.admit(c); fc != nil {
				serve(fc)
			}
		})
	}
}

// room takes a place for c, or closes it.
func (f *Front) room(c net.Conn) bool {
	if f.conns.AcquireTotal() {
		return true
	}
	f.metrics.refused.WithLabelValues("max_connections").Inc()
	_ = c.Close()
	return false
}

// ServeClear takes over a connection that somebody else accepted on a port for clear HTTP;
// Roles.PlainHTTP serves it, and ClearPort tells its requests by port. It does not wait.
func (f *Front) ServeClear(c net.Conn, port uint16) {
	if !f.room(c) {
		return
	}
	f.mu.Lock()
	stopped := f.stopped
	if !stopped {
		f.wg.Add(1)
	}
	f.mu.Unlock()
	if stopped {
		_ = c.Close()
		f.conns.ReleaseTotal()
		return
	}
	go func() {
		defer f.wg.Done()
		fc := f.admit(c)
		if fc == nil {
			return
		}
		fc.clearPort = port
		select {
		case <-f.serving:
			f.servePlain(fc)
		case <-f.closing:
			_ = fc.Close()
		}
	}()
}

// admit finds out who c is from and gives it its places; nil when it was closed.
func (f *Front) admit(c net.Conn) *Conn {
	fc, err := Resolve(c, f.cfg.ProxyFrom)
	if err != nil {
		f.refuse(c, "proxy_header", err)
		f.conns.ReleaseTotal()
		return nil
	}
	visitor := fc.remote.Addr()
	if !f.conns.AcquireAddress(visitor) {
		f.refuse(c, "max_connections_per_address", nil)
		f.conns.ReleaseTotal()
		return nil
	}
	f.metrics.open.Inc()
	fc.holds(func() {
		f.metrics.open.Dec()
		f.conns.ReleaseAddress(visitor)
		f.conns.ReleaseTotal()
		f.forget(fc)
	})
	f.track(fc, phaseHello)
	return fc
}

func (f *Front) refuse(c net.Conn, why string, err error) {
	f.metrics.refused.WithLabelValues(why).Inc()
	f.cfg.Log.Debug("connection refused", "peer", c.RemoteAddr(), "reason", why, "err", err)
	_ = c.Close()
}

// track notes how far c is. Once the front stops, a connection that nobody served yet is closed.
func (f *Front) track(c *Conn, p phase) bool {
	f.mu.Lock()
	if f.stopped && f.open[c] == phaseHello {
		f.mu.Unlock()
		_ = c.Close()
		return false
	}
	f.open[c] = p
	f.mu.Unlock()
	return true
}

// forget ends the wait for c.
func (f *Front) forget(c *Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.open[c]; !ok {
		return
	}
	delete(f.open, c)
	if f.stopped && len(f.open) == 0 {
		close(f.empty)
	}
}

// handOver ends the front's interest in c, whose owner closes it.
func (f *Front) handOver(c *Conn) { c.done() }

// servePlain serves port 80.
func (f *Front) servePlain(c *Conn) {
	if f.roles.PlainHTTP == nil {
		_ = c.Close()
		return
	}
	if f.track(c, phaseVisitor) {
		f.plainFeed.give(c, f.closing)
	}
}

// serveTLS reads the hello and gives the connection to whom it is for.
func (f *Front) serveTLS(c *Conn) {
	_ = c.SetReadDeadline(time.Now().Add(f.cfg.HelloTimeout))
	h, raw, err := sniff.Read(c, f.cfg.HelloBytes)
	c.replay = raw
	switch {
	case err == nil:
	case errors.Is(err, sniff.ErrServerName):
		f.unrecognized(c, err)
		return
	case errors.Is(err, sniff.ErrNotTLS) && f.roles.Raw != nil:
		if c.SetReadDeadline(time.Time{}) == nil && f.track(c, phaseVisitor) {
			// As with protocols: it holds its places until it is proven, but nobody waits for it.
			f.forget(c)
			f.roles.Raw(f.base, c)
			f.handOver(c)
		}
		return
	default:
		f.refuse(c, helloProblem(err), err)
		return
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		_ = c.Close()
		return
	}
	c.ServerName, c.Hello = h.ServerName, raw
	f.dispatch(c, h)
}

func helloProblem(err error) string {
	switch {
	case errors.Is(err, sniff.ErrNotTLS):
		return "not_tls"
	case errors.Is(err, sniff.ErrTooLarge):
		return "hello_too_large"
	case errors.Is(err, sniff.ErrMalformed):
		return "hello_malformed"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "hello_timeout"
	default:
		return "hello_incomplete"
	}
}

// dispatch is the order of design: names of our own, tunnels by server name whatever their ALPN,
// then protocols of ours by ALPN, and nothing else.
func (f *Front) dispatch(c *Conn, h *sniff.Hello) {
	r := &f.roles
	own := h.ServerName != "" && r.Own != nil && r.Own(h.ServerName)
	if !own && h.ServerName != "" && r.Tunnel != nil {
		if t := r.Tunnel(c.local, h.ServerName); t != nil {
			f.serveTunnel(c, h, t)
			return
		}
	}
	p := f.protocol(h)
	switch {
	case p != nil && p.TCP != nil && (own || h.ServerName == ""):
		f.serveProtocol(c, p)
	case p != nil && r.OtherEdge != nil && h.ServerName != "" && r.OtherEdge(f.base, c):
		f.handOver(c)
	case own:
		f.serveVisitor(c, h)
	default:
		f.unrecognized(c, nil)
	}
}

// protocol is the first of ours that the client offers.
func (f *Front) protocol(h *sniff.Hello) *Protocol {
	for i := range f.roles.Protocols {
		if p := &f.roles.Protocols[i]; h.Offers(p.ALPN) {
			return p
		}
	}
	return nil
}

func (f *Front) serveTunnel(c *Conn, h *sniff.Hello, t *Tunnel) {
	if t.Passthrough == nil {
		if t.Enter != nil {
			leave, ok := t.Enter()
			if !ok {
				f.refuse(c, "max_connections_per_tunnel", nil)
				return
			}
			c.holds(leave)
		}
		f.serveVisitor(c, h)
		return
	}
	if f.track(c, phaseVisitor) {
		t.Passthrough(f.visits, c)
		_ = c.Close()
	}
}

// serveVisitor ends TLS here.
func (f *Front) serveVisitor(c *Conn, h *sniff.Hello) {
	if !f.track(c, phaseVisitor) {
		return
	}
	if !h.Offers(alpnACME) {
		f.tlsFeed.give(tls.Server(c, f.tls), f.closing)
		return
	}
	// A validating CA only wants to see the certificate.
	tc := tls.Server(c, f.acme)
	ctx, cancel := context.WithTimeout(f.base, authTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		f.cfg.Log.Debug("acme-tls/1 handshake failed", "server_name", c.ServerName, "err", err)
	}
	_ = tc.Close()
}

func (f *Front) serveProtocol(c *Conn, p *Protocol) {
	var below net.Conn = c
	if p.Wrap != nil {
		below = p.Wrap(c)
	}
	tc := tls.Server(below, p.TLS)
	ctx, cancel := context.WithTimeout(f.base, authTimeout)
	err := tc.HandshakeContext(ctx)
	cancel()
	if err != nil {
		f.refuse(c, "handshake", err)
		return
	}
	if tc.ConnectionState().NegotiatedProtocol != p.ALPN {
		f.refuse(c, "handshake", errors.New("no protocol was negotiated"))
		return
	}
	// It holds its places until it is proven or refused, but nobody waits for it.
	f.forget(c)
	p.TCP(f.base, tc)
	f.handOver(c)
}

// unrecognized says that nobody here has the name.
func (f *Front) unrecognized(c *Conn, err error) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write(alert)
	f.refuse(c, "unrecognized_name", err)
}
