// Package linktest has the conformance suite of sessions, Run, and the two ends it needs on
// loopback. A new carrier adds a line to the suite's test.
package linktest

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// HubHost is the hub of all tests.
const HubHost = "hub.test"

// Token is a token known to an Edge.
type Token struct {
	Keys       *identity.TokenKeys
	Credential *hubv1.Credential
}

// NewToken makes a token.
func NewToken(t testing.TB) *Token {
	t.Helper()
	tok, err := identity.NewToken(identity.KindInvite, "https://"+HubHost, [][]byte{make([]byte, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	pub := keys.Public()
	return &Token{Keys: keys, Credential: &hubv1.Credential{
		TokenId: pub.HexID(), Name: "test", Ed25519Public: pub.Ed25519, Mldsa65Public: pub.MLDSA65,
	}}
}

// Edge is an acceptor behind one port for QUIC, TLS and WebSockets.
type Edge struct {
	Acceptor *link.Acceptor
	Key      *identity.NodeKey
	Addr     netip.AddrPort

	mu     sync.Mutex
	tokens map[string]*hubv1.Credential
	joined chan *link.Replica
	left   chan *link.Replica
	cancel context.CancelFunc
	close  func()
	mute   func()
	once   sync.Once
}

// NewEdge starts an edge that admits tokens; it ends with the test. configure may be nil.
func NewEdge(t testing.TB, tokens []*Token, configure func(*link.AcceptorConfig)) *Edge {
	t.Helper()
	return NewEdgeAt(t, "127.0.0.1:0", nil, tokens, configure)
}

// NewEdgeAt is NewEdge at an address and with a key (nil = a new one): a restarted edge.
func NewEdgeAt(t testing.TB, addr string, key *identity.NodeKey, tokens []*Token, configure func(*link.AcceptorConfig)) *Edge {
	t.Helper()
	if key == nil {
		var err error
		if key, err = identity.NewNodeKey(); err != nil {
			t.Fatal(err)
		}
	}
	e := &Edge{Key: key, tokens: map[string]*hubv1.Credential{}, joined: make(chan *link.Replica, 1024), left: make(chan *link.Replica, 1024)}
	for _, tok := range tokens {
		e.tokens[tok.Credential.TokenId] = tok.Credential
	}
	cfg := link.AcceptorConfig{
		Key: key,
		Admit: func(o *wirev1.Opening, _ netip.AddrPort) link.Admission {
			e.mu.Lock()
			defer e.mu.Unlock()
			return link.Admission{Credential: e.tokens[hex.EncodeToString(o.TokenId)]}
		},
		Edges: func() []*wirev1.EdgeAddress { return []*wirev1.EdgeAddress{e.Address()} },
		Serve: func(_ *link.Replica, ids []string) []*wirev1.TunnelVerdict {
			var out []*wirev1.TunnelVerdict
			for _, id := range ids {
				out = append(out, &wirev1.TunnelVerdict{TunnelId: id, Verdict: string(reason.OK)})
			}
			return out
		},
		Joined: func(r *link.Replica) { e.joined <- r },
		Left:   func(r *link.Replica) { e.left <- r },
		Log:    Log(t),
	}
	if configure != nil {
		configure(&cfg)
	}
	e.Acceptor = link.NewAcceptor(cfg)
	e.listen(t, addr)
	t.Cleanup(e.Close)
	return e
}

// Address is how agents dial the edge.
func (e *Edge) Address() *wirev1.EdgeAddress {
	return &wirev1.EdgeAddress{Id: e.Key.ID(), Addresses: []string{e.Addr.String()}, KeyHash: e.Key.Hash()}
}

// Replica waits for a replica to join.
func (e *Edge) Replica(t testing.TB) *link.Replica {
	t.Helper()
	return wait(t, e.joined, "no replica joined")
}

// Left waits for a replica to leave.
func (e *Edge) Left(t testing.TB) *link.Replica {
	t.Helper()
	return wait(t, e.left, "no replica left")
}

// Set changes a token's credential; nil forgets the token.
func (e *Edge) Set(tok *Token, c *hubv1.Credential) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tokens[tok.Credential.TokenId] = c
}

// Close ends the edge.
func (e *Edge) Close() { e.once.Do(e.close) }

// Kill ends the edge as a crash does: nothing more is sent.
func (e *Edge) Kill() {
	e.mute()
	e.Close()
}

func (e *Edge) listen(t testing.TB, addr string) {
	t.Helper()
	tcp, udp, err := bind(addr)
	if err != nil {
		t.Fatal(err)
	}
	e.Addr = tcp.Addr().(*net.TCPAddr).AddrPort()
	reset := quic.StatelessResetKey(e.Key.Derive("stateless reset"))
	conn, shared := datagram.Share(udp)
	tr := &quic.Transport{Conn: conn, StatelessResetKey: &reset}
	ql, err := tr.Listen(e.Acceptor.TLSConfig(), &quic.Config{
		InitialStreamReceiveWindow: 256 << 10, MaxStreamReceiveWindow: 8 << 20,
		InitialConnectionReceiveWindow: 4 << 30, MaxConnectionReceiveWindow: 4 << 30,
		MaxIncomingStreams: 100, InitialPacketSize: 1200, EnableDatagrams: true, MaxIdleTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(context.Background())
	var wg sync.WaitGroup
	web := &queueListener{conns: make(chan net.Conn), done: make(chan struct{}), addr: tcp.Addr()}
	mux := http.NewServeMux()
	mux.Handle("GET /.adit/session", e.Acceptor)
	srv := &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	conf := &tls.Config{
		Certificates: []tls.Certificate{e.Key.Certificate()}, NextProtos: []string{"http/1.1"},
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			for _, p := range h.SupportedProtos {
				if p == opening.ALPNSession {
					return e.Acceptor.TLSConfig(), nil
				}
			}
			return nil, nil
		},
	}
	wg.Go(func() { _ = srv.Serve(web) })
	wg.Go(func() {
		for {
			c, err := ql.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { e.Acceptor.ServeQUIC(ctx, c, shared) })
		}
	})
	wg.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { e.dispatch(ctx, c, conf, web) })
		}
	})
	e.mute = func() { _ = udp.Close() }
	e.close = func() {
		_ = tcp.Close()
		_ = ql.Close()
		_ = e.Acceptor.Close()
		e.cancel()
		_ = srv.Close()
		_ = web.Close()
		_ = tr.Close()
		_ = udp.Close()
		wg.Wait()
	}
}

