package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	defaultOverlap = 24 * time.Hour
	maxOverlap     = 30 * 24 * time.Hour
)

// RotateAgent makes a new token for an enrolled agent; the old one works on for the overlap.
func (h *Hub) RotateAgent(ctx context.Context, r *hubv1.RotateAgentRequest) (*hubv1.Agent, string, time.Time, error) {
	if err := ActorFrom(ctx).MayWrite("id", ""); err != nil {
		return nil, "", time.Time{}, err
	}
	first, token, ends, err := h.rotate(ctx, identity.KindAgent, "enrolled agent", r.GetId(), r.GetOverlap())
	if err != nil {
		return nil, "", ends, err
	}
	a, err := h.agent(ctx, first)
	return a, token, ends, err
}

// RotateInvite makes a new token with the same grants; the old one works on for the overlap.
func (h *Hub) RotateInvite(ctx context.Context, r *hubv1.RotateInviteRequest) (*hubv1.Invite, string, time.Time, error) {
	first, token, ends, err := h.rotate(ctx, identity.KindInvite, "invite", r.GetId(), r.GetOverlap())
	if err != nil {
		return nil, "", ends, err
	}
	return h.invite(first), token, ends, nil
}

// rotate adds a token to an agent or invite and lets those before end.
func (h *Hub) rotate(ctx context.Context, kind identity.TokenKind, what, idOrName string, overlap *durationpb.Duration) (first *store.Token, token string, ends time.Time, err error) {
	d := defaultOverlap
	if overlap != nil {
		d = overlap.AsDuration()
	}
	if d < 0 || d > maxOverlap {
		return nil, "", ends, invalid("overlap", d.String(), "give at most 720h, or 0 to end the old token at once", "is out of range")
	}
	further := &store.Token{Kind: string(kind)}
	if token, err = h.newToken(kind, further); err != nil {
		return nil, "", ends, err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		first, err = tx.TokenNamed(string(kind), idOrName)
		if errors.Is(err, store.ErrNotFound) || err == nil && first.RevokedAt != 0 {
			return notFound(what, idOrName, "list them; one that was revoked cannot be rotated")
		}
		if err != nil {
			return err
		}
		if err := mayGrant(ctx, "id: grant.", grantOf(first)); err != nil {
			return err
		}
		ends = tx.Now.Add(d)
		if err := endOthers(tx, first.ID, ends.UnixMilli()); err != nil {
			return err
		}
		id, ed, ml := further.ID, further.Ed25519, further.MLDSA65
		*further = *first
		further.ID, further.Ed25519, further.MLDSA65 = id, ed, ml
		further.MemberOf, further.EndsAt, further.CreatedAt = first.ID, 0, tx.Now.UnixMilli()
		further.Grants = append([]store.Grant(nil), first.Grants...)
		tx.Changed("credential/" + further.ID)
		return tx.AddToken(further)
	})
	return first, token, ends, err
}

// endOthers lets the tokens of an agent or invite end, and forgets those that have.
func endOthers(tx *store.Tx, first string, ends int64) error {
	group, err := tx.TokenGroup(first)
	if err != nil {
		return err
	}
	for _, t := range group {
		if t.MemberOf != "" && t.EndsAt != 0 && t.EndsAt <= tx.Now.UnixMilli() {
			tx.Gone("credential/" + t.ID)
			if err := tx.DeleteToken(t.ID); err != nil {
				return err
			}
			continue
		}
		if t.EndsAt == 0 || t.EndsAt > ends {
			t.EndsAt = ends
			if err := tx.SetToken(t); err != nil {
				return err
			}
			tx.Changed("credential/" + t.ID)
		}
	}
	return nil
}

