package link

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// AcceptorConfig is the edge's side of sessions.
type AcceptorConfig struct {
	// Key is the edge's identity.
	Key *identity.NodeKey
	// Admit looks up the token of an opening that comes from remote. The acceptor checks the
	// proof itself.
	Admit func(o *wirev1.Opening, remote netip.AddrPort) Admission
	// Enrol is asked after the proof of an opening, before its session exists; it may wait a few
	// seconds, until ctx ends. Done is called when the session exists or has failed. Nil = all may.
	Enrol func(ctx context.Context, o *wirev1.Opening) (done func(), refusal *reason.Error)
	// Health is called when a replica names the origins that fail its checks (the full set). Nil =
	// nobody wants to know.
	Health func(r *Replica, failing []*wirev1.TunnelHealth)
	// Edges is the list given to agents in replies.
	Edges func() []*wirev1.EdgeAddress
	// Serve is called when a replica names the full set of tunnels it serves now; it answers one
	// verdict per id.
	Serve func(r *Replica, tunnelIDs []string) []*wirev1.TunnelVerdict
	// Joined is called with a replica's first session, Left after its last one ended.
	Joined, Left func(r *Replica)
	// Drains is called when a replica announced that it ends and no session of it takes new
	// streams: what holds idle streams on it should give them up. Nil = nobody.
	Drains func(r *Replica)
	// Short is called when streams of a replica want lanes and it has as many as there may be: what
	// holds idle streams on it should give them up. At most ten times a second. Nil = nobody.
	Short func(r *Replica)
	// MaxLanes caps lanes per replica; 0 = 4096 without QUIC, 256 beside it.
	MaxLanes int
	Log      *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer

	timing *timing // tests
}

// Acceptor takes the sessions and lanes of agents at one edge.
type Acceptor struct {
	cfg     AcceptorConfig
	timing  timing
	log     *slog.Logger
	metrics *metrics
	tls     *tls.Config
	gate    gate
	wg      sync.WaitGroup  // connections being opened, replicas being closed
	ctx     context.Context // ends with Close: nobody waits for the unproven
	cancel  context.CancelFunc

	mu       sync.Mutex
	replicas map[replicaKey]*Replica
	raw      map[[rawIDSize]byte]*session // by the id that vouches for raw lanes
	draining bool
	closed   bool
}

// NewAcceptor returns an acceptor; connections are handed to it by the front.
func NewAcceptor(cfg AcceptorConfig) *Acceptor {
	a := &Acceptor{cfg: cfg, timing: defaultTiming(), log: cfg.Log, metrics: edgeMetrics(cfg.Registry), replicas: map[replicaKey]*Replica{}, raw: map[[rawIDSize]byte]*session{}}
	if cfg.timing != nil {
		a.timing = *cfg.timing
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
		a.cfg.Log = a.log
	}
	if cfg.Edges == nil {
		a.cfg.Edges = func() []*wirev1.EdgeAddress { return nil }
	}
	if cfg.Serve == nil {
		a.cfg.Serve = func(*Replica, []string) []*wirev1.TunnelVerdict { return nil }
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.tls = a.newTLSConfig()
	return a
}

func (a *Acceptor) newTLSConfig() *tls.Config {
	c := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{a.cfg.Key.Certificate()},
		NextProtos:   []string{opening.ALPNSession},
		ClientAuth:   tls.RequireAnyClientCert,
		// Also after resumption. Who may open is decided by the opening's proof.
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := identity.PeerKey(cs)
			return err
		},
		DynamicRecordSizingDisabled: true, // lanes size their records
	}
	// Ticket keys of its own: a visitor's ticket must never resume into a session.
	var key [32]byte
	_, _ = rand.Read(key[:])
	c.SetSessionTicketKeys([][32]byte{key})
	return c
}

// TLSConfig is for ALPN adit/1, TCP and QUIC alike: the identity certificate, client
// certificate required, ticket keys of its own.
func (a *Acceptor) TLSConfig() *tls.Config { return a.tls }

// ServeTLS takes a TCP connection after its handshake: a session or a lane. It returns when the
// connection has been handed over or refused.
func (a *Acceptor) ServeTLS(ctx context.Context, c *tls.Conn) {
	leave, ok := a.enter(addrPort(c.RemoteAddr()))
	if !ok {
		_ = c.NetConn().Close()
		return
	}
	defer leave()
	a.serveTCP(ctx, c, CarrierTLS)
}

