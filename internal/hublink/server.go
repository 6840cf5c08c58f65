package hublink

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// maxStrangers caps the connections of one address (IPv6: one /64) that have proved nothing:
// machines before their opening is accepted, and people's tools, whose key comes per request.
const maxStrangers = 128

// ServerConfig is the hub's side.
type ServerConfig struct {
	Key *identity.NodeKey
	// Credential looks up a token id (hex); nil = unknown.
	Credential func(ctx context.Context, tokenID string) (*hubv1.Credential, error)
	// Known tells whether a replica with this node key was admitted before: then the expiry of its
	// token, which bounds new replicas, does not refuse it. Nil knows none.
	Known func(tokenID string, replica []byte, node ed25519.PublicKey) bool
	// Admit may refuse a caller whose proof is good; nil admits all.
	Admit func(ctx context.Context, c *Caller) *reason.Error
	// Handler serves the API. Machine callers are in the context.
	Handler http.Handler
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Server takes adit-hub/1 connections.
type Server struct {
	cfg   ServerConfig
	tls   *tls.Config
	http  *http.Server
	ready chan *conn
	done  chan struct{}
	wg    sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	strangers map[netip.Addr]int
	// byToken holds every connection that named a token, from before its proof is checked, so
	// that a revocation during the check closes it too.
	byToken map[string]map[*conn]struct{}
}

// NewServer returns a server; connections are handed to it by the front.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, ready: make(chan *conn), done: make(chan struct{}),
		strangers: map[netip.Addr]int{}, byToken: map[string]map[*conn]struct{}{},
	}
	s.tls = &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{opening.ALPNHub},
		Certificates: []tls.Certificate{cfg.Key.Certificate()},
		// The certificate only carries a key; the opening says whose it is.
		ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return nil
			}
			_, err := identity.PeerKey(cs)
			return err
		},
		SessionTicketsDisabled: true,
	}
	s.http = &http.Server{
		Handler: cfg.Handler, Protocols: priorKnowledge(), HTTP2: http2Config(),
		ReadHeaderTimeout: opening.Timeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if c, ok := c.(*conn); ok && c.caller != nil {
				return WithCaller(ctx, c.caller)
			}
			return ctx
		},
	}
	s.wg.Go(func() { _ = s.http.Serve(listener{s}) })
	return s
}

// TLSConfig is for ALPN adit-hub/1: the hub's identity certificate, client certificate optional.
func (s *Server) TLSConfig() *tls.Config { return s.tls }

// ServeTLS takes a connection after its handshake and returns when it ends. With a client
// certificate an opening comes first; without one it is a person's tool and HTTP/2 starts at once.
func (s *Server) ServeTLS(ctx context.Context, c *tls.Conn) { s.serve(ctx, c, c.RemoteAddr()) }

// ServeHTTP takes GET /.adit/hub (WebSocket): the same mutual TLS runs inside.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // Accept has answered
	}
	if ws.Subprotocol() != subprotocol {
		_ = ws.Close(websocket.StatusPolicyViolation, "subprotocol "+subprotocol+" is required")
		return
	}
	remote := net.Addr(&net.TCPAddr{})
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		remote = net.TCPAddrFromAddrPort(ap)
	}
	sock := newSocket(ws, remote)
	defer func() { _ = sock.Close() }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), opening.Timeout)
	defer cancel()
	c := tls.Server(sock, s.tls)
	if err := c.HandshakeContext(ctx); err != nil {
		s.cfg.Log.Debug("hub link over WebSocket: handshake failed", "remote", remote.String(), "error", err)
		return
	}
	s.serve(context.WithoutCancel(r.Context()), c, remote)
}

func (s *Server) serve(ctx context.Context, t *tls.Conn, remote net.Addr) {
	c := &conn{plainConn: plainConn{Conn: t, remote: remote}, s: s, gone: make(chan struct{})}
	defer func() { _ = c.Close() }()
	leave, ok := s.stranger(remote)
	if !ok {
		s.cfg.Log.Warn("hub link refused: too many connections of one address that proved nothing", "remote", remote.String())
		return
	}
	defer leave()
	if len(t.ConnectionState().PeerCertificates) > 0 {
		if !s.open(ctx, c, t) {
			return
		}
		leave()
	}
	select {
	case s.ready <- c:
	case <-s.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-c.gone:
	case <-ctx.Done():
	}
}