func (e *Edge) dispatch(ctx context.Context, c net.Conn, conf *tls.Config, web *queueListener) {
	_ = c.SetReadDeadline(time.Now().Add(opening.Timeout))
	sniffed := &sniffedConn{Conn: c, replay: make([]byte, 1)}
	if _, err := io.ReadFull(c, sniffed.replay); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	if sniffed.replay[0] != 0x16 {
		e.Acceptor.ServeRaw(ctx, sniffed)
		return
	}
	tc := tls.Server(link.WrapTCP(sniffed), conf)
	hctx, cancel := context.WithTimeout(ctx, opening.Timeout)
	defer cancel()
	if err := tc.HandshakeContext(hctx); err != nil {
		_ = c.Close()
		return
	}
	if tc.ConnectionState().NegotiatedProtocol == opening.ALPNSession {
		e.Acceptor.ServeTLS(ctx, tc)
		return
	}
	select {
	case web.conns <- tc:
	case <-web.done:
		_ = c.Close()
	}
}

// sniffedConn replays what was read of it.
type sniffedConn struct {
	net.Conn
	replay []byte
}

func (c *sniffedConn) NetConn() net.Conn { return c.Conn }

func (c *sniffedConn) Take() []byte {
	b := c.replay
	c.replay = nil
	return b
}

func (c *sniffedConn) Read(p []byte) (int, error) {
	if len(c.replay) > 0 {
		n := copy(p, c.replay)
		c.replay = c.replay[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// bind binds TCP and UDP to the same port.
func bind(addr string) (net.Listener, *net.UDPConn, error) {
	var err error
	for range 20 {
		var tcp net.Listener
		if tcp, err = net.Listen("tcp", addr); err != nil {
			return nil, nil, err
		}
		ap := tcp.Addr().(*net.TCPAddr).AddrPort()
		var udp *net.UDPConn
		if udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(ap)); err == nil {
			return tcp, udp, nil
		}
		_ = tcp.Close()
	}
	return nil, nil, err
}

// queueListener gives connections that were accepted elsewhere to an http.Server.
type queueListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	addr  net.Addr
}

func (l *queueListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *queueListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *queueListener) Addr() net.Addr { return l.addr }

// Agent is a running connector.
type Agent struct {
	*link.Connector
	ReplicaID []byte
	stop      func()
}

// NewAgent runs a connector with tok towards e until the test ends. configure may be nil.
func NewAgent(t testing.TB, e *Edge, tok *Token, h link.Handler, configure func(*link.ConnectorConfig)) *Agent {
	t.Helper()
	d := NewDialler(t, tok)
	cfg := link.ConnectorConfig{Dialler: d, Edge: e.Address(), HubHost: HubHost, Handler: h, Log: Log(t)}
	if configure != nil {
		configure(&cfg)
	}
	a := &Agent{Connector: link.NewConnector(cfg), ReplicaID: d.ReplicaID}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	a.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(a.stop)
	return a
}

// Stop ends the agent and waits.
func (a *Agent) Stop() { a.stop() }

// NewDialler makes who opens sessions: a fresh replica of tok.
func NewDialler(t testing.TB, tok *Token) *opening.Dialler {
	t.Helper()
	node, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	return &opening.Dialler{
		Role: wirev1.Role_ROLE_AGENT, Keys: tok.Keys, Node: node, ReplicaID: node.Hash()[:16], HostName: "host", Software: "test",
	}
}

// HandlerFunc serves streams and no flows.
type HandlerFunc func(ctx context.Context, in link.Incoming)

// ServeStream implements link.Handler.
func (f HandlerFunc) ServeStream(ctx context.Context, in link.Incoming) { f(ctx, in) }

// ServeFlow implements link.Handler.
func (f HandlerFunc) ServeFlow(link.Flow, *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	return nil, reason.New(reason.NotFound, reason.HopAgent, "no flows here")
}

// Log writes to the test's log when it is verbose.
func Log(t testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal(what)
		panic(errors.New(what))
	}
}

// OpenRaw sends an opening as it is and returns the reply, a refusal as *reason.Error.
func OpenRaw(c opening.Conn, o *wirev1.Opening) (*wirev1.OpeningReply, error) {
	if err := wire.WriteFrame(c, o, wire.MaxOpening); err != nil {
		return nil, err
	}
	reply := &wirev1.OpeningReply{}
	if err := wire.ReadFrame(c, reply, wire.MaxOpening); err != nil {
		return nil, err
	}
	if r := reply.GetRefusal(); r != nil {
		return nil, reason.FromRefusal(r)
	}
	return reply, nil
}
