package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// Carrier names.
const (
	CarrierQUIC = "quic"
	CarrierTLS  = "tls"
	CarrierWS   = "ws"
)

// ConnectorConfig is the agent's side of the link to one edge.
type ConnectorConfig struct {
	Dialler *opening.Dialler
	// Edge is where to dial and which key to expect.
	Edge *wirev1.EdgeAddress
	// HubHost makes the SNI <edge-id>.edge.<hub-host>.
	HubHost string
	// Carriers in order of preference; empty = quic, tls, ws.
	Carriers []string
	// Proxy is used by tls and ws; nil = none (the caller reads HTTPS_PROXY).
	Proxy   func(target *url.URL) (*url.URL, error)
	Handler Handler
	// MaxLanes caps lanes; 0 = as the edge asks, never above a quarter of the descriptor limit.
	MaxLanes int
	// OnEdges is called with the edge list an edge answered.
	OnEdges func([]*wirev1.EdgeAddress)
	// OnServed is called with verdicts about Serve.
	OnServed func([]*wirev1.TunnelVerdict)
	// OnState is called after every change of Sessions or LastError.
	OnState func()
	Log     *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer

	timing *timing // tests
}

// Connector keeps a session with one edge alive: dials the carriers with a head start for the
// better ones, reconnects for ever with full jitter, moves to a better carrier by make before
// break.
type Connector struct {
	cfg      ConnectorConfig
	timing   timing
	log      *slog.Logger
	metrics  *metrics
	pair     *pair
	lanes    *laneDialler
	raw      *rawDialler
	tickets  tls.ClientSessionCache
	overTCP  *tls.Config // shared by all TCP connections
	carriers []string
	changed  chan struct{} // a session came or went

	mu       sync.Mutex
	number   uint64 // of the last session
	serve    []string
	serveSet bool
	serveSeq uint64
	health   []*wirev1.TunnelHealth // nil = never told, and nothing to tell
	draining bool
	lastErr  error
	lastAt   time.Time
	spoke    string // the carrier over which the edge refused last
}

// NewConnector returns a connector that Run makes work.
func NewConnector(cfg ConnectorConfig) *Connector {
	c := &Connector{
		cfg: cfg, timing: defaultTiming(), log: cfg.Log, tickets: tls.NewLRUClientSessionCache(8),
		carriers: cfg.Carriers, changed: make(chan struct{}, 1),
		metrics: agentMetrics(cfg.Registry, cfg.Edge.GetId()),
	}
	if cfg.timing != nil {
		c.timing = *cfg.timing
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.log = c.log.With("edge", cfg.Edge.GetId())
	if len(c.carriers) == 0 {
		c.carriers = []string{CarrierQUIC, CarrierTLS, CarrierWS}
	}
	c.overTCP = c.tlsConfig()
	c.pair = newPair(c, c.log, c.timing, c.metrics)
	c.lanes = newLaneDialler(c)
	c.raw = newRawDialler(c)
	return c
}

// Run connects and reconnects until ctx ends, then closes everything and waits.
func (c *Connector) Run(ctx context.Context) {
	lanesDone := make(chan struct{})
	go func() {
		defer close(lanesDone)
		var wg sync.WaitGroup
		wg.Go(func() { c.raw.run(ctx) })
		c.lanes.run(ctx)
		wg.Wait()
	}()
	b := backoff{min: c.timing.backoffMin, max: c.timing.backoffMax}
	mode := wirev1.SessionMode_SESSION_MODE_UNSPECIFIED
	carriers, waits := c.carriers, false
	for ctx.Err() == nil {
		s, err := c.connect(ctx, carriers, mode)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if reason.Is(err, reason.Standby) {
				if !waits {
					c.log.Info("waiting as standby", "detail", reason.Of(err, reason.HopEdge).Detail)
				}
				// The edge has had it wait, and knows it: asking again is cheap, on the carrier that
				// got through.
				carriers, waits = c.spokeOver(), true
				b.reset()
				sleep(ctx, c.timing.standby/2+rand.N(c.timing.standby/2+1))
				continue
			}
			carriers, waits = c.carriers, false
			pause := b.next()
			c.log.Warn("no session with the edge", "error", err, "retry_in", pause.Round(time.Millisecond))
			sleep(ctx, pause)
			continue
		}
		carriers, waits = c.carriers, false
		since := time.Now()
		c.hold(ctx, s)
		if ctx.Err() != nil {
			break
		}
		if time.Since(since) >= c.timing.worked {
			b.reset()
		}
		mode = wirev1.SessionMode_SESSION_MODE_SUPERSEDE
		if c.pair.current() != nil {
			mode = wirev1.SessionMode_SESSION_MODE_UPGRADE // an older one still has streams
		}
		c.metrics.reconnects.Inc()
		sleep(ctx, b.next())
	}
	c.pair.close(errors.New("the agent shuts down"))
	<-lanesDone
	c.state()
}

