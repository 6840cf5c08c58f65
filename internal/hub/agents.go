package hub

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// CreateAgent makes an enrolled agent and its token, which is returned once and not kept.
func (h *Hub) CreateAgent(ctx context.Context, r *hubv1.CreateAgentRequest) (*hubv1.Agent, string, error) {
	tok := &store.Token{Kind: string(identity.KindAgent), Name: r.GetName(), Tenant: store.DefaultTenant}
	if p := checkName("name", r.GetName()); p != nil {
		return nil, "", p
	}
	if err := h.parseGrant("grant.", r.GetGrant(), tok); err != nil {
		return nil, "", err
	}
	if err := parseSources(r.GetFrom(), tok); err != nil {
		return nil, "", err
	}
	if err := mayGrant(ctx, "grant.", grantOf(tok)); err != nil {
		return nil, "", err
	}
	token, err := h.newToken(identity.KindAgent, tok)
	if err != nil {
		return nil, "", err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		if err := h.freeGrants(tx, "grant.", tok); err != nil {
			return err
		}
		tok.CreatedAt = tx.Now.UnixMilli()
		tx.Changed("credential/" + tok.ID)
		return tx.AddToken(tok)
	})
	if store.Duplicate(err) {
		err = conflict(reason.NameConflict, "name", r.GetName(), "", "", "an agent of this name exists", "choose another name, or delete it first")
	}
	if err != nil {
		return nil, "", err
	}
	a, err := h.agent(ctx, tok)
	return a, token, err
}

