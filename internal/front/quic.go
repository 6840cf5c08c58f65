package front

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/time/rate"

	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/hostname"
)

const (
	// Above this rate of new QUIC connections strangers must show that their address is theirs.
	retryRate, retryBurst = 200, 400
	// windows: the connection's never binds, so that stalled streams starve no others.
	connWindow   = 4 << 30
	streamWindow = 256 << 10
)

// quicSide is UDP 443: one socket, one transport, one listener.
type quicSide struct {
	front     *Front
	transport *quic.Transport
	listener  *quic.Listener
	socket    *net.UDPConn
	// shared is socket, where sessions can have it beside QUIC; else nil.
	shared *datagram.Carrier
	h3     *tls.Config
	server *http3.Server

	mu sync.Mutex
	// conns are visitors', sessions those of our protocols.
	conns    map[*quic.Conn]*h3Conn
	sessions map[*quic.Conn]struct{}
	// draining: idle HTTP/3 connections are closed.
	draining bool
}

// h3Conn counts the requests that run on a visitor's QUIC connection.
type h3Conn struct{ running atomic.Int64 }

type h3Key struct{}

func newQUICSide(f *Front, c *net.UDPConn) *quicSide {
	fresh := rate.NewLimiter(retryRate, retryBurst)
	q := &quicSide{front: f, socket: c, conns: map[*quic.Conn]*h3Conn{}, sessions: map[*quic.Conn]struct{}{}}
	reset := f.cfg.StatelessReset
	if reset == nil {
		reset = new([32]byte)
		_, _ = rand.Read(reset[:]) // never fails
	}
	conn, shared := datagram.Share(c)
	q.shared = shared
	q.transport = &quic.Transport{
		Conn:                conn,
		StatelessResetKey:   (*quic.StatelessResetKey)(reset),
		VerifySourceAddress: func(net.Addr) bool { return !fresh.Allow() },
	}
	return q
}

// listen starts the listener. Visitors' HTTP/3 and sessions share one quic.Config, because only
// the address is known when it is chosen.
func (q *quicSide) listen(r Roles) error {
	cfg := &quic.Config{
		HandshakeIdleTimeout:           authTimeout,
		MaxIdleTimeout:                 q.front.cfg.IdleTimeout,
		InitialStreamReceiveWindow:     streamWindow,
		InitialConnectionReceiveWindow: connWindow,
		MaxConnectionReceiveWindow:     connWindow,
		MaxIncomingStreams:             100,
		EnableDatagrams:                true,
		InitialPacketSize:              1200,
	}
	q.h3 = &tls.Config{GetCertificate: r.Certificate, NextProtos: []string{http3.NextProtoH3}, MinVersion: tls.VersionTLS13}
	q.server = &http3.Server{
		Handler:        q.handler(r.HTTP),
		MaxHeaderBytes: q.front.cfg.HeaderBytes,
		IdleTimeout:    q.front.cfg.IdleTimeout,
		ConnContext:    q.connContext,
		Logger:         slog.New(slog.DiscardHandler),
	}
	l, err := q.transport.Listen(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) { return q.choose(h), nil },
	}, cfg)
	if err != nil {
		return err
	}
	q.listener = l
	return nil
}

// choose is dispatch for QUIC. A configuration without certificates makes crypto/tls answer
// unrecognized_name: names of tls tunnels get it too, so that browsers go to TCP at once.
func (q *quicSide) choose(h *tls.ClientHelloInfo) *tls.Config {
	r := &q.front.roles
	nobody := &tls.Config{MinVersion: tls.VersionTLS13}
	name := ""
	if h.ServerName != "" {
		n, err := hostname.Normalize(h.ServerName)
		if err != nil {
			return nobody
		}
		name = n
	}
	own := name != "" && r.Own != nil && r.Own(name)
	if t := q.tunnel(name, h.Conn.LocalAddr()); t != nil {
		if t.Passthrough != nil {
			return nobody
		}
		return q.h3
	}
	if own || name == "" {
		for _, p := range r.Protocols {
			if p.QUIC != nil && slices.Contains(h.SupportedProtos, p.ALPN) {
				return p.TLS
			}
		}
	}
	if own {
		return q.h3
	}
	return nobody
}

// tunnel is what a server name means unless it is one of our own.
func (q *quicSide) tunnel(name string, local net.Addr) *Tunnel {
	r := &q.front.roles
	if name == "" || r.Tunnel == nil || r.Own != nil && r.Own(name) {
		return nil
	}
	return r.Tunnel(addrPort(local), name)
}

func (q *quicSide) accept() {
	for {
		c, err := q.listener.Accept(q.front.base)
		if err != nil {
			return
		}
		alpn := c.ConnectionState().TLS.NegotiatedProtocol
		if alpn == http3.NextProtoH3 {
			q.front.wg.Go(func() { q.visitor(c) })
			continue
		}
		i := slices.IndexFunc(q.front.roles.Protocols, func(p Protocol) bool { return p.ALPN == alpn && p.QUIC != nil })
		if i < 0 {
			_ = c.CloseWithError(0, "no such protocol")
			continue
		}
		q.front.wg.Go(func() { q.session(c, q.front.roles.Protocols[i].QUIC) })
	}
}

