// Package agent is the runtime of an agent: it declares its services at the hub, keeps a session
// with every edge, and dials origins on behalf of edges.
package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/discovery"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/origin/preflight"
	"github.com/adit-dev/adit/internal/reach"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/telemetry"
)

// Config is everything an agent can be told.
type Config struct {
	// Token is the token itself; TokenFile a file that holds it and is re-read when it changes.
	// One of them is required.
	Token     string
	TokenFile string
	// ServerURL overrides the hub URL of the token; its pins stay.
	ServerURL string
	// Services are the lists from flags and environment; lists not set there come from ConfigFile
	// (YAML, re-read when it changes).
	Services   config.ServiceLists
	ConfigFile string
	// HealthAddr serves /healthz, /readyz and /metrics; empty = off, port 0 = any free one.
	HealthAddr string
	// HealthFallback takes a free port where HealthAddr is busy.
	HealthFallback bool
	// PProf adds profiles to the health address.
	PProf bool
	// StateDir keeps the edge list for a start without the hub; empty = none.
	StateDir string
	// Carriers in order of preference; empty = quic, tls, ws.
	Carriers []string
	// MaxLanes caps lanes per edge; 0 = default.
	MaxLanes int
	// Origin says which targets may be dialled and how.
	Origin origin.Config
	// Providers find services that could be exposed, for the hub to show; none = no discovery.
	Providers []discovery.Provider
	// Reach knows the addresses that this agent advertises; nil = none.
	Reach *reach.Addresses
	// OriginCAFile holds PEM roots trusted for https and tls origins beside the system's.
	OriginCAFile string
	// GracePeriod is how long running streams may take to end (25 s).
	GracePeriod time.Duration
	// FailFast ends Run with an error if the hub refuses the token or any entry.
	FailFast bool
	// Withdraw takes the services back at the hub when Run ends; without it they stay, offline,
	// for the next start.
	Withdraw bool
	// HostName is shown at the hub; empty = the machine's.
	HostName string
	// Software is this build's version.
	Software string
	// Proxy for the carriers tls and ws and for the hub; nil = HTTPS_PROXY of the environment.
	Proxy func(target *url.URL) (*url.URL, error)
	// OnStatus is called after changes of Status, from one goroutine; nil = none.
	OnStatus func(Status)
	// OnConnection hears, from many goroutines, of what visitors do through this agent: once per
	// HTTP/1 request, else once per stream and flow; nil = nobody.
	OnConnection func(Connection)
	Log          *slog.Logger
	// Registry gets the metrics and is served at /metrics; nil = a new one.
	Registry *prometheus.Registry
}

// Agent is one running agent.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	m       *metrics
	handler *handler
	// ring has the last lines of the log, for the hub.
	ring    *telemetry.Ring
	checker *preflight.Checker
	finder  *discovery.Finder
	// can are the capabilities when something was found last.
	can atomic.Pointer[string]
	// labels are the declarations in use, labelProblems what is wrong with others.
	labelMu       sync.Mutex
	labels        map[string]*discovery.Declaration
	labelProblems map[string]string
	token         *identity.Token
	files         []*watchedFile

	// connect and backoffUnit are replaced by tests.
	connect     func(link.ConnectorConfig) connector
	backoffUnit time.Duration

	// mu orders changes of what is served.
	mu     sync.Mutex
	want   desired
	checks *checks

	current  atomic.Pointer[member]
	members  sync.WaitGroup
	draining atomic.Bool
	// reloadProblem is why the configuration file is not in use as it is now.
	reloadProblem atomic.Pointer[string]
	healthAddr    atomic.Pointer[string]
	dirty         chan struct{}
	fatal         chan error
	// ending gets a value when the hub asks the agent to end.
	ending    chan struct{}
	force     chan struct{}
	forceOnce sync.Once
}

