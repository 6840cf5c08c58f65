package edge

import (
	"context"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// registry knows which replicas serve which tunnels. It is the dialer's source.
type registry struct {
	edge *Edge

	mu sync.RWMutex
	// serving lists by tunnel id those that may get streams; the slices are never changed.
	serving map[string][]dial.Replica
	// arrived is closed when a replica began to serve something; waiting counts who waits for it.
	arrived chan struct{}
	waiting int
	// members are the live replicas, and wanted what each named last.
	members map[*link.Replica]*member
}

type member struct {
	replica dial.Replica
	wanted  map[string]struct{}
	// failing are the origins that fail the replica's checks, by tunnel id.
	failing map[string][]uint32
}

func newRegistry(e *Edge) *registry {
	return &registry{edge: e, serving: map[string][]dial.Replica{}, members: map[*link.Replica]*member{}, arrived: make(chan struct{})}
}

// Replicas lists the replicas that serve a tunnel now and take new streams.
func (g *registry) Replicas(tunnelID string) []dial.Replica {
	if agent, ok := strings.CutPrefix(tunnelID, forwardTo); ok {
		return g.replicasOfAgent(agent)
	}
	g.mu.RLock()
	rs := g.serving[tunnelID]
	g.mu.RUnlock()
	unavailable := func(r dial.Replica) bool { return !r.(*metered).Available() }
	if !slices.ContainsFunc(rs, unavailable) {
		return rs
	}
	return slices.DeleteFunc(slices.Clone(rs), unavailable)
}

// serve takes the full set of tunnels that r serves now, and answers for each.
func (g *registry) serve(r *link.Replica, ids []string) []*wirev1.TunnelVerdict {
	wanted := make(map[string]struct{}, len(ids))
	for _, id := range ids {
		wanted[id] = struct{}{}
	}
	v := g.edge.view.Load()
	verdicts := make([]*wirev1.TunnelVerdict, len(ids))
	g.mu.Lock()
	m := g.member(r)
	for id := range m.wanted {
		if _, still := wanted[id]; !still {
			g.drop(id, m.replica)
		}
	}
	m.wanted = wanted
	for i, id := range ids {
		verdicts[i] = g.judge(v, r, id)
		g.set(id, m.replica, mayServe(v, r, id))
	}
	g.mu.Unlock()
	g.edge.ports.replicasChanged()
	g.edge.wakeReport()
	return verdicts
}

func (g *registry) member(r *link.Replica) *member {
	m := g.members[r]
	if m == nil {
		m = &member{replica: &metered{Replica: r, metrics: g.edge.metrics, traffic: g.edge.traffic}}
		g.members[r] = m
	}
	return m
}

func mayServe(v *view, r *link.Replica, id string) bool {
	t := v.table.Get(id)
	return t != nil && slices.Contains(t.Tunnel.GetTokenIds(), v.owner(r.TokenID()))
}

// judge says what this edge makes of a replica that serves tunnel id.
func (g *registry) judge(v *view, r *link.Replica, id string) *wirev1.TunnelVerdict {
	out := &wirev1.TunnelVerdict{TunnelId: id, Verdict: string(reason.OK)}
	t := v.table.Get(id)
	switch {
	case t == nil:
		out.Verdict = string(reason.Pending)
		out.Detail = "this edge has not heard of the tunnel from the hub yet"
	case !slices.Contains(t.Tunnel.GetTokenIds(), v.owner(r.TokenID())):
		out.Verdict = string(reason.GrantMissing)
		out.Detail = "the tunnel belongs to another token"
	default:
		if problem := g.edge.ports.problem(id); problem != "" {
			out.Detail = problem
			if t.Tunnel.GetKind() != wirev1.Kind_KIND_HTTP { // TLS is left
				out.Verdict = string(reason.PortUnavailable)
			}
		}
	}
	return out
}

// set makes r serve id, or not. g.mu is held.
func (g *registry) set(id string, r dial.Replica, on bool) {
	rs := g.serving[id]
	if has := slices.Contains(rs, r); has == on {
		return
	}
	if !on {
		g.drop(id, r)
		return
	}
	g.serving[id] = append(slices.Clip(rs), r)
	if g.waiting > 0 {
		close(g.arrived)
		g.arrived = make(chan struct{})
	}
}

// Await implements dial.Awaiter: visitors of an enrolled agent that went a moment ago wait for its
// successor.
func (g *registry) Await(ctx context.Context, t *hubv1.Tunnel) bool {
	until := g.edge.enrol.successor(g.edge.view.Load(), t.GetTokenIds())
	if until.IsZero() {
		return false
	}
	g.mu.Lock()
	if g.waiting >= maxWaiting {
		g.mu.Unlock()
		return false
	}
	g.waiting++
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
	}()
	limit := time.NewTimer(until.Sub(g.edge.cfg.Now()))
	defer limit.Stop()
	for {
		g.mu.RLock()
		arrived := g.arrived
		g.mu.RUnlock()
		if len(g.Replicas(t.GetId())) > 0 {
			return true
		}
		select {
		case <-arrived:
		case <-limit.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (g *registry) drop(id string, r dial.Replica) {
	rs := slices.DeleteFunc(slices.Clone(g.serving[id]), func(x dial.Replica) bool { return x == r })
	if len(rs) == 0 {
		delete(g.serving, id)
		return
	}
	g.serving[id] = rs
}

// refresh judges again who serves the tunnels that changed.
func (g *registry) refresh(changed map[string]tunnelChange) {
	if len(changed) == 0 {
		return
	}
	v := g.edge.view.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	for r, m := range g.members {
		for id := range changed {
			if _, ok := m.wanted[id]; ok {
				g.set(id, m.replica, mayServe(v, r, id))
			}
		}
	}
}

func (g *registry) joined(r *link.Replica) {
	g.mu.Lock()
	g.member(r)
	g.mu.Unlock()
	g.edge.cfg.Log.Info("an agent connected", "replica", r.ID(), "host", r.HostName(), "version", r.Software(), "token", r.TokenID())
	g.edge.wakeReport()
}

func (g *registry) left(r *link.Replica) {
	g.mu.Lock()
	if m := g.members[r]; m != nil {
		for id := range m.wanted {
			g.drop(id, m.replica)
		}
		delete(g.members, r)
	}
	g.mu.Unlock()
	g.edge.enrol.gone(r)
	g.edge.proxy.CloseReplica(r.ID())
	g.edge.ports.replicasChanged()
	g.edge.cfg.Log.Info("an agent left", "replica", r.ID(), "host", r.HostName())
	g.edge.wakeReport()
}

// drains gives up what waits on r for a next request, so that its agent can end.
func (g *registry) drains(r *link.Replica) {
	g.edge.enrol.gone(r)
	g.edge.proxy.CloseReplica(r.ID())
	g.edge.wakeReport()
}

// health takes which origins fail a replica's checks.
func (g *registry) health(r *link.Replica, failing []*wirev1.TunnelHealth) {
	by := make(map[string][]uint32, len(failing))
	for _, t := range failing {
		by[t.GetTunnelId()] = t.GetFailing()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.member(r).failing = by
}

// fails reports whether an origin of a tunnel fails the checks of every replica that serves it.
func (g *registry) fails(tunnelID string, origin uint32) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	rs := g.serving[tunnelID]
	for _, r := range rs {
		m := g.members[r.(*metered).Replica]
		if m == nil || !slices.Contains(m.failing[tunnelID], origin) {
			return false
		}
	}
	return len(rs) > 0
}

// wanted are the tunnels that r named, sorted.
func (g *registry) wanted(r *link.Replica) []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if m := g.members[r]; m != nil {
		return slices.Sorted(maps.Keys(m.wanted))
	}
	return nil
}

// admit says what the view knows of the token of an opening from remote. The acceptor checks the
// proof.
func (e *Edge) admit(o *wirev1.Opening, remote netip.AddrPort) link.Admission {
	v := e.view.Load()
	if !v.complete {
		return link.Admission{Refusal: reason.New(reason.HubUnreachable, reason.HopEdge, "this edge has not heard from its hub yet; try again")}
	}
	id := hex.EncodeToString(o.GetTokenId())
	c := v.credentials[id]
	a := link.Admission{Credential: c}
	if c == nil {
		return a
	}
	known := e.knows(id, hex.EncodeToString(o.GetReplicaId()))
	if known && c.GetExpiresAt() != nil && !c.GetExpiresSessions() {
		// Expiry bounds new replicas; this one runs since before.
		a.Credential = unexpired(c)
	}
	switch {
	case c.GetDisabled():
		a.Refusal = reason.New(reason.Disabled, reason.HopEdge, "%q is switched off; adit agents enable switches it on again", c.GetName())
	case e.outOfService():
		a.Refusal = reason.New(reason.Draining, reason.HopEdge, "this edge was taken out of service (adit edge drain); connect to another one")
	case e.draining.Load():
		a.Refusal = reason.New(reason.Draining, reason.HopEdge, "this edge shuts down; connect to another one")
	case !from(c, remote.Addr()):
		a.Refusal = reason.New(reason.SourceDenied, reason.HopEdge, "the token %q may not be used from %s; its invite names the networks (--from)", c.GetName(), remote.Addr())
	case !known && c.GetMaxReplicas() > 0 && e.replicasOf(id) >= int(c.GetMaxReplicas()):
		a.Refusal = reason.New(reason.TooManyReplicas, reason.HopEdge, "the token %q already has %d replicas, its cap (--max-replicas)", c.GetName(), c.GetMaxReplicas())
	default:
		a.Refusal = e.tooOld()
	}
	return a
}

func unexpired(c *hubv1.Credential) *hubv1.Credential {
	return &hubv1.Credential{
		TokenId: c.GetTokenId(), Tenant: c.GetTenant(), Name: c.GetName(), Ed25519Public: c.GetEd25519Public(),
		Mldsa65Public: c.GetMldsa65Public(), Revoked: c.GetRevoked(), MaxReplicas: c.GetMaxReplicas(), From: c.GetFrom(), Grant: c.GetGrant(),
		Kind: c.GetKind(), MemberOf: c.GetMemberOf(),
	}
}

// from reports whether a token may be used from addr. A network that does not parse admits nobody.
func from(c *hubv1.Credential, addr netip.Addr) bool {
	if len(c.GetFrom()) == 0 {
		return true
	}
	for _, s := range c.GetFrom() {
		if p, err := netip.ParsePrefix(s); err == nil && p.Contains(addr.Unmap()) {
			return true
		}
	}
	return false
}

// knows reports whether a replica of the token has a session here now.
func (e *Edge) knows(tokenID, replicaID string) bool {
	for _, r := range e.acceptor.Replicas() {
		if r.ID() == replicaID && r.TokenID() == tokenID {
			return true
		}
	}
	return false
}

func (e *Edge) replicasOf(tokenID string) (n int) {
	v := e.view.Load()
	for _, r := range e.acceptor.Replicas() {
		if v.owner(r.TokenID()) == v.owner(tokenID) {
			n++
		}
	}
	return n
}

// admitted says why the running sessions of a token must end; nil = they go on.
func (e *Edge) admitted(tokenID string) *reason.Error {
	c := e.view.Load().credentials[tokenID]
	switch {
	case c == nil:
		return reason.New(reason.TokenUnknown, reason.HopEdge, "the token was deleted; create a new invite")
	case c.GetRevoked():
		return reason.New(reason.TokenRevoked, reason.HopEdge, "the token %q was revoked; create a new invite", c.GetName())
	case c.GetDisabled():
		return reason.New(reason.Disabled, reason.HopEdge, "%q is switched off; adit agents enable switches it on again", c.GetName())
	case c.GetExpiresSessions() && c.GetExpiresAt() != nil && !e.cfg.Now().Before(c.GetExpiresAt().AsTime()):
		return reason.New(reason.TokenExpired, reason.HopEdge, "the token %q expired at %s; create a new invite", c.GetName(), c.GetExpiresAt().AsTime().Format(time.RFC3339))
	}
	return nil
}

// recheckExpiry ends sessions of tokens whose expiry ends sessions, when it comes.
func (e *Edge) recheckExpiry(ctx context.Context) {
	for sleep(ctx, e.cfg.ReportInterval) {
		for _, r := range e.acceptor.Replicas() {
			if c := e.view.Load().credentials[r.TokenID()]; c.GetExpiresSessions() && e.admitted(r.TokenID()) != nil {
				e.acceptor.Recheck(e.admitted)
				break
			}
		}
	}
}
