package hub

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

const (
	// edgeSilence is how old an edge's last report may be; then what it said no longer counts.
	edgeSilence = 30 * time.Second
	// declareGrace is how long a replica that has declared lives without a session or a watch.
	declareGrace = 10 * time.Second
)

// replicaKey names one agent process.
type replicaKey struct{ token, replica string }

// presence is what edges and agents reported last: soft state, rebuilt within seconds after a
// start of the hub.
type presence struct {
	mu sync.Mutex
	// edges and agents are what counts: of what this hub and others on its database heard, the
	// newest.
	edges  map[string]*edgePresence
	agents map[replicaKey]*agentPresence
	// own is what this hub heard, others what each other hub did, by its id.
	own    *hearings
	others map[string]*hearings
	// changed are items of own that other hubs have not been told of; nil if there is no other hub.
	changed map[string]bool
}

// hearings is what one hub heard.
type hearings struct {
	edges  map[string]*edgePresence
	agents map[replicaKey]*agentPresence
}

func newHearings() *hearings {
	return &hearings{edges: map[string]*edgePresence{}, agents: map[replicaKey]*agentPresence{}}
}

type edgePresence struct {
	heard    time.Time
	revision uint64
	software string
	draining bool
	sessions []*hubv1.SessionReport
	ports    []*hubv1.PortReport
}

type agentPresence struct {
	watches  int
	declared time.Time
	heard    time.Time
	draining bool
	software string
	hostName string
	// address is where its link to the hub comes from.
	address string
	node    ed25519.PublicKey
	tunnels []*hubv1.TunnelReport
	// capabilities and advertised are shown, see Replica.
	capabilities, advertised []string
}

func newPresence() *presence {
	return &presence{edges: map[string]*edgePresence{}, agents: map[replicaKey]*agentPresence{}, own: newHearings(), others: map[string]*hearings{}}
}

func (p *presence) edge(id string, now time.Time, r *hubv1.ReportRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range r.GetSessions() {
		s.EdgeId = id
	}
	p.own.edges[id] = &edgePresence{
		heard: now, revision: r.GetRevision(), software: r.GetSoftware(), draining: r.GetDraining(),
		sessions: r.GetSessions(), ports: r.GetPorts(),
	}
	p.mergeEdge(id)
	p.note(edgeItem(id))
}

func (p *presence) dropEdge(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.others {
		delete(o.edges, id)
	}
	if p.own.edges[id] != nil {
		delete(p.own.edges, id)
		p.note(edgeItem(id))
	}
	p.mergeEdge(id)
}

// agent changes what is known of one replica.
func (p *presence) agent(k replicaKey, now time.Time, change func(*agentPresence)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.own.agents[k]
	if a == nil {
		a = &agentPresence{}
		p.own.agents[k] = a
	}
	a.heard = now
	change(a)
	p.mergeAgent(k)
	p.note(agentItem(k))
}

// watchEnded notes the end of a watch that was counted in a. What was forgotten meanwhile, since its
// token was revoked or switched off, is not counted down: the replica may be back already.
func (p *presence) watchEnded(k replicaKey, a *agentPresence, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own.agents[k] != a {
		return
	}
	a.heard = now
	a.watches--
	p.mergeAgent(k)
	p.note(agentItem(k))
}

// heard tells whether any edge was heard lately.
func (p *presence) heard(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.edges {
		if e.fresh(now) {
			return true
		}
	}
	return false
}

func (e *edgePresence) fresh(now time.Time) bool { return now.Sub(e.heard) < edgeSilence }

// alive is every replica that lives: with a session at an edge, a watch at the hub, or a
// declaration a moment ago. The value holds the tunnels its sessions serve.
func (p *presence) alive(now time.Time) map[replicaKey]map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[replicaKey]map[string]bool{}
	for _, e := range p.edges {
		if !e.fresh(now) {
			continue
		}
		for _, s := range e.sessions {
			k := replicaKey{s.GetTokenId(), s.GetReplicaId()}
			if out[k] == nil {
				out[k] = map[string]bool{}
			}
			for _, id := range s.GetTunnelIds() {
				out[k][id] = true
			}
		}
	}
	for k, a := range p.agents {
		if out[k] == nil && a.lives(now) {
			out[k] = map[string]bool{}
		}
	}
	return out
}