// spokeOver is the carrier over which the edge refused last.
func (c *Connector) spokeOver() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spoke == "" {
		return c.carriers
	}
	return []string{c.spoke}
}

// hold returns when no session takes streams any more; meanwhile it looks for a better carrier.
func (c *Connector) hold(ctx context.Context, s *session) {
	pause := c.timing.upgradeMin
	for {
		var look <-chan time.Time
		rank := slices.Index(c.carriers, s.carrier)
		if rank > 0 && !s.draining() {
			t := time.NewTimer(pause/2 + rand.N(pause/2+1))
			defer t.Stop()
			look = t.C
		}
	wait:
		for {
			select {
			case <-ctx.Done():
				return
			case <-look:
				break wait
			case <-c.changed:
				if !c.up() {
					return
				}
			}
		}
		// Not a moment longer than the session lives: then reconnecting comes first.
		dialCtx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(s.ctx, cancel)
		better, err := c.connect(dialCtx, c.carriers[:rank], wirev1.SessionMode_SESSION_MODE_UPGRADE)
		stop()
		cancel()
		if err != nil {
			if !c.up() {
				return
			}
			c.log.Debug("no better carrier yet", "carrier", s.carrier, "error", err)
			pause = min(2*pause, c.timing.upgradeMax)
			continue
		}
		for _, o := range c.pair.all() {
			if o.number < better.number {
				o.replaced.Store(true)
			}
		}
		s, pause = better, c.timing.upgradeMin
		c.state()
	}
}

// up reports whether there is a session that was not replaced.
func (c *Connector) up() bool {
	s := c.pair.current()
	return s != nil && !s.replaced.Load()
}

// backoff is a pause with full jitter below a ceiling that doubles.
type backoff struct {
	min, max time.Duration
	n        int
}

func (b *backoff) next() time.Duration {
	ceiling := b.max
	if b.n < 16 {
		ceiling = min(b.max, b.min<<b.n)
	}
	b.n++
	return rand.N(ceiling) + 1
}

func (b *backoff) reset() { b.n = 0 }

// connect dials carriers and starts a session on the first that opens.
func (c *Connector) connect(ctx context.Context, carriers []string, mode wirev1.SessionMode) (*session, error) {
	d, err := c.dial(ctx, carriers, mode)
	if mode != wirev1.SessionMode_SESSION_MODE_UPGRADE {
		c.setError(err)
	}
	if err != nil {
		return nil, err
	}
	s := newSession(c.pair, d.number, d.carrier, d.ctl, d.qc, d.local, d.remote, d.close)
	s.target = d.target
	if s.raw, err = newRawKey(d.cs); err != nil {
		c.log.Debug("no raw lanes", "error", err)
	}
	if err := s.shareSocket(d.shared, d.cs, true); err != nil {
		c.log.Debug("datagrams go by QUIC", "error", err)
	}
	if !c.pair.add(s) {
		d.close(nil)
		return nil, errors.New("the connector is closed")
	}
	c.lanes.sessions(true)
	c.metrics.session(s.carrier, 1)
	c.log.Info("session opened", "session", s.number, "carrier", s.carrier, "remote", s.remote)
	s.start()
	c.mu.Lock()
	draining := c.draining
	c.mu.Unlock()
	if draining {
		c.sendDrain(s)
	}
	c.sendServe(s)
	c.sendHealth(s)
	c.lanes.sendLimit(s)
	c.raw.wake()
	if c.cfg.OnEdges != nil && len(d.reply.GetEdges()) > 0 {
		c.cfg.OnEdges(d.reply.Edges)
	}
	c.state()
	return s, nil
}

func (c *Connector) setError(err error) {
	c.mu.Lock()
	c.lastErr, c.lastAt = err, time.Now()
	c.mu.Unlock()
	if err != nil {
		c.state()
	}
}

func (c *Connector) state() {
	if c.cfg.OnState != nil {
		c.cfg.OnState()
	}
}

// nextNumber numbers a session; numbers grow.
func (c *Connector) nextNumber() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	return c.number
}

// Serve sets the full set of tunnel ids this replica serves; sent now and with every session.
func (c *Connector) Serve(tunnelIDs []string) {
	c.mu.Lock()
	c.serve, c.serveSet = slices.Clone(tunnelIDs), true
	c.mu.Unlock()
	for _, s := range c.pair.all() {
		c.sendServe(s)
	}
}