func (a *Acceptor) serveTCP(ctx context.Context, c *tls.Conn, carrier string) {
	remote := addrPort(c.RemoteAddr())
	defer context.AfterFunc(a.ctx, func() { _ = c.NetConn().Close() })()
	o, err := opening.Read(ctx, c, reason.HopEdge)
	if err != nil {
		a.log.Debug("connection without a valid opening", "remote", remote, "error", err)
		_ = c.Close()
		return
	}
	if o.Lane != nil {
		if e := a.acceptLane(c, o); e != nil {
			a.refuse(c, remote, e)
			_ = c.Close()
		}
		return
	}
	b := &binding{
		carrier: carrier, ctl: c, cs: c.ConnectionState(), local: c.LocalAddr(), remote: c.RemoteAddr(),
		close: func(error) { _ = c.NetConn().Close() },
	}
	if _, e := a.acceptSession(o, b); e != nil {
		a.refuse(c, remote, e)
		_ = c.Close()
	}
}

// ServeQUIC takes a QUIC connection under adit/1 and returns when it ends. shared is its socket,
// nil where QUIC has it alone.
func (a *Acceptor) ServeQUIC(ctx context.Context, c *quic.Conn, shared *datagram.Carrier) {
	remote := addrPort(c.RemoteAddr())
	leave, ok := a.enter(remote)
	if !ok {
		_ = c.CloseWithError(quicCodeRefused, string(reason.RateLimited))
		return
	}
	s, err := a.openQUIC(ctx, c, shared, remote)
	leave()
	if err != nil {
		a.log.Debug("QUIC session refused", "remote", remote, "error", err)
		return
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		s.close(ctx.Err())
		<-s.done
	}
}

func (a *Acceptor) openQUIC(ctx context.Context, c *quic.Conn, shared *datagram.Carrier, remote netip.AddrPort) (*session, error) {
	defer context.AfterFunc(a.ctx, func() { _ = c.CloseWithError(quicCodeClosed, string(reason.Draining)) })()
	first, cancel := context.WithTimeout(ctx, opening.Timeout)
	defer cancel()
	st, err := c.AcceptStream(first)
	if err != nil {
		_ = c.CloseWithError(quicCodeRefused, "no opening")
		return nil, err
	}
	o, err := opening.Read(ctx, st, reason.HopEdge)
	var e *reason.Error
	if err != nil {
		if !errors.As(err, &e) {
			_ = c.CloseWithError(quicCodeRefused, "no valid opening")
			return nil, err
		}
	} else if o.Lane != nil {
		e = reason.New(reason.Invalid, reason.HopEdge, "lanes are TCP connections")
		a.refuse(st, remote, e)
	} else {
		b := &binding{
			carrier: CarrierQUIC, ctl: st, qc: c, shared: shared, cs: c.ConnectionState().TLS, local: c.LocalAddr(), remote: c.RemoteAddr(),
			close: func(err error) { _ = c.CloseWithError(closeCode(err), closeText(err)) },
		}
		s, refusal := a.acceptSession(o, b)
		if refusal == nil {
			return s, nil
		}
		a.refuse(st, remote, refusal)
		e = refusal
	}
	// The peer closes when it has read the refusal; closing first would overtake it.
	_ = st.Close()
	select {
	case <-c.Context().Done():
	case <-time.After(a.timing.probe):
	}
	_ = c.CloseWithError(quicCodeRefused, string(e.Code))
	return nil, e
}

func closeCode(err error) quic.ApplicationErrorCode {
	if errors.Is(err, errDead) {
		return quicCodeDead
	}
	return quicCodeClosed
}

func closeText(err error) string {
	if err == nil {
		return ""
	}
	t := err.Error()
	return t[:min(len(t), 256)]
}

func (a *Acceptor) refuse(c opening.Conn, remote netip.AddrPort, e *reason.Error) {
	a.metrics.refused.WithLabelValues(string(e.Code)).Inc()
	level := slog.LevelWarn
	if e.Code == reason.Standby {
		level = slog.LevelDebug // one that waits asks again every few seconds
	}
	a.log.Log(a.ctx, level, "opening refused", "remote", remote, "reason", e.Code, "detail", e.Detail)
	opening.Refuse(c, e)
}

