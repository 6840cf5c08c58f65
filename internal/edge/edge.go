// Package edge is the public data plane. It holds no truth: everything it knows came from the
// hub's feed, or from the snapshot of it on disk.
package edge

import (
	"context"
	"crypto/tls"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/proxy"
	"github.com/adit-dev/adit/internal/edge/raw"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/limits"
	"github.com/adit-dev/adit/internal/link"
)

// Feed is how an edge hears from its hub. The local edge of a server and a joined edge get the
// same interface.
type Feed interface {
	// Watch calls apply for each message from revision from on (0 = snapshot first) until ctx
	// ends, the connection breaks or apply fails.
	Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error
	Report(ctx context.Context, r *hubv1.ReportRequest) error
}

// Edge is the public data plane of one process.
type Edge struct {
	cfg     Config
	metrics *metrics
	traffic *traffic
	name    string // <id>.edge.<hub-host>
	own     map[string]bool

	view     atomic.Pointer[view]
	feed     feedState
	snapshot snapshotFile
	registry *registry
	enrol    *enrolments
	acceptor *link.Acceptor
	dialer   *dial.Dialer
	proxy    *proxy.Proxy
	raw      *raw.Server
	ports    *ports
	// perTunnel counts connections of tunnels of kind http; raw counts its own.
	perTunnel *limits.Counter[string]
	identity  *tls.Certificate // presented for name until there is a better one

	ready     chan struct{}
	readyOnce sync.Once
	draining  atomic.Bool
	transit   transit
	forwards  *forwards
	reportNow chan struct{}
}

// New loads the snapshot on disk, if any, and returns an edge that Run makes work. Roles may be
// used before Run.
func New(cfg Config) (*Edge, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.defaults()
	e := &Edge{
		cfg: cfg, metrics: newMetrics(cfg.Registry), traffic: newTraffic(cfg.Now()), name: cfg.Key.ID() + ".edge." + cfg.HubHost,
		own: map[string]bool{}, ready: make(chan struct{}), reportNow: make(chan struct{}, 1),
	}
	e.view.Store(emptyView())
	e.own[strings.ToLower(e.name)] = true
	for _, n := range cfg.OwnNames {
		e.own[strings.ToLower(n)] = true
	}
	var err error
	if e.identity, err = selfSigned(e.name); err != nil {
		return nil, err
	}
	e.registry = newRegistry(e)
	e.forwards = newForwards(e)
	e.enrol = newEnrolments(e)
	e.acceptor = link.NewAcceptor(link.AcceptorConfig{
		Key: cfg.Key, Admit: e.admit, Enrol: e.enrol.admit, Health: e.registry.health, Edges: e.edges, Serve: e.registry.serve,
		Joined: e.registry.joined, Left: e.registry.left, Drains: e.registry.drains,
		Short: func(r *link.Replica) { e.proxy.CloseIdle(r.ID()) }, Log: cfg.Log, Registry: cfg.Registry,
	})
	e.dialer = dial.New(e.registry).Within(cfg.DialTimeout)
	e.proxy = proxy.New(proxy.Config{
		Lookup: func(at netip.AddrPort, host string) *route.Rules {
			if t := e.view.Load().table.Host(at, host); t != nil {
				return t.Rules()
			}
			return nil
		},
		Failing: e.registry.fails,
		Covers:  e.covers, Dialer: e.dialer, TrustedProxies: cfg.TrustedProxies,
		ResponseHeader: cfg.ResponseHeaderTimeout, BodyIdle: cfg.BodyIdleTimeout,
		Done: e.traffic.answered, Log: cfg.Log, Registry: cfg.Registry,
	})
	e.raw = raw.New(raw.Config{
		Dialer: e.dialer, HalfClosed: cfg.HalfClosedTimeout, MaxPerTunnel: cfg.MaxConnsPerTunnel,
		Connections: e.metrics.connections, Done: e.traffic.carried, Log: cfg.Log,
	})
	e.perTunnel = limits.NewCounter[string](cfg.MaxConnsPerTunnel)
	if e.ports, err = newPorts(e); err != nil {
		return nil, err
	}
	e.snapshot = snapshotFile{path: cfg.SnapshotPath, key: cfg.SecretKey, edge: cfg.Key.ID()}
	e.loadSnapshot()
	return e, nil
}

// Run follows the feed, binds raw ports and reports until ctx ends; then it closes everything.
func (e *Edge) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { e.follow(ctx) })
	wg.Go(func() { e.report(ctx) })
	wg.Go(func() { e.keepSnapshot(ctx) })
	wg.Go(func() { e.ports.retry(ctx) })
	wg.Go(func() { e.recheckExpiry(ctx) })
	<-ctx.Done()
	wg.Wait()
	return e.close()
}

func (e *Edge) close() error {
	e.ports.close()
	e.forwards.close()
	err := e.acceptor.Close()
	e.proxy.Close()
	return err
}

// Ready is closed when the edge has a complete view: a snapshot from the hub or from disk.
func (e *Edge) Ready() <-chan struct{} { return e.ready }

// Connected reports whether the hub is heard now.
func (e *Edge) Connected() bool { return e.feed.connected.Load() }

// Drain tells hub and agents that this edge ends, stops taking connections on raw ports and waits
// for running ones until ctx ends. Visitors on 443 are the front's to drain, beside it.
func (e *Edge) Drain(ctx context.Context) {
	if e.draining.Swap(true) {
		return
	}
	e.wakeReport()
	e.acceptor.Drain()
	var wg sync.WaitGroup
	wg.Go(func() { e.proxy.Drain(ctx) })
	e.ports.drain(ctx)
	wg.Wait()
}

// wakeReport makes the next report come at once.
func (e *Edge) wakeReport() {
	select {
	case e.reportNow <- struct{}{}:
	default:
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