// open reads and checks the opening of c.
func (s *Server) open(ctx context.Context, c *conn, t *tls.Conn) bool {
	log := s.cfg.Log.With("remote", c.RemoteAddr().String())
	o, err := opening.Read(ctx, t, reason.HopHub)
	if err != nil {
		log.Debug("hub link: no opening", "error", err)
		return false
	}
	id := hex.EncodeToString(o.TokenId)
	if !s.track(id, c) {
		return false
	}
	caller, e := s.check(ctx, o, t, c.RemoteAddr())
	if e != nil {
		log.Info("hub link refused", "reason", e.Code, "token", id, "host", o.HostName, "detail", e.Detail)
		opening.Refuse(t, e)
		return false
	}
	c.caller = caller
	if err := opening.Accept(t, o, nil); err != nil {
		log.Debug("hub link: answer failed", "error", err)
		return false
	}
	return true
}

func (s *Server) check(ctx context.Context, o *wirev1.Opening, t *tls.Conn, remote net.Addr) (*Caller, *reason.Error) {
	if o.Lane != nil {
		return nil, reason.New(reason.ProofInvalid, reason.HopHub, "lanes go to edges, not to the hub")
	}
	if len(o.ReplicaId) != 16 {
		return nil, reason.New(reason.Invalid, reason.HopHub, "replica id has %d bytes, want 16", len(o.ReplicaId))
	}
	cred, err := s.cfg.Credential(ctx, hex.EncodeToString(o.TokenId))
	if err != nil {
		var e *reason.Error
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, reason.Wrap(err, reason.StoreUnavailable, reason.HopHub, "the hub cannot look up tokens now")
	}
	cs := t.ConnectionState()
	node, err := identity.PeerKey(cs)
	if err != nil {
		return nil, reason.Wrap(err, reason.ProofInvalid, reason.HopHub, "no node key")
	}
	if cred.GetExpiresAt() != nil && !cred.GetExpiresSessions() && s.cfg.Known != nil && s.cfg.Known(cred.GetTokenId(), o.ReplicaId, node) {
		cred = proto.CloneOf(cred)
		cred.ExpiresAt = nil
	}
	if e := opening.Verify(o, cred, s.cfg.Key.Public(), cs, reason.HopHub, s.cfg.Now()); e != nil {
		return nil, e
	}
	if !slices.Contains(roleKinds[o.Role], cred.Kind) {
		return nil, reason.New(reason.TokenWrongKind, reason.HopHub, "the token %q is of kind %q; %s", cred.Name, cred.Kind, wrongKindRemedy(o.Role))
	}
	if !From(cred, remote) {
		return nil, reason.New(reason.SourceDenied, reason.HopHub, "the token %q may not be used from %s; its invite allows %v", cred.Name, remote, cred.From)
	}
	caller := &Caller{
		Role: o.Role, Credential: cred, NodeKey: node, ReplicaID: o.ReplicaId,
		HostName: clip(o.HostName), Software: clip(o.Software), Remote: remote,
	}
	if s.cfg.Admit != nil {
		if e := s.cfg.Admit(ctx, caller); e != nil {
			return nil, e
		}
	}
	return caller, nil
}

// CloseToken closes the connections of a revoked token.
func (s *Server) CloseToken(tokenID string) {
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.byToken[tokenID]))
	for c := range s.byToken[tokenID] {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// Close ends all connections: gracefully until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.wg.Wait()
	return err
}

// stranger counts a connection that has proved nothing; the returned function may be called twice.
func (s *Server) stranger(remote net.Addr) (func(), bool) {
	ap, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return func() {}, true
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64)
		a = p.Addr()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strangers[a] >= maxStrangers {
		return nil, false
	}
	s.strangers[a]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.strangers[a]--; s.strangers[a] == 0 {
			delete(s.strangers, a)
		}
	}), true
}

func (s *Server) track(tokenID string, c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.byToken[tokenID] == nil {
		s.byToken[tokenID] = map[*conn]struct{}{}
	}
	s.byToken[tokenID][c] = struct{}{}
	c.token = tokenID
	return true
}

// conn is a connection that net/http serves; its end is signalled to ServeTLS.
type conn struct {
	plainConn
	s     *Server
	token string
	once  sync.Once
	gone  chan struct{}
}

func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.s.mu.Lock()
		if m := c.s.byToken[c.token]; m != nil {
			delete(m, c)
			if len(m) == 0 {
				delete(c.s.byToken, c.token)
			}
		}
		c.s.mu.Unlock()
		close(c.gone)
		err = c.Conn.Close()
	})
	return err
}

// listener feeds accepted connections to net/http.
type listener struct{ s *Server }

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.s.ready:
		return c, nil
	case <-l.s.done:
		return nil, net.ErrClosed
	}
}

func (l listener) Close() error { return nil }

func (l listener) Addr() net.Addr { return &net.TCPAddr{} }

func clip(s string) string {
	if len(s) > 255 {
		s = s[:255]
	}
	return s
}