func (q *quicSide) session(c *quic.Conn, serve func(context.Context, *quic.Conn, *datagram.Carrier)) {
	q.mu.Lock()
	q.sessions[c] = struct{}{}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.sessions, c)
		q.mu.Unlock()
	}()
	serve(q.front.base, c, q.shared)
}

// visitor serves one HTTP/3 connection under the caps of all visitor connections.
func (q *quicSide) visitor(c *quic.Conn) {
	f := q.front
	addr := addrPort(c.RemoteAddr()).Addr()
	if !f.conns.AcquireTotal() {
		q.busy(c, "max_connections")
		return
	}
	defer f.conns.ReleaseTotal()
	if !f.conns.AcquireAddress(addr) {
		q.busy(c, "max_connections_per_address")
		return
	}
	defer f.conns.ReleaseAddress(addr)
	if t := q.tunnel(c.ConnectionState().TLS.ServerName, c.LocalAddr()); t != nil && t.Enter != nil {
		leave, ok := t.Enter()
		if !ok {
			q.busy(c, "max_connections_per_tunnel")
			return
		}
		defer leave()
	}
	f.metrics.open.Inc()
	defer f.metrics.open.Dec()
	q.mu.Lock()
	q.conns[c] = &h3Conn{}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.conns, c)
		q.mu.Unlock()
	}()
	if err := q.server.ServeQUICConn(c); err != nil && !errors.Is(err, http.ErrServerClosed) {
		f.cfg.Log.Debug("HTTP/3 connection ended", "visitor", c.RemoteAddr(), "err", err)
	}
	_ = c.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}

func (q *quicSide) busy(c *quic.Conn, why string) {
	q.front.metrics.refused.WithLabelValues(why).Inc()
	_ = c.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeExcessiveLoad), "")
}

// connContext bases requests on the visitors' context, like those over TCP.
func (q *quicSide) connContext(ctx context.Context, c *quic.Conn) context.Context {
	q.mu.Lock()
	hc := q.conns[c]
	q.mu.Unlock()
	ctx, end := WithVisitor(ctx)
	context.AfterFunc(c.Context(), end)
	return context.WithValue(ctx, h3Key{}, &h3Request{conn: c, state: hc})
}

type h3Request struct {
	conn  *quic.Conn
	state *h3Conn
}

// handler counts what runs, so that a connection can be closed after its last request while the
// front drains, and ends requests with the visitors' context.
func (q *quicSide) handler(h http.Handler) http.Handler {
	if h == nil {
		h = http.NotFoundHandler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(h3Key{}).(*h3Request)
		if at == nil || at.state == nil {
			h.ServeHTTP(w, r)
			return
		}
		at.state.running.Add(1)
		defer func() {
			if at.state.running.Add(-1) == 0 {
				q.closeIfDraining(at.conn)
			}
		}()
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		stop := context.AfterFunc(q.front.visits, func() { cancel(context.Cause(q.front.visits)) })
		defer stop()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// closeIfDraining lets what was written leave first: the stream's end is sent after the handler.
func (q *quicSide) closeIfDraining(c *quic.Conn) {
	q.mu.Lock()
	draining := q.draining
	q.mu.Unlock()
	if draining {
		time.AfterFunc(h3Linger, func() { q.closeIdle(c) })
	}
}

// h3Linger is what a client gets to acknowledge its last answer and to see the GOAWAY.
const h3Linger = 250 * time.Millisecond

func (q *quicSide) closeIdle(c *quic.Conn) {
	q.mu.Lock()
	s := q.conns[c]
	q.mu.Unlock()
	if s != nil && s.running.Load() == 0 {
		_ = c.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
	}
}

// shutdown sends GOAWAY, closes connections when their last request ended, and waits for that
// until ctx ends.
func (q *quicSide) shutdown(ctx context.Context) {
	if q.server == nil {
		return
	}
	q.mu.Lock()
	q.draining = true
	open := slices.Collect(maps.Keys(q.conns))
	q.mu.Unlock()
	t := time.AfterFunc(h3Linger, func() {
		for _, c := range open {
			q.closeIdle(c)
		}
	})
	defer t.Stop()
	_ = q.server.Shutdown(ctx)
}

func (q *quicSide) visitors() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.conns)
}

func (q *quicSide) closeVisitors() {
	q.mu.Lock()
	open := slices.Collect(maps.Keys(q.conns))
	q.mu.Unlock()
	for _, c := range open {
		_ = c.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
	}
}

// close ends what is left. The transport would drop connections without a word.
func (q *quicSide) close() {
	q.mu.Lock()
	sessions := slices.Collect(maps.Keys(q.sessions))
	q.mu.Unlock()
	for _, c := range sessions {
		_ = c.CloseWithError(0, "the edge shuts down")
	}
	if q.server != nil {
		_ = q.server.Close()
	}
	if q.listener != nil {
		_ = q.listener.Close()
	}
	_ = q.transport.Close()
	_ = q.socket.Close()
}