// enter counts a connection that has not proven itself.
func (a *Acceptor) enter(remote netip.AddrPort) (leave func(), ok bool) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, false
	}
	a.wg.Add(1)
	a.mu.Unlock()
	release, ok := a.gate.enter(remote.Addr())
	if !ok {
		a.metrics.refused.WithLabelValues(string(reason.RateLimited)).Inc()
		a.log.Warn("connection refused: too many unproven connections", "remote", remote)
		a.wg.Done()
		return nil, false
	}
	return func() { release(); a.wg.Done() }, true
}

// sessionEnded is called by a session of r as its last act.
func (a *Acceptor) sessionEnded(r *Replica, s *session) {
	a.metrics.session(s.carrier, -1)
	a.forgetRaw(s)
	a.log.Info("session ended", "replica", r.ID(), "host", r.hostName, "session", s.number, "carrier", s.carrier, "cause", context.Cause(s.ctx))
	silent := errors.Is(context.Cause(s.ctx), errDead)
	if silent {
		// Should the agent live after all, the reset of a lane makes it look after its sessions.
		r.lanes.dropIdle()
		r.raw.dropIdle()
	}
	r.events.Lock()
	defer r.events.Unlock()
	if a.noteEnd(r, silent) {
		if a.cfg.Left != nil {
			a.cfg.Left(r)
		}
		return
	}
	r.lanes.retell()
}

// noteEnd reports whether r has no session left, and starts the time its lanes may outlive it.
func (a *Acceptor) noteEnd(r *Replica, silent bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(r.pair.all()) > 0 {
		return false
	}
	r.lastSession, r.silent = time.Now(), silent
	return true
}

// expired removes r if it has had no session for too long; its caller closes it then.
func (a *Acceptor) expired(r *Replica, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	grace := a.timing.laneGrace
	if r.silent {
		grace = a.timing.laneSilent
	}
	if r.gone || r.lastSession.IsZero() || now.Sub(r.lastSession) < grace {
		return false
	}
	a.dropLocked(r)
	return true
}

// dropLocked makes r unknown. The caller holds mu and closes r.
func (a *Acceptor) dropLocked(r *Replica) {
	r.gone = true
	delete(a.replicas, r.key)
}

// Recheck asks admitted for every token with live replicas (after revocations arrived) and
// closes the sessions and lanes of those no longer admitted.
func (a *Acceptor) Recheck(admitted func(tokenID string) *reason.Error) {
	a.Dismiss(func(r *Replica) *reason.Error { return admitted(r.TokenID()) })
}

// Dismiss closes the sessions and lanes of replicas for which why says a reason.
func (a *Acceptor) Dismiss(why func(r *Replica) *reason.Error) {
	a.mu.Lock()
	all := make([]*Replica, 0, len(a.replicas))
	for _, r := range a.replicas {
		all = append(all, r)
	}
	a.mu.Unlock()
	for _, r := range all {
		e := why(r)
		if e == nil {
			continue
		}
		a.mu.Lock()
		again := r.gone
		a.dropLocked(r)
		if !again && !a.closed {
			a.wg.Add(1)
			go func() {
				defer a.wg.Done()
				r.close(e)
			}()
		}
		a.mu.Unlock()
	}
}

// Replicas returns all live replicas.
func (a *Acceptor) Replicas() []*Replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*Replica, 0, len(a.replicas))
	for _, r := range a.replicas {
		if r.lastSession.IsZero() {
			out = append(out, r)
		}
	}
	return out
}

// BroadcastEdges tells every agent the changed edge list.
func (a *Acceptor) BroadcastEdges(edges []*wirev1.EdgeAddress) {
	m := &wirev1.Control{Message: &wirev1.Control_EdgeList{EdgeList: &wirev1.EdgeList{Edges: edges}}}
	for _, r := range a.Replicas() {
		if s := r.pair.current(); s != nil {
			s.send(m)
		}
	}
}

// Drain announces that this edge ends: agents open their next sessions elsewhere, running
// streams go on.
func (a *Acceptor) Drain() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	m := &wirev1.Control{Message: &wirev1.Control_Drain{Drain: &wirev1.Drain{Reason: string(reason.Draining)}}}
	for _, r := range a.Replicas() {
		for _, s := range r.pair.all() {
			s.send(m)
		}
	}
}

// Close ends all sessions and waits for their goroutines.
func (a *Acceptor) Close() error {
	a.cancel()
	a.mu.Lock()
	a.closed = true
	var all []*Replica
	for _, r := range a.replicas {
		a.dropLocked(r)
		all = append(all, r)
	}
	a.mu.Unlock()
	for _, r := range all {
		r.close(errors.New("the edge shuts down"))
	}
	a.wg.Wait()
	return nil
}
