package hub

import (
	"context"
	"fmt"
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
			s.Edge.OutOfService = r.Drained
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
	// Only the internal CA has a fingerprint that people compare; CA shows it.
	if ca, ok := h.issuer.(interface{ Fingerprint() string }); ok {
		out.CaFingerprint = ca.Fingerprint()
	}
	return out, nil
}

// CA is the internal CA as PEM, for people who compare its fingerprint; nil without one.
func (h *Hub) CA() []byte {
	if ca, ok := h.issuer.(interface{ CA() []byte }); ok {
		return ca.CA()
	}
	return nil
}
