package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	backoffFirst = time.Second
	backoffMax   = time.Minute
	rpcTimeout   = 20 * time.Second
	// redeclare is how often refused entries are tried again: what stood in the way may be gone.
	redeclare = time.Minute
)

// backoff waits with full jitter, longer after each failure in a row.
type backoff struct {
	limit time.Duration
	unit  time.Duration
}

func (b *backoff) reset() { b.limit = 0 }

func (b *backoff) wait(ctx context.Context) {
	if b.unit == 0 {
		b.unit = backoffFirst
	}
	b.limit = min(max(2*b.limit, b.unit), 60*b.unit)
	t := time.NewTimer(rand.N(b.limit)) //nolint:gosec // jitter is no secret
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// hubLoop keeps the link to the hub until ctx ends. Nothing about streams depends on it.
func (m *member) hubLoop(ctx context.Context) {
	b := &backoff{unit: m.a.backoffUnit}
	for ctx.Err() == nil {
		worked, err := m.hubSession(ctx)
		if worked {
			b.reset()
		}
		if ctx.Err() != nil {
			break
		}
		m.hubAway(err)
		b.wait(ctx)
	}
	m.hubAway(ctx.Err())
}

// hubAway notes that the hub is not reached, and logs it when that is news.
func (m *member) hubAway(err error) {
	text := hubProblem(err)
	m.mu.Lock()
	news := m.hubState.Connected || m.hubState.Problem != text
	m.hubState.Connected, m.hubState.Problem, m.hubKnows = false, text, false
	m.mu.Unlock()
	if news && !errors.Is(err, context.Canceled) {
		m.log.Warn("no link to the hub; services that edges know go on", "hub", m.hubURL, "problem", text)
		if e := hubRefusal(err); e != nil {
			m.a.failed(e)
		}
	}
	m.a.touch()
}

func hubProblem(err error) string {
	if err == nil {
		return "the hub ended the connection"
	}
	var e *reason.Error
	if errors.As(err, &e) {
		return e.Error()
	}
	// An error of the API names its reason beside its text.
	var ce *connect.Error
	if errors.As(err, &ce) {
		if code := ce.Meta().Get("Adit-Error"); code != "" {
			return reason.New(reason.Code(code), reason.HopHub, "%s", ce.Message()).Error()
		}
	}
	return err.Error()
}

// hubRefusal is the hub's refusal of the token itself, if err is one.
func hubRefusal(err error) *reason.Error {
	var e *reason.Error
	if errors.As(err, &e) && e.Code != reason.HubUnreachable && e.Code != reason.StoreUnavailable {
		return e
	}
	return nil
}

// startWatch watches and reports until ctx ends; broke gets the end of the watch.
func (m *member) startWatch(ctx, life context.Context) (broke <-chan error, ended func()) {
	var watcher sync.WaitGroup
	ch := make(chan error, 1)
	watcher.Go(func() { ch <- m.watch(ctx, life) })
	watcher.Go(func() { m.reportLoop(ctx) })
	watcher.Go(func() { m.discoverLoop(ctx) })
	return ch, watcher.Wait
}

// declareNow sends the full list and takes the verdicts; refused is true if any entry was.
func (m *member) declareNow(ctx context.Context) (refused bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	t := m.a.handler.table.Load()
	resp, err := m.hub.Declare(ctx, &hubv1.DeclareRequest{Tunnels: t.declared(), Software: m.a.cfg.Software})
	if err != nil {
		return false, err
	}
	byKey := map[string]*hubv1.Verdict{}
	for _, v := range resp.GetVerdicts() {
		byKey[v.GetKey()] = v
	}
	verdicts := map[string]*hubv1.Verdict{}
	var first *reason.Error
	counts := map[string]float64{}
	for _, s := range t.services {
		if s.managed != nil {
			continue
		}
		key := s.declared.GetKey()
		v := byKey[key]
		if v == nil {
			v = &hubv1.Verdict{Key: key, Code: string(reason.Pending), Detail: "the hub gave no verdict"}
		}
		verdicts[s.id] = v
		counts[v.GetCode()]++
		if refusedVerdict(v.GetCode()) {
			refused = true
			if first == nil {
				first = reason.New(reason.Code(v.GetCode()), reason.HopHub, "%s (%s): %s", key, s.declared.GetName(), v.GetDetail())
			}
		}
	}
	m.mu.Lock()
	old := m.verdicts
	m.verdicts = verdicts
	m.claims = len(verdicts) > 0
	m.mu.Unlock()
	for _, s := range t.services {
		if s.managed == nil {
			m.logVerdict(s, verdicts[s.id], old[s.id])
		}
	}
	m.a.m.services.Reset()
	for code, n := range counts {
		m.a.m.services.WithLabelValues(code).Set(n)
	}
	m.serve()
	m.a.touch()
	if first != nil {
		m.a.failed(first)
	}
	return refused, nil
}

// withdraw declares nothing any more, if the hub can be reached; else it notices by itself.
func (m *member) withdraw(ctx context.Context) {
	m.mu.Lock()
	connected := m.hubState.Connected
	m.mu.Unlock()
	if !connected {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := m.hub.Declare(ctx, &hubv1.DeclareRequest{Software: m.a.cfg.Software}); err != nil {
		m.log.Warn("the services could not be withdrawn; the hub keeps them as offline", "error", err)
	}
}

func refusedVerdict(code string) bool {
	return code != "" && code != string(reason.OK) && code != string(reason.Pending)
}

// logVerdict says what became of an entry, each time that changes.
func (m *member) logVerdict(s *service, v, old *hubv1.Verdict) {
	if old.GetCode() == v.GetCode() && old.GetDetail() == v.GetDetail() && old.GetTunnelId() == v.GetTunnelId() {
		return
	}
	log := m.log.With("entry", s.declared.GetKey(), "service", s.declared.GetName())
	switch {
	case refusedVerdict(v.GetCode()):
		log.Error("service refused", "reason", v.GetCode(), "detail", v.GetDetail())
	case v.GetCode() == string(reason.Pending):
		log.Warn("service waits", "detail", v.GetDetail())
	default:
		log.Info("service declared", "url", v.GetUrl(), "origin", s.originText())
		if v.GetDetail() != "" {
			log.Warn("service declared with a remark", "detail", v.GetDetail())
		}
	}
}

// watch follows the hub's list of edges until the stream or ctx ends; sessions last for life.
func (m *member) watch(ctx, life context.Context) error {
	stream, err := m.hub.Watch(ctx, &hubv1.WatchRequest{})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	var known, building map[string]*hubv1.Resource
	for stream.Receive() {
		msg := stream.Msg()
		m.linked()
		for _, q := range msg.GetAsks() {
			m.asked(life, q)
		}
		if msg.GetRedeclare() {
			wake(m.declare)
		}
		if msg.GetSnapshot() && building == nil {
			building = map[string]*hubv1.Resource{}
		}
		// A snapshot counts when its last chunk is there: half a list is no list.
		into := known
		if msg.GetSnapshot() {
			into = building
		}
		if into == nil {
			continue // beside the revisions: nothing to follow yet
		}
		for _, r := range msg.GetPuts() {
			into[r.Key()] = r
		}
		for _, key := range msg.GetDeletes() {
			delete(into, key)
		}
		if !msg.GetComplete() {
			continue
		}
		if msg.GetSnapshot() {
			known, building = building, nil
		}
		m.heard(life, msg.GetRevision(), known)
	}
	return stream.Err()
}

// heard takes all that the hub says: the edges, and the managed tunnels.
func (m *member) heard(life context.Context, revision uint64, known map[string]*hubv1.Resource) {
	var edges []*wirev1.EdgeAddress
	var managed []*hubv1.Tunnel
	for _, r := range known {
		if e := r.GetEdge(); e != nil && !e.GetOutOfService() {
			edges = append(edges, e.GetAddress())
		}
		if t := r.GetTunnel(); t.GetSource() == sourceManaged {
			managed = append(managed, t)
		}
	}
	if len(edges) > 0 {
		m.mu.Lock()
		m.hubKnows = true
		m.mu.Unlock()
	}
	m.a.setManaged(m, "hub", revision, managed)
	m.setEdges(life, edges, "hub")
}

// reportSoon has the hub, and whoever else asked, told how the agent fares.
func (a *Agent) reportSoon() {
	if m := a.current.Load(); m != nil {
		wake(m.reports)
	}
	a.touch()
}

// reportLoop tells the hub when origins fail or work again, not more often than every two seconds.
func (m *member) reportLoop(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	// What this agent can do is always news to the hub.
	wake(m.reports)
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-m.reports:
		}
		m.report(ctx, false)
		pause.Reset(2 * time.Second)
	}
}

// report tells the hub the state of every service, if it can be reached: nothing depends on it.
func (m *member) report(ctx context.Context, draining bool) {
	m.mu.Lock()
	connected := m.hubState.Connected
	m.mu.Unlock()
	if !connected {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r := &hubv1.ReportRequest{SentAt: timestamppb.Now(), Draining: draining, Software: m.a.cfg.Software, Capabilities: m.a.capabilities()}
	if m.a.cfg.Reach != nil {
		r.Advertised = m.a.cfg.Reach.List()
	}
	for _, s := range m.a.handler.table.Load().services {
		t := &hubv1.TunnelReport{TunnelId: s.id, State: "ok"}
		if e := m.a.problem(s); e != nil {
			t.State, t.Reason, t.Detail = "problem", string(e.Code), e.Refusal().GetDetail()
		}
		r.Tunnels = append(r.Tunnels, t)
	}
	if _, err := m.hub.Report(ctx, r); err != nil && ctx.Err() == nil {
		m.log.Debug("the hub took no report", "error", err)
	}
}