// mayGrant refuses to give out, or change, what is outside the host patterns of the caller's key.
func mayGrant(ctx context.Context, prefix string, g *hubv1.Grant) error {
	a := ActorFrom(ctx)
	for i, name := range g.GetHostnames() {
		if err := a.MayWrite(fmt.Sprintf("%shostnames[%d]", prefix, i), name); err != nil {
			return err
		}
	}
	for field, ranges := range map[string][]*hubv1.PortRange{"tcp_ports": g.GetTcpPorts(), "udp_ports": g.GetUdpPorts()} {
		if len(ranges) > 0 {
			if err := a.MayWrite(prefix+field, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// enrolled finds a live enrolled agent by id or name.
func enrolled(tx *store.Tx, idOrName string) (*store.Token, error) {
	tok, err := tx.TokenNamed(string(identity.KindAgent), idOrName)
	if errors.Is(err, store.ErrNotFound) || err == nil && tok.RevokedAt != 0 {
		return nil, notFound("enrolled agent", idOrName, "list them with adit agents list; what runs with an invite is managed with adit invite")
	}
	return tok, err
}

// DeleteAgent revokes the tokens of an agent. Its managed tunnels must be gone, or go with it.
func (h *Hub) DeleteAgent(ctx context.Context, idOrName string, force bool) error {
	// Whatever it serves is at stake, whatever its name.
	if err := ActorFrom(ctx).MayWrite("id", ""); err != nil {
		return err
	}
	var ended []string
	err := h.write(ctx, func(tx *store.Tx) error {
		tok, err := enrolled(tx, idOrName)
		if err != nil {
			return err
		}
		served, err := tx.TunnelsOfAgent(tok.ID)
		if err != nil {
			return err
		}
		if len(served) > 0 && !force {
			return &Problem{Code: reason.InUse, Field: "id", Value: idOrName, Text: fmt.Sprintf("serves %d managed tunnels, %s among them", len(served), served[0].Name),
				Held: served[0].ID, Remedy: "delete them or give them another agent first, or delete them too with --force"}
		}
		for _, t := range served {
			if err := h.deleteTunnel(tx, t.ID); err != nil {
				return err
			}
		}
		ended, err = h.revokeAll(tx, tok)
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range ended {
		h.revoked(id)
	}
	return nil
}

// SetAgentEnabled switches an enrolled agent off, or on again. Its sessions end within seconds.
func (h *Hub) SetAgentEnabled(ctx context.Context, idOrName string, enabled bool) (*hubv1.Agent, error) {
	// Whatever it serves is at stake, whatever its name.
	if err := ActorFrom(ctx).MayWrite("id", ""); err != nil {
		return nil, err
	}
	var tok *store.Token
	var ended []string
	err := h.write(ctx, func(tx *store.Tx) (err error) {
		if tok, err = enrolled(tx, idOrName); err != nil || tok.Disabled != enabled {
			return err
		}
		group, err := tx.TokenGroup(tok.ID)
		if err != nil {
			return err
		}
		tok.Disabled = !enabled
		for _, t := range group {
			t.Disabled = !enabled
			if err := tx.SetToken(t); err != nil {
				return err
			}
			tx.Changed("credential/" + t.ID)
			if !enabled {
				h.tellRevoked(tx, t.ID)
				ended = append(ended, t.ID)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ended {
		h.revoked(id)
	}
	return h.agent(ctx, tok)
}

// ListAgents returns one page of what runs with each live token, by name.
func (h *Hub) ListAgents(ctx context.Context, size uint32, page string) ([]*hubv1.Agent, string, error) {
	at, n, err := pageOf(size, page, 2)
	if err != nil {
		return nil, "", err
	}
	var toks []*store.Token
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) {
		toks, err = tx.LiveTokensOf(agentKinds, at[0], at[1], int64(n+1))
		return err
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(toks) > n {
		toks = toks[:n]
		next = pageToken(toks[n-1].Name, toks[n-1].ID)
	}
	out := make([]*hubv1.Agent, len(toks))
	for i, t := range toks {
		if out[i], err = h.agent(ctx, t); err != nil {
			return nil, "", err
		}
	}
	return out, next, nil
}

// GetAgent finds what runs with a token, by token id or name.
func (h *Hub) GetAgent(ctx context.Context, idOrName string) (*hubv1.Agent, error) {
	var tok *store.Token
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		for _, kind := range agentKinds {
			if tok, err = tx.TokenNamed(kind, idOrName); !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound("agent", idOrName, "list them with adit agents list")
	}
	if err != nil {
		return nil, err
	}
	return h.agent(ctx, tok)
}

// agent gathers what is stored and reported of a token's replicas.
func (h *Hub) agent(ctx context.Context, tok *store.Token) (*hubv1.Agent, error) {
	var decls []store.Declaration
	var rows []store.Replica
	var group []*store.Token
	var holder *store.Holder
	tunnels := 0
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if rows, err = tx.ReplicasOf(tok.ID); err != nil {
			return err
		}
		if decls, err = tx.DeclarationsBy(tok.ID, ""); err != nil {
			return err
		}
		if group, err = tx.TokenGroup(tok.ID); err != nil || tok.Kind != string(identity.KindAgent) {
			return err
		}
		served, err := tx.TunnelsOfAgent(tok.ID)
		if err != nil {
			return err
		}
		tunnels = len(served)
		if holder, err = tx.Holder(tok.ID); errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	now := h.cfg.Now()
	reps := map[string]*hubv1.Replica{}
	get := func(id string) *hubv1.Replica {
		if reps[id] == nil {
			reps[id] = &hubv1.Replica{Id: id}
		}
		return reps[id]
	}
	for _, r := range rows {
		x := get(r.ReplicaID)
		x.HostName, x.Software, x.LastSeen = r.HostName, r.Software, stamp(r.DeclaredAt)
	}
	for _, d := range decls {
		v := &hubv1.Verdict{}
		if proto.Unmarshal(d.Verdict, v) == nil {
			h.freshVerdict(v, now)
			get(d.ReplicaID).Verdicts = append(get(d.ReplicaID).Verdicts, v)
		}
	}
	h.presence.addTo(tok.ID, now, get)
	a := &hubv1.Agent{TokenId: tok.ID, Name: tok.Name, Tenant: tok.Tenant, Kind: tok.Kind, State: "offline",
		CreatedAt: stamp(tok.CreatedAt), Grant: grantOf(tok), From: tok.From(), ManagedTunnels: uint32(tunnels)}
	for _, t := range group {
		if t.EndsAt > now.UnixMilli() {
			a.OldTokenExpiresAt = stamp(max(t.EndsAt, a.GetOldTokenExpiresAt().AsTime().UnixMilli()))
		}
	}
	if holder != nil && holder.Replica != "" {
		a.HolderReplica, a.HolderHost, a.HolderSince = holder.Replica, holder.HostName, stamp(holder.Since)
	}
	for _, r := range reps {
		r.State = h.replicaState(tok, a.HolderReplica, r, now)
		switch {
		case r.State == "online", r.State == "standby" && a.State == "offline":
			a.State = r.State
		}
		if r.State != "offline" {
			r.LastSeen = stamp(now.UnixMilli())
		}
		if seen := r.GetLastSeen(); seen != nil && seen.AsTime().After(a.GetLastSeenAt().AsTime()) {
			a.LastSeenAt = seen
		}
		a.Replicas = append(a.Replicas, r)
	}
	if tok.RevokedAt != 0 || tok.Disabled {
		a.State = "disabled"
	}
	sort.Slice(a.Replicas, func(i, j int) bool { return a.Replicas[i].GetId() < a.Replicas[j].GetId() })
	return a, nil
}

// replicaState is what a replica does: of an enrolled agent one serves, the others wait.
func (h *Hub) replicaState(tok *store.Token, holder string, r *hubv1.Replica, now time.Time) string {
	switch {
	case !h.presence.lives(replicaKey{tok.ID, r.GetId()}, now):
		return "offline"
	case tok.Kind == string(identity.KindAgent) && len(r.GetSessions()) == 0 && r.GetId() != holder:
		return "standby"
	}
	return "online"
}

// freshVerdict shows what edges report of a port: a refusal if none can bind it, else a remark.
func (h *Hub) freshVerdict(v *hubv1.Verdict, now time.Time) {
	if v.GetCode() != string(reason.OK) {
		return
	}
	p := h.presence.portProblem(v.GetTunnelId(), now)
	if p == nil {
		return
	}
	if p.fatal() {
		v.Code = string(reason.PortUnavailable)
	}
	v.Detail = p.String()
}

// addTo adds sessions and reports of a token's replicas.
func (p *presence) addTo(token string, now time.Time, get func(id string) *hubv1.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.edges {
		if !e.fresh(now) {
			continue
		}
		for _, s := range e.sessions {
			if s.GetTokenId() != token {
				continue
			}
			r := get(s.GetReplicaId())
			r.HostName, r.Software = s.GetHostName(), s.GetSoftware()
			r.Sessions = append(r.Sessions, s)
		}
	}
	for k, a := range p.agents {
		if k.token != token {
			continue
		}
		r := get(k.replica)
		r.Tunnels, r.LastSeen = a.tunnels, stamp(a.heard.UnixMilli())
		r.Capabilities, r.Advertised = a.capabilities, a.advertised
		if a.hostName != "" {
			r.HostName = a.hostName
		}
		if a.software != "" {
			r.Software = a.software
		}
	}
}
