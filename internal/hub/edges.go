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

// InviteEdge makes a token with which further edges join.
func (h *Hub) InviteEdge(ctx context.Context, r *hubv1.InviteEdgeRequest) (id, token string, err error) {
	if p := checkName("name", r.GetName()); p != nil {
		return "", "", p
	}
	if r.GetMaxEdges() > 1000 {
		return "", "", invalid("max_edges", fmt.Sprint(r.GetMaxEdges()), "give at most 1000, or 0 for no limit", "is too many")
	}
	tok := &store.Token{Kind: string(identity.KindEdge), Name: r.GetName(), Tenant: store.DefaultTenant, MaxEdges: int(r.GetMaxEdges())}
	if e := r.GetExpiresAt(); e != nil {
		if !e.IsValid() || !e.AsTime().After(h.cfg.Now()) {
			return "", "", invalid("expires_at", e.AsTime().Format(time.RFC3339), "give a time in the future, or none", "is in the past")
		}
		tok.ExpiresAt = e.AsTime().UnixMilli()
	}
	if token, err = h.newToken(identity.KindEdge, tok); err != nil {
		return "", "", err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		tok.CreatedAt = tx.Now.UnixMilli()
		return tx.AddToken(tok)
	})
	if store.Duplicate(err) {
		err = conflict(reason.NameConflict, "name", r.GetName(), "", "", "an edge invite of this name exists", "choose another name, or revoke it first")
	}
	if err != nil {
		return "", "", err
	}
	return tok.ID, token, nil
}

// RevokeEdgeInvite ends an edge token and removes its edges.
func (h *Hub) RevokeEdgeInvite(ctx context.Context, idOrName string) error {
	tok, err := h.tokenNamed(ctx, identity.KindEdge, "edge", idOrName)
	if err != nil {
		return err
	}
	var mine []string
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		edges, err := tx.Edges()
		for _, e := range edges {
			if e.TokenID == tok.ID {
				mine = append(mine, e.ID)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := h.revoke(ctx, identity.KindEdge, "edge", tok.ID); err != nil {
		return err
	}
	for _, id := range mine {
		h.presence.dropEdge(id)
	}
	return nil
}

// ListEdges returns one page of edges by id.
func (h *Hub) ListEdges(ctx context.Context, size uint32, page string) ([]*hubv1.EdgeStatus, string, error) {
	all, err := h.edgeStatuses(ctx)
	if err != nil {
		return nil, "", err
	}
	return cut(all, func(e *hubv1.EdgeStatus) string { return e.GetEdge().GetAddress().GetId() }, size, page)
}

func (h *Hub) edgeStatuses(ctx context.Context) ([]*hubv1.EdgeStatus, error) {
	var rows []*store.Edge
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.Edges(); return err }); err != nil {
		return nil, err
	}
	now := h.cfg.Now()
	var out []*hubv1.EdgeStatus
	h.presence.look(func(edges map[string]*edgePresence, _ map[replicaKey]*agentPresence) {
		for _, r := range rows {
			s := &hubv1.EdgeStatus{Edge: &hubv1.Edge{}, TokenId: r.TokenID, State: "offline", LastSeen: stamp(r.LastSeen), Software: r.Software}
			if proto.Unmarshal(r.Spec, s.Edge) != nil {
				continue
			}
			if p := edges[r.ID]; p != nil {
				s.LastSeen, s.Revision, s.Software = stamp(p.heard.UnixMilli()), p.revision, p.software
				if p.fresh(now) {
					s.State, s.Sessions = "online", uint32(len(p.sessions))
				}
			}
			out = append(out, s)
		}
	})
	return out, nil
}

// Server describes the hub itself.
func (h *Hub) Server(ctx context.Context) (*hubv1.GetServerResponse, error) {
	edges, err := h.edgeStatuses(ctx)
	if err != nil {
		return nil, err
	}
	out := &hubv1.GetServerResponse{
		Version: h.cfg.Version, Domain: h.cfg.Domain, HubHost: h.cfg.HubHost, Time: stamp(h.cfg.Now().UnixMilli()), Edges: edges,
	}
	// Only the internal CA has a fingerprint that people compare.
	if ca, ok := h.issuer.(interface{ Fingerprint() string }); ok {
		out.CaFingerprint = ca.Fingerprint()
	}
	return out, nil
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
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if rows, err = tx.ReplicasOf(tok.ID); err != nil {
			return err
		}
		decls, err = tx.DeclarationsBy(tok.ID, "")
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
	a := &hubv1.Agent{TokenId: tok.ID, Name: tok.Name, Tenant: tok.Tenant, State: "offline"}
	for id, r := range reps {
		r.State = "offline"
		if h.presence.lives(replicaKey{tok.ID, id}, now) {
			a.State, r.State = "online", "online"
			r.LastSeen = stamp(now.UnixMilli())
		}
		a.Replicas = append(a.Replicas, r)
	}
	if tok.RevokedAt != 0 {
		a.State = "disabled"
	}
	sort.Slice(a.Replicas, func(i, j int) bool { return a.Replicas[i].GetId() < a.Replicas[j].GetId() })
	return a, nil
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
		if a.hostName != "" {
			r.HostName = a.hostName
		}
		if a.software != "" {
			r.Software = a.software
		}
	}
}