func (a *agentPresence) lives(now time.Time) bool {
	return a.watches > 0 || !a.draining && now.Sub(a.declared) < declareGrace
}

// lives tells whether one replica lives.
func (p *presence) lives(k replicaKey, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.agents[k]; a != nil && a.lives(now) {
		return true
	}
	for _, e := range p.edges {
		if !e.fresh(now) {
			continue
		}
		for _, s := range e.sessions {
			if s.GetTokenId() == k.token && s.GetReplicaId() == k.replica {
				return true
			}
		}
	}
	return false
}

// forget drops agents that have been gone for a while.
func (p *presence) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sessions := map[replicaKey]bool{}
	for _, e := range p.edges {
		if !e.fresh(now) {
			continue
		}
		for _, s := range e.sessions {
			sessions[replicaKey{s.GetTokenId(), s.GetReplicaId()}] = true
		}
	}
	for k, a := range p.own.agents {
		if !a.lives(now) && !sessions[k] && now.Sub(a.heard) > 10*time.Minute {
			delete(p.own.agents, k)
			p.mergeAgent(k)
			p.note(agentItem(k))
		}
	}
	for id, e := range p.own.edges {
		if now.Sub(e.heard) > 24*time.Hour {
			delete(p.own.edges, id)
			p.mergeEdge(id)
			p.note(edgeItem(id))
		}
	}
}

// dropToken forgets the replicas of a revoked token: their sessions are being closed.
func (p *presence) dropToken(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.agents {
		if k.token != token {
			continue
		}
		for _, o := range p.others {
			delete(o.agents, k)
		}
		if p.own.agents[k] != nil {
			delete(p.own.agents, k)
			p.note(agentItem(k))
		}
		p.mergeAgent(k)
	}
}

// replicas counts the live replicas of each token.
func (p *presence) replicas(now time.Time) map[string]int {
	n := map[string]int{}
	for k := range p.alive(now) {
		n[k.token]++
	}
	return n
}

// portProblem is what an edge cannot bind of a tunnel.
type portProblem struct {
	edge   string
	report *hubv1.PortReport
	// everywhere is true if no edge can: while one does, the tunnel is served.
	everywhere bool
}

// fatal reports whether nobody can reach the tunnel. Of kind http, TLS is left.
func (p *portProblem) fatal() bool {
	return p.everywhere && p.report.GetKind() != wirev1.Kind_KIND_HTTP
}

// served is what still works, as text.
func (p *portProblem) served() string {
	if p.everywhere {
		return "it is served over TLS only"
	}
	return "the other edges serve it"
}

func (p *portProblem) String() string {
	return fmt.Sprintf("port %d on edge %s: %s", p.report.GetPort(), p.edge, p.report.GetProblem())
}

// portProblem returns the first problem that an edge has with a port of a tunnel; nil if none has.
func (p *presence) portProblem(tunnelID string, now time.Time) *portProblem {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *portProblem
	everywhere := true
	for id, e := range p.edges {
		if !e.fresh(now) {
			continue
		}
		i := slices.IndexFunc(e.ports, func(r *hubv1.PortReport) bool { return r.GetTunnelId() == tunnelID && r.GetProblem() != "" })
		if i < 0 {
			everywhere = false
			continue
		}
		if first == nil || id < first.edge {
			first = &portProblem{edge: id, report: e.ports[i]}
		}
	}
	if first != nil {
		first.everywhere = everywhere
	}
	return first
}

// look calls f with the state locked.
func (p *presence) look(f func(edges map[string]*edgePresence, agents map[replicaKey]*agentPresence)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.edges, p.agents)
}
