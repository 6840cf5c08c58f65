package hub

import (
	"context"
	"errors"
	"slices"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// ListEdgeInvites returns one page of live edge tokens, by name.
func (h *Hub) ListEdgeInvites(ctx context.Context, size uint32, page string) ([]*hubv1.EdgeInvite, string, error) {
	at, n, err := pageOf(size, page, 2)
	if err != nil {
		return nil, "", err
	}
	var toks []*store.Token
	edges := map[string]uint32{}
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.Edges()
		if err != nil {
			return err
		}
		for _, e := range all {
			edges[e.TokenID]++
		}
		toks, err = tx.LiveTokensOf([]string{string(identity.KindEdge)}, at[0], at[1], int64(n+1))
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
	out := make([]*hubv1.EdgeInvite, len(toks))
	for i, t := range toks {
		out[i] = &hubv1.EdgeInvite{Id: t.ID, Name: t.Name, MaxEdges: uint32(t.MaxEdges), CreatedAt: stamp(t.CreatedAt), ExpiresAt: stamp(t.ExpiresAt), Edges: edges[t.ID]}
	}
	return out, next, nil
}

func noEdge(id string) *Problem { return notFound("edge", id, "list them with adit edge list") }

// DrainEdge takes an edge out of service, or ends that: agents are sent to the other edges, and it
// takes no new sessions.
func (h *Hub) DrainEdge(ctx context.Context, id string, undo bool) (*hubv1.EdgeStatus, error) {
	err := h.write(ctx, func(tx *store.Tx) error {
		e, err := tx.Edge(id)
		if errors.Is(err, store.ErrNotFound) {
			return noEdge(id)
		}
		if err != nil || e.Drained != undo {
			return err
		}
		tx.Changed("edge/" + id)
		return tx.DrainEdge(id, !undo)
	})
	if err != nil {
		return nil, err
	}
	all, err := h.edgeStatuses(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s *hubv1.EdgeStatus) bool { return s.GetEdge().GetAddress().GetId() == id })
	if i < 0 {
		return nil, noEdge(id)
	}
	return all[i], nil
}

// RemoveEdge forgets an edge. Its key is refused from then on; agents leave it as soon as another
// edge or the hub tells them.
func (h *Hub) RemoveEdge(ctx context.Context, id string) error {
	token := ""
	err := h.write(ctx, func(tx *store.Tx) error {
		e, err := tx.Edge(id)
		if errors.Is(err, store.ErrNotFound) {
			return noEdge(id)
		}
		if err != nil {
			return err
		}
		if e.TokenID == "" && (!h.store.Shared() || h.edgeHeard(id, h.cfg.Now())) {
			return invalid("id", id, "start the server with --roles hub to have none", "is the edge in the hub's own process")
		}
		token = e.TokenID
		if err := tx.RemoveEdge(id); err != nil {
			return err
		}
		h.tellRevoked(tx, token)
		return dropEdges(tx, func(o *store.Edge) bool { return o.ID == id })
	})
	if err != nil {
		return err
	}
	h.presence.dropEdge(id)
	// Other edges of the same token are back in a moment.
	h.onRevoke(token)
	return nil
}

// notRemoved refuses an edge that was removed.
func notRemoved(tx *store.Tx, id string) error {
	gone, err := tx.EdgeRemoved(id)
	if err == nil && gone {
		err = reason.New(reason.TokenRevoked, reason.HopHub, "the edge %s was removed; to join again it needs a new key: delete <data-dir>/edge.key", id)
	}
	return err
}
