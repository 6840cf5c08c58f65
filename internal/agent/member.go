package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// member is what the agent is under one token: identity, link to the hub, sessions with edges. A
// new token makes a new member beside the old one, which then drains.
type member struct {
	a       *Agent
	log     *slog.Logger
	tokenID string
	// exclusive: an enrolment, which one process holds at a time.
	exclusive bool
	hubURL    string
	hubHost   string
	dialler   *opening.Dialler
	hub       hubv1connect.MachineServiceClient
	// idle closes idle connections to the hub; end ends run.
	idle func()
	end  context.CancelFunc
	// declare wakes the hub loop after the list changed; unsettled wakes settle after an edge
	// did not say ok.
	declare, unsettled chan struct{}
	// states wakes follow after a session came or went.
	states chan struct{}
	// reports wakes report after an origin failed or worked again.
	reports chan struct{}
	// answering holds one value for each question of the hub that is being answered, asking waits
	// for them.
	answering chan struct{}
	// found wakes the report of discovered services.
	found  chan struct{}
	asking sync.WaitGroup

	mu       sync.Mutex
	edges    map[string]*edgeRun
	leaving  sync.WaitGroup
	hubState HubStatus
	// hubKnows is true while the hub's own list of edges is watched: it wins over what edges answer.
	hubKnows bool
	verdicts map[string]*hubv1.Verdict                   // by tunnel id
	served   map[string]map[string]*wirev1.TunnelVerdict // by edge id, tunnel id
	ended    bool
	// claims: entries were declared and not withdrawn.
	claims bool
	// serving orders what connectors are told.
	serving sync.Mutex
}

// connector is the part of *link.Connector that an agent needs.
type connector interface {
	Run(ctx context.Context)
	Serve(tunnelIDs []string)
	Health(tunnels []*wirev1.TunnelHealth)
	Drain()
	Sessions() []link.SessionInfo
	LastError() (error, time.Time)
}

type edgeRun struct {
	edge   *wirev1.EdgeAddress
	conn   connector
	cancel context.CancelFunc
	done   chan struct{}
}

func parseToken(text string) (*identity.Token, error) {
	t, err := identity.ParseToken(text)
	if err != nil {
		return nil, err
	}
	if t.Kind != identity.KindInvite && t.Kind != identity.KindAgent {
		return nil, fmt.Errorf("token is of the kind %q; an agent needs an adit_invite_ or adit_agent_ token", t.Kind)
	}
	return t, nil
}