// New checks cfg: token, lists, patterns, files. Nothing is dialled or bound yet.
func New(cfg Config) (*Agent, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ring := telemetry.NewRing()
	cfg.Log = ring.Tee(cfg.Log)
	if cfg.Origin.Log != nil {
		cfg.Origin.Log = cfg.Log
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.GracePeriod <= 0 {
		cfg.GracePeriod = 25 * time.Second
	}
	if cfg.HostName == "" {
		cfg.HostName, _ = os.Hostname()
	}
	if cfg.Proxy == nil {
		cfg.Proxy = func(target *url.URL) (*url.URL, error) {
			return http.ProxyFromEnvironment(&http.Request{URL: target})
		}
	}
	a := &Agent{
		cfg: cfg, log: cfg.Log, ring: ring, m: newMetrics(cfg.Registry), backoffUnit: backoffFirst,
		connect: func(c link.ConnectorConfig) connector { return link.NewConnector(c) },
		dirty:   make(chan struct{}, 1), fatal: make(chan error, 1), ending: make(chan struct{}, 1), force: make(chan struct{}),
	}
	if err := a.readToken(); err != nil {
		return nil, err
	}
	if cfg.OriginCAFile != "" {
		pem, err := os.ReadFile(cfg.OriginCAFile)
		if err != nil {
			return nil, fmt.Errorf("--origin-ca-file: %w", err)
		}
		a.cfg.Origin.RootsPEM = append(a.cfg.Origin.RootsPEM, pem...)
	}
	d, err := origin.New(a.cfg.Origin)
	if err != nil {
		return nil, err
	}
	a.checker = preflight.New(d)
	a.finder = discovery.New(cfg.Providers, a.foundSomething)
	a.handler = newHandler(d, a.m, a.log)
	a.handler.onHealth = a.reportSoon
	a.handler.onConnection = cfg.OnConnection
	var file []byte
	if cfg.ConfigFile != "" {
		if file, err = os.ReadFile(cfg.ConfigFile); err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		a.files = append(a.files, &watchedFile{path: cfg.ConfigFile, seen: sha256.Sum256(file)})
	}
	list, err := config.ParseServices(cfg.Services, file)
	if err != nil {
		return nil, err
	}
	a.handler.table.Store(&table{byID: map[string]*service{}})
	if _, _, err := a.change(func(w *desired) { w.declared = list }); err != nil {
		return nil, err
	}
	a.checks = newChecks(d, a.log, func() {
		if m := a.current.Load(); m != nil {
			m.tellHealth()
			wake(m.reports)
		}
		a.touch()
	})
	return a, nil
}

func (a *Agent) readToken() (err error) {
	text := a.cfg.Token
	if a.cfg.TokenFile != "" {
		content, err := os.ReadFile(a.cfg.TokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		a.files = append(a.files, &watchedFile{path: a.cfg.TokenFile, seen: sha256.Sum256(content)})
		text = string(content)
	}
	if a.token, err = parseToken(text); err != nil {
		return err
	}
	return nil
}

// Run serves until ctx ends, then drains: announces it, lets running streams finish within the
// grace period, and returns nil. It returns early with an error when the agent cannot work.
func (a *Agent) Run(ctx context.Context) error {
	// What serves visitors ends after the drain, not with ctx.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	health, err := a.listenHealth(ctx)
	if err != nil {
		return err
	}
	if health != nil {
		addr := telemetry.AdminAddr(health)
		a.healthAddr.Store(&addr)
		defer a.serveHealth(health)()
	}
	if len(a.handler.table.Load().services) == 0 && a.token.Kind != identity.KindAgent {
		a.log.Warn("no service is declared: visitors reach nothing through this agent; set --services, --tcp-services or --udp-services, or name them in --config")
	}
	first, err := newMember(a, a.token, nil)
	if err != nil {
		return err
	}
	a.start(life, first, a.token.Body.GetEdges())
	var side sync.WaitGroup
	watching, stopWatching := context.WithCancel(life)
	side.Go(func() { a.checks.run(watching) })
	side.Go(func() { watchFiles(watching, a.bind(life), a.log) })
	side.Go(func() { a.notify(watching) })
	side.Go(func() { a.finder.Run(watching) })
	if a.cfg.Reach != nil {
		side.Go(func() { a.cfg.Reach.Run(watching, a.reportSoon) })
	}

	select {
	case <-ctx.Done():
		a.log.Info("draining", "grace_period", a.cfg.GracePeriod, "streams", a.handler.running.Load())
	case <-a.ending:
		a.log.Info("draining", "grace_period", a.cfg.GracePeriod, "streams", a.handler.running.Load())
	case err = <-a.fatal:
		a.log.Error("ending", "error", err)
	}
	stopWatching()
	side.Wait()
	if err == nil {
		a.drain(life)
	}
	if err == nil && a.cfg.Withdraw {
		a.current.Load().withdraw(life)
	}
	end()
	a.members.Wait()
	a.handler.flows.close()
	return err
}

// start runs m; it has the edges of its token, or those saved for it.
func (a *Agent) start(life context.Context, m *member, fromToken []*wirev1.EdgeAddress) {
	edges := a.loadEdges(m.tokenID)
	for _, e := range fromToken {
		known := false
		for _, s := range edges {
			known = known || s.GetId() == e.GetId()
		}
		if !known {
			edges = append(edges, e)
		}
	}
	ctx, cancel := context.WithCancel(life)
	m.end = cancel
	a.current.Store(m)
	a.loadManaged(m)
	a.members.Go(func() { m.run(ctx, edges) })
}

// drain lets running streams end.
func (a *Agent) drain(life context.Context) {
	a.draining.Store(true)
	m := a.current.Load()
	active := func() int64 { return a.handler.running.Load() + a.handler.flows.busy() }
	if m.sessions() == 0 && active() == 0 {
		return
	}
	m.drain(life)
	if !a.untilIdle(a.cfg.GracePeriod, active) {
		a.log.Warn("streams were cut at the end of the grace period", "streams", a.handler.running.Load())
	}
}

// untilIdle waits until active is 0 and stays so for what may still be on its way, at most grace
// or until Force. It reports whether it was idle.
func (a *Agent) untilIdle(grace time.Duration, active func() int64) bool {
	const quiet, step = 300 * time.Millisecond, 20 * time.Millisecond
	limit := time.NewTimer(grace)
	defer limit.Stop()
	tick := time.NewTicker(step)
	defer tick.Stop()
	for calm := time.Duration(0); calm < quiet; calm += step {
		if active() > 0 {
			calm = -step
		}
		select {
		case <-limit.C:
			return active() == 0
		case <-a.force:
			return active() == 0
		case <-tick.C:
		}
	}
	return true
}

// Force ends a drain at once.
func (a *Agent) Force() { a.forceOnce.Do(func() { close(a.force) }) }

// failed ends Run if the agent was told to fail fast.
func (a *Agent) failed(e *reason.Error) {
	if !a.cfg.FailFast {
		return
	}
	select {
	case a.fatal <- fmt.Errorf("refused, and --fail-fast is set: %w", e):
	default:
	}
}

// bind gives the watched files the life that what they change lasts for.
func (a *Agent) bind(life context.Context) []*watchedFile {
	for _, f := range a.files {
		if f.path == a.cfg.TokenFile {
			f.changed = func(content []byte) { a.tokenChanged(life, content) }
		} else {
			f.changed = a.reload
		}
	}
	return a.files
}

// reload takes a changed configuration file: what is the same in it is not touched, and a broken
// one changes nothing.
func (a *Agent) reload(content []byte) {
	list, err := config.ParseServices(a.cfg.Services, content)
	var old, t *table
	if err == nil {
		old, t, err = a.change(func(w *desired) { w.declared = list })
	}
	if err != nil {
		text := err.Error()
		a.reloadProblem.Store(&text)
		a.m.reloads.WithLabelValues("config", "invalid").Inc()
		a.log.Error("the changed configuration is not used; the last good one stays", "file", a.cfg.ConfigFile, "error", err)
		a.touch()
		return
	}
	a.reloadProblem.Store(nil)
	a.m.reloads.WithLabelValues("config", "ok").Inc()
	if t.equal(old) {
		return
	}
	added, removed, kept := 0, 0, 0
	for id, s := range t.byID {
		if o := old.byID[id]; o != nil && sameButPlace(o.declared, s.declared) {
			kept++
		} else {
			added++
		}
	}
	for id := range old.byID {
		if t.byID[id] == nil {
			removed++
		}
	}
	a.log.Info("configuration changed", "file", a.cfg.ConfigFile, "added_or_changed", added, "removed", removed, "unchanged", kept)
	m := a.current.Load()
	m.serve()
	wake(m.declare)
	a.touch()
}

// tokenChanged makes a member of the new token and lets the old one drain once the new one is
// connected.
func (a *Agent) tokenChanged(life context.Context, content []byte) {
	t, err := parseToken(string(content))
	var m *member
	if err == nil {
		m, err = newMember(a, t, a.current.Load())
	}
	if err != nil {
		a.m.reloads.WithLabelValues("token", "invalid").Inc()
		a.log.Error("the changed token is not used; the last good one stays", "file", a.cfg.TokenFile, "error", err)
		return
	}
	a.m.reloads.WithLabelValues("token", "ok").Inc()
	old := a.current.Load()
	if m.tokenID == old.tokenID {
		return
	}
	a.log.Info("token changed", "file", a.cfg.TokenFile, "token_id", m.tokenID)
	a.start(life, m, t.Body.GetEdges())
	a.members.Go(func() {
		a.untilConnected(life, m)
		old.drain(life)
		a.untilIdle(a.cfg.GracePeriod, func() int64 {
			var n int64
			for _, r := range old.runs() {
				n += r.active()
			}
			return n
		})
		old.end()
	})
	a.touch()
}

// untilConnected waits for m's first session, at most for the grace period.
func (a *Agent) untilConnected(life context.Context, m *member) {
	limit := time.NewTimer(a.cfg.GracePeriod)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for m.sessions() == 0 {
		select {
		case <-life.Done():
			return
		case <-limit.C:
			return
		case <-tick.C:
		}
	}
}

// HealthAddr is the bound health address once Run serves it, else empty.
func (a *Agent) HealthAddr() string {
	if s := a.healthAddr.Load(); s != nil {
		return *s
	}
	return ""
}