func (c *Connector) sendServe(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.serveSet {
		return
	}
	c.serveSeq++
	s.send(&wirev1.Control{Message: &wirev1.Control_Serve{Serve: &wirev1.Serve{Sequence: c.serveSeq, TunnelIds: c.serve}}})
}

// Health sets which origins fail the agent's checks (the full set); sent now and with every session.
func (c *Connector) Health(failing []*wirev1.TunnelHealth) {
	c.mu.Lock()
	if len(failing) == 0 && c.health == nil {
		c.mu.Unlock()
		return
	}
	c.health = append([]*wirev1.TunnelHealth{}, failing...)
	c.mu.Unlock()
	for _, s := range c.pair.all() {
		c.sendHealth(s)
	}
}

func (c *Connector) sendHealth(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health != nil {
		s.send(&wirev1.Control{Message: &wirev1.Control_Health{Health: &wirev1.Health{Tunnels: c.health}}})
	}
}

// Drain announces that this replica ends. Running streams go on; Run's context ends them.
func (c *Connector) Drain() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	for _, s := range c.pair.all() {
		c.sendDrain(s)
	}
}

func (c *Connector) sendDrain(s *session) {
	s.send(&wirev1.Control{Message: &wirev1.Control_Drain{Drain: &wirev1.Drain{Reason: string(reason.Draining)}}})
}

// Active is the number of streams and flows running now.
func (c *Connector) Active() int64 { return c.pair.active.Load() + c.pair.flows.count() }

// Sessions is the state of its sessions; empty when none is up.
func (c *Connector) Sessions() []SessionInfo { return c.pair.infos(c.lanes.count()) }

// LastError is why the last dial failed (a *reason.Error where the peer said), nil after success.
func (c *Connector) LastError() (error, time.Time) { //nolint:revive,staticcheck // the error is the value, not the outcome
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr, c.lastAt
}

// control implements owner.
func (c *Connector) control(s *session, m *wirev1.Control) {
	switch f := m.GetMessage().(type) {
	case *wirev1.Control_Served:
		c.mu.Lock()
		stale := f.Served.Sequence < c.serveSeq && s == c.pair.current()
		c.mu.Unlock()
		if !stale && c.cfg.OnServed != nil {
			c.cfg.OnServed(f.Served.Tunnels)
		}
	case *wirev1.Control_LaneDemand:
		c.lanes.setWant(int(min(f.LaneDemand.Lanes, lanesAlone)))
		c.raw.setWant(int(min(f.LaneDemand.RawIdle, rawIdleMax)))
	case *wirev1.Control_RawOpen:
		c.raw.open(s, f.RawOpen)
	case *wirev1.Control_EdgeList:
		if c.cfg.OnEdges != nil {
			c.cfg.OnEdges(f.EdgeList.Edges)
		}
	case *wirev1.Control_Drain:
		c.log.Info("the edge drains", "session", s.number, "reason", f.Drain.Reason)
		c.state()
	}
}

// incoming implements owner.
func (c *Connector) incoming(s *session, st rawStream) {
	c.pair.goFunc(func() { serveIncoming(s.ctx, c.pair, st, c.cfg.Handler) })
}

func (c *Connector) handler() Handler { return c.cfg.Handler }

// ended implements owner.
func (c *Connector) ended(s *session) {
	c.metrics.session(s.carrier, -1)
	cause := context.Cause(s.ctx)
	c.log.Info("session ended", "session", s.number, "carrier", s.carrier, "cause", cause)
	if c.pair.current() == nil {
		c.mu.Lock()
		c.lastErr, c.lastAt = fmt.Errorf("session lost: %w", cause), time.Now()
		c.mu.Unlock()
		c.lanes.sessions(false)
	}
	if errors.Is(cause, errDead) {
		c.lanes.dropIdle() // they share the path that fell silent
		c.raw.destroy(false)
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
	c.state()
}

// tlsConfig is for sessions and lanes, over any carrier.
func (c *Connector) tlsConfig() *tls.Config {
	verify := identity.VerifyPin(func() [][]byte { return [][]byte{c.cfg.Edge.GetKeyHash()} })
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.cfg.Dialler.Node.Certificate()},
		NextProtos:   []string{opening.ALPNSession},
		ServerName:   c.cfg.Edge.GetId() + ".edge." + c.cfg.HubHost,
		// The pin of the edge's key is the whole trust; names and dates say nothing here.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := verify(cs); err != nil {
				return fmt.Errorf("%w: %w", errWrongPin, err)
			}
			return nil
		},
		ClientSessionCache:          c.tickets,
		DynamicRecordSizingDisabled: true, // lanes size their records
	}
}