// newMember makes a member of a token. After a change of tokens it is the same process to an edge: it
// takes an enrolment over from old.
func newMember(a *Agent, t *identity.Token, old *member) (*member, error) {
	keys, err := t.Keys()
	if err != nil {
		return nil, err
	}
	node, err := identity.NewNodeKey()
	if err != nil {
		return nil, err
	}
	replica := make([]byte, 16)
	if _, err := rand.Read(replica); err != nil {
		return nil, err
	}
	if old != nil {
		replica = old.dialler.ReplicaID
	}
	m := &member{
		a: a, log: a.log, tokenID: keys.Public().HexID(), exclusive: t.Kind == identity.KindAgent, hubURL: t.Body.GetHubUrl(),
		dialler: &opening.Dialler{
			Role: wirev1.Role_ROLE_AGENT, Keys: keys, Node: node, ReplicaID: replica,
			HostName: a.cfg.HostName, Software: a.cfg.Software,
		},
		declare: make(chan struct{}, 1), states: make(chan struct{}, 1), unsettled: make(chan struct{}, 1), reports: make(chan struct{}, 1),
		answering: make(chan struct{}, maxAnswering), found: make(chan struct{}, 1), edges: map[string]*edgeRun{},
		verdicts: map[string]*hubv1.Verdict{}, served: map[string]map[string]*wirev1.TunnelVerdict{},
	}
	// Edges know the hub by the name in the token, whatever address reaches it.
	u, err := url.Parse(m.hubURL)
	if err != nil {
		return nil, err
	}
	m.hubHost = u.Hostname()
	if a.cfg.ServerURL != "" {
		m.hubURL = a.cfg.ServerURL
	}
	client, base, err := hublink.NewClient(hublink.ClientConfig{
		URL: m.hubURL, Pins: t.Body.GetHubPins(), Dialler: m.dialler, Proxy: a.cfg.Proxy, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	m.hub = hubv1connect.NewMachineServiceClient(client, base)
	m.idle = client.CloseIdleConnections
	m.hubState = HubStatus{URL: m.hubURL, Problem: "not reached yet"}
	return m, nil
}

// run works until ctx ends: first with the edges that token and state name, then with what hub
// and edges say.
func (m *member) run(ctx context.Context, first []*wirev1.EdgeAddress) {
	m.setEdges(ctx, first, "token")
	var settling sync.WaitGroup
	settling.Go(func() { m.settle(ctx) })
	if m.exclusive {
		settling.Go(func() { m.follow(ctx) })
	}
	m.hubLoop(ctx)
	settling.Wait()
	m.asking.Wait()
	m.mu.Lock()
	m.ended = true
	for id := range m.edges {
		m.dropEdge(id, 0)
	}
	m.mu.Unlock()
	m.leaving.Wait()
	m.idle()
}

// learnFromEdge takes the list that an edge answered, unless the hub says more.
func (m *member) learnFromEdge(ctx context.Context, list []*wirev1.EdgeAddress) {
	m.mu.Lock()
	known := m.hubKnows
	m.mu.Unlock()
	if !known {
		m.setEdges(ctx, list, "edge")
	}
}

// setEdges makes the sessions follow list. Edges that stay are not touched; an empty or broken
// list changes nothing.
func (m *member) setEdges(ctx context.Context, list []*wirev1.EdgeAddress, from string) {
	want := map[string]*wirev1.EdgeAddress{}
	for _, e := range list {
		if err := validEdge(e); err != nil {
			m.log.Warn("edge left out", "source", from, "error", err)
			continue
		}
		want[e.GetId()] = e
	}
	if len(want) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || ctx.Err() != nil {
		return
	}
	changed := false
	for id, e := range want {
		old := m.edges[id]
		if old != nil && sameEdge(old.edge, e) {
			continue
		}
		changed = true
		if old != nil {
			m.dropEdge(id, m.a.cfg.GracePeriod)
		}
		m.addEdge(ctx, e)
	}
	for id := range m.edges {
		if want[id] == nil {
			changed = true
			m.dropEdge(id, m.a.cfg.GracePeriod)
		}
	}
	if changed {
		m.log.Info("edges", "source", from, "count", len(want))
		m.a.saveEdges(m.tokenID, list)
		m.a.touch()
	}
}

func sameEdge(a, b *wirev1.EdgeAddress) bool {
	return string(a.GetKeyHash()) == string(b.GetKeyHash()) && slices.Equal(a.GetAddresses(), b.GetAddresses())
}

func validEdge(e *wirev1.EdgeAddress) error {
	switch {
	case len(e.GetAddresses()) == 0:
		return fmt.Errorf("edge %s has no address", e.GetId())
	case len(e.GetKeyHash()) != 32:
		return fmt.Errorf("edge %s has no key hash", e.GetId())
	case e.GetId() != identity.KeyID(e.GetKeyHash()):
		return fmt.Errorf("edge %s has the key of %s", e.GetId(), identity.KeyID(e.GetKeyHash()))
	}
	return nil
}

// addEdge is called with mu held.
func (m *member) addEdge(ctx context.Context, e *wirev1.EdgeAddress) {
	id := e.GetId()
	e = proto.Clone(e).(*wirev1.EdgeAddress)
	ctx, cancel := context.WithCancel(ctx)
	r := &edgeRun{edge: e, cancel: cancel, done: make(chan struct{})}
	r.conn = m.a.connect(link.ConnectorConfig{
		Dialler: m.dialler, Edge: e, HubHost: m.hubHost, Carriers: m.a.cfg.Carriers, Proxy: m.a.cfg.Proxy,
		Handler: m.a.handler, MaxLanes: m.a.cfg.MaxLanes,
		OnEdges:  func(l []*wirev1.EdgeAddress) { m.learnFromEdge(ctx, l) },
		OnServed: func(v []*wirev1.TunnelVerdict) { m.edgeServed(id, v) },
		OnState:  m.stateChanged,
		Log:      m.log, Registry: m.a.cfg.Registry,
	})
	m.edges[id] = r
	r.conn.Serve(m.serveIDs())
	r.conn.Health(m.a.checks.failing())
	go func() {
		defer close(r.done)
		r.conn.Run(ctx)
	}()
}

// dropEdge is called with mu held. The connector drains; after grace it ends.
func (m *member) dropEdge(id string, grace time.Duration) {
	r := m.edges[id]
	delete(m.edges, id)
	delete(m.served, id)
	m.leaving.Go(func() {
		if grace > 0 {
			r.conn.Drain()
			m.a.untilIdle(grace, r.active)
		}
		r.cancel()
		<-r.done
	})
}

// active is the number of streams on the sessions of one edge.
func (r *edgeRun) active() int64 {
	var n int64
	for _, s := range r.conn.Sessions() {
		n += int64(s.Streams)
	}
	return n
}

// serveIDs is what edges are told this replica serves: all but what the hub refused. Called with
// mu held.
func (m *member) serveIDs() []string {
	var ids []string
	for _, s := range m.a.handler.table.Load().services {
		// A port that no edge can bind now is served all the same: it may become free.
		v := m.verdicts[s.id]
		if code := v.GetCode(); !refusedVerdict(code) || code == string(reason.PortUnavailable) {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// serve tells every edge the set, and thereby asks for verdicts. It calls connectors without mu:
// they call back.
func (m *member) serve() {
	m.serving.Lock()
	defer m.serving.Unlock()
	m.mu.Lock()
	ids := m.serveIDs()
	m.mu.Unlock()
	for _, r := range m.runs() {
		r.conn.Serve(ids)
	}
}

// tellHealth tells every edge which origins fail their checks.
func (m *member) tellHealth() {
	failing := m.a.checks.failing()
	for _, r := range m.runs() {
		r.conn.Health(failing)
	}
}

// runs are the edges in use, in order of their ids.
func (m *member) runs() []*edgeRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Collect(maps.Values(m.edges))
	slices.SortFunc(out, func(a, b *edgeRun) int { return strings.Compare(a.edge.GetId(), b.edge.GetId()) })
	return out
}

// edgeServed takes an edge's answer, which names every tunnel it was told of.
func (m *member) edgeServed(edge string, verdicts []*wirev1.TunnelVerdict) {
	m.mu.Lock()
	byID, old := map[string]*wirev1.TunnelVerdict{}, m.served[edge]
	for _, v := range verdicts {
		id := v.GetTunnelId()
		byID[id] = v
		if v.GetVerdict() != string(reason.OK) {
			wake(m.unsettled)
		}
		if s := m.a.handler.table.Load().byID[id]; s != nil && old[id].GetVerdict() != v.GetVerdict() {
			m.log.Debug("edge's verdict", "edge", edge, "service", s.declared.GetName(), "verdict", v.GetVerdict(), "detail", v.GetDetail())
		}
	}
	if m.edges[edge] != nil {
		m.served[edge] = byID
	}
	m.mu.Unlock()
	m.a.touch()
}

// settle asks edges again while any of them does not serve what the hub has agreed to: their
// snapshots follow a moment later, and a busy port may become free.
func (m *member) settle(ctx context.Context) {
	const first, last = 200 * time.Millisecond, 30 * time.Second
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.unsettled:
		}
		for d := first; ; d = min(2*d, last) {
			pause.Reset(d)
			select {
			case <-ctx.Done():
				return
			case <-pause.C:
			}
			if !m.waiting() {
				break
			}
			m.serve()
		}
	}
}

func (m *member) waiting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.serveIDs()
	for _, byID := range m.served {
		for _, id := range ids {
			if v := byID[id]; v != nil && v.GetVerdict() != string(reason.OK) {
				return true
			}
		}
	}
	return false
}

// wake makes the receiver of c look again; it never blocks.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain announces the end to edges and hub.
func (m *member) drain(ctx context.Context) {
	for _, r := range m.runs() {
		r.conn.Drain()
	}
	m.report(ctx, true)
}

// sessions counts the sessions that are up.
func (m *member) sessions() int {
	n := 0
	for _, r := range m.runs() {
		n += len(r.conn.Sessions())
	}
	return n
}

// status fills in what this member knows.
func (m *member) status(s *Status) {
	for _, r := range m.runs() {
		e := EdgeStatus{ID: r.edge.GetId(), Addresses: r.edge.GetAddresses()}
		for _, i := range r.conn.Sessions() {
			e.Sessions++
			s.Sessions = append(s.Sessions, SessionStatus{
				Edge: e.ID, Carrier: i.Carrier, Path: i.Path, Remote: i.Remote.String(), Since: i.Since,
				Draining: i.Draining, RTTMillis: float64(i.RTT.Microseconds()) / 1000, Lanes: i.Lanes, Streams: i.Streams,
			})
		}
		if err, at := r.conn.LastError(); err != nil {
			e.Problem = at.UTC().Format(time.RFC3339) + ": " + err.Error()
		}
		s.Edges = append(s.Edges, e)
	}
	s.Ready = len(s.Sessions) > 0
	s.Standby = m.standby()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Hub = m.hubState
	for _, svc := range m.a.handler.table.Load().services {
		v := ServiceStatus{
			Key: svc.declared.GetKey(), Name: svc.declared.GetName(), Kind: kindName(svc.declared.GetKind()),
			Origin: svc.originText(), TunnelID: svc.id, Access: accessName(svc.declared), Verdict: string(reason.Pending), Detail: "the hub has not answered yet",
		}
		if svc.managed != nil {
			v.Verdict, v.Detail, v.Managed = string(reason.OK), "", true
		}
		if svc.problem != nil {
			v.Verdict, v.Detail = string(svc.problem.Code), svc.problem.Detail
		}
		if h := m.verdicts[svc.id]; h != nil {
			v.Verdict, v.Detail, v.URL = h.GetCode(), h.GetDetail(), h.GetUrl()
		}
		if e := m.a.problem(svc); e != nil {
			v.Problem = e.Error()
		}
		for edge, byID := range m.served {
			if e := byID[svc.id]; e != nil {
				if v.Edges == nil {
					v.Edges = map[string]string{}
				}
				v.Edges[edge] = e.GetVerdict()
			}
		}
		s.Services = append(s.Services, v)
	}
}