// UpdateInvite changes what an invite may claim, and how long.
func (h *Hub) UpdateInvite(ctx context.Context, r *hubv1.UpdateInviteRequest) (*hubv1.Invite, error) {
	mask := map[string]bool{}
	for _, p := range r.GetUpdateMask().GetPaths() {
		switch p {
		case "grant", "expires_at", "expires_sessions", "max_replicas", "from":
			mask[p] = true
		default:
			return nil, invalid("update_mask", p, "name some of grant, expires_at, expires_sessions, max_replicas and from", "is no field that can change")
		}
	}
	if len(mask) == 0 {
		return nil, invalid("update_mask", "", "name some of grant, expires_at, expires_sessions, max_replicas and from", "names no field")
	}
	var first *store.Token
	err := h.write(ctx, func(tx *store.Tx) (err error) {
		first, err = tx.TokenNamed(string(identity.KindInvite), r.GetId())
		if errors.Is(err, store.ErrNotFound) || err == nil && first.RevokedAt != 0 {
			return notFound("invite", r.GetId(), "list them with adit invite list")
		}
		if err != nil {
			return err
		}
		if err := mayGrant(ctx, "id: grant.", grantOf(first)); err != nil {
			return err
		}
		if err := h.changeInvite(tx, first, r.GetInvite(), mask); err != nil {
			return err
		}
		if err := mayGrant(ctx, "grant.", grantOf(first)); err != nil {
			return err
		}
		group, err := tx.TokenGroup(first.ID)
		if err != nil {
			return err
		}
		for _, t := range group {
			t.ExpiresAt, t.ExpiresSessions, t.MaxReplicas, t.Sources = first.ExpiresAt, first.ExpiresSessions, first.MaxReplicas, first.Sources
			t.Grants = append([]store.Grant(nil), first.Grants...)
			if err := tx.SetToken(t); err != nil {
				return err
			}
			tx.Changed("credential/" + t.ID)
		}
		// What it was refused may be granted now, and what it declares may be so no longer.
		tx.Changed(verdictsItem(first.ID))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h.invite(first), nil
}

func (h *Hub) changeInvite(tx *store.Tx, tok *store.Token, to *hubv1.Invite, mask map[string]bool) error {
	bounds := &hubv1.CreateInviteRequest{ExpiresAt: stamp(tok.ExpiresAt), ExpiresSessions: tok.ExpiresSessions, MaxReplicas: uint32(tok.MaxReplicas), From: tok.From()}
	if mask["grant"] {
		g := to.GetGrant()
		if len(g.GetHostnames())+len(g.GetTcpPorts())+len(g.GetUdpPorts()) == 0 {
			return grantsNothing("grant.hostnames")
		}
		if err := h.parseGrant("grant.", g, tok); err != nil {
			return err
		}
		if err := h.freeGrants(tx, "grant.", tok); err != nil {
			return err
		}
	}
	if mask["expires_at"] {
		bounds.ExpiresAt = to.GetExpiresAt()
	}
	if mask["expires_sessions"] {
		bounds.ExpiresSessions = to.GetExpiresSessions()
	}
	if mask["max_replicas"] {
		bounds.MaxReplicas = to.GetMaxReplicas()
	}
	if mask["from"] {
		bounds.From = to.GetFrom()
	}
	if !mask["expires_at"] && tok.ExpiresAt != 0 && tok.ExpiresAt <= tx.Now.UnixMilli() {
		return invalid("expires_at", "", "give a later time too", "the invite has expired")
	}
	tok.ExpiresAt = 0
	return h.checkBounds(bounds, tok)
}

// ListTenants returns one page of tenants by name, with the names that they keep.
func (h *Hub) ListTenants(ctx context.Context, size uint32, page string) ([]*hubv1.Tenant, string, error) {
	at, n, err := pageOf(size, page, 1)
	if err != nil {
		return nil, "", err
	}
	var rows []store.Tenant
	var held []store.Held
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if rows, err = tx.Tenants(at[0], n+1); err != nil {
			return err
		}
		held, err = tx.HeldNames()
		return err
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > n {
		rows = rows[:n]
		next = pageToken(rows[n-1].Name)
	}
	out := make([]*hubv1.Tenant, len(rows))
	for i, r := range rows {
		out[i] = &hubv1.Tenant{Name: r.Name, CreatedAt: stamp(r.CreatedAt), Invites: uint32(r.Invites), Tunnels: uint32(r.Tunnels)}
		for _, x := range held {
			if x.Tenant == r.Name {
				out[i].Held = append(out[i].Held, &hubv1.HeldName{Name: x.Name, Until: stamp(x.Until)})
			}
		}
	}
	return out, next, nil
}

// ReleaseName gives up a name that a tenant keeps after its tunnel was deleted.
func (h *Hub) ReleaseName(ctx context.Context, name string) error {
	if err := ActorFrom(ctx).MayWrite("name", name); err != nil {
		return err
	}
	return h.write(ctx, func(tx *store.Tx) error {
		ok, err := tx.Release(name)
		if err != nil {
			return err
		}
		if !ok {
			return &Problem{Code: reason.NotFound, Field: "name", Value: name, Text: "is kept for nobody", Remedy: "adit tenant list shows the names that are"}
		}
		return nil
	})
}

// drainLimit is how long a replica has to answer that it ends.
const drainLimit = 10 * time.Second

// DrainAgent asks the running replicas of an agent or invite to end.
func (h *Hub) DrainAgent(ctx context.Context, idOrName string) (uint32, error) {
	a, err := h.GetAgent(ctx, idOrName)
	if err != nil {
		return 0, err
	}
	var told uint32
	var last error
	for _, r := range a.GetReplicas() {
		if r.GetState() == "offline" {
			continue
		}
		if _, err := h.ask(ctx, a, r.GetId(), drainLimit, &hubv1.Ask{Ask: &hubv1.Ask_Drain{Drain: &hubv1.DrainAsk{}}}); err != nil {
			last = err
			continue
		}
		told++
	}
	switch {
	case told > 0:
		return told, nil
	case last != nil:
		return 0, last
	}
	return 0, &Problem{Code: reason.NoAgent, Field: "id", Value: idOrName, Text: fmt.Sprintf("no replica of %q runs", a.GetName()), Remedy: "adit agents get shows its replicas"}
}
