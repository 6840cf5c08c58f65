package hub

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// forwarderTime is how long forwards may run after the last ticket.
	forwarderTime = 24 * time.Hour
	// forwarderCheck is how often it is looked whether callers still may.
	forwarderCheck = 2 * time.Second
	signingSecret  = "hub signing key"
)

// loadSigningKey makes or reads the key that the hub signs with for edges, one for all hubs.
func (h *Hub) loadSigningKey(ctx context.Context) error {
	seed, err := h.GetSecret(ctx, signingSecret)
	if errors.Is(err, fs.ErrNotExist) {
		seed = make([]byte, ed25519.SeedSize)
		if _, err := rand.Read(seed); err != nil {
			return err
		}
		sealed, err := h.sealer.Seal(signingSecret, seed)
		if err != nil {
			return err
		}
		err = h.store.Write(ctx, func(tx *store.Tx) error {
			// Another hub may have been first.
			if old, err := tx.Secret(signingSecret); err != nil || old != nil {
				return err
			}
			return tx.SetSecret(signingSecret, sealed)
		})
		if err != nil {
			return err
		}
		seed, err = h.GetSecret(ctx, signingSecret)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if len(seed) != ed25519.SeedSize {
		return errors.New("the hub's signing key in the database is damaged; restore a backup")
	}
	h.signing = ed25519.NewKeyFromSeed(seed)
	return nil
}

// callerOf names the credential of a call, so that what it started ends with it.
func callerOf(a *Actor) (credential string, err error) {
	switch {
	case a.KeyID != "":
		return "key/" + a.KeyID, nil
	case a.SignInID != "":
		return "signin/" + a.SignInID, nil
	case a.Local:
		return "local/" + a.Name, nil
	}
	return "", reason.New(reason.AccessDenied, reason.HopHub, "forwards are for people and their keys")
}

// OpenForward gives the caller a ticket for connections to a target behind an agent.
func (h *Hub) OpenForward(ctx context.Context, r *hubv1.OpenForwardRequest) (*hubv1.OpenForwardResponse, error) {
	target, err := forward.Target(r.GetTarget())
	if err != nil {
		return nil, invalid("target", r.GetTarget(), "write HOST:PORT as the agent sees it", "is no target: %v", err)
	}
	agent, err := h.GetAgent(ctx, r.GetAgent())
	if err != nil {
		return nil, err
	}
	if agent.GetState() == "disabled" {
		return nil, &Problem{Code: reason.TokenRevoked, Field: "agent", Value: agent.GetName(), Text: "is disabled", Remedy: "enable it with adit agents enable"}
	}
	edges := h.forwardEdges(agent)
	if len(edges) == 0 || agent.GetState() != "online" {
		return nil, &Problem{Code: reason.NoAgent, Field: "agent", Value: agent.GetName(), Text: "has no session with any edge now",
			Remedy: "start it, or see its log for why it cannot connect"}
	}
	actor := ActorFrom(ctx)
	caller, err := callerOf(actor)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(caller + "\x00" + agent.GetTokenId()))
	id, now := hex.EncodeToString(sum[:16]), h.cfg.Now()
	err = h.write(ctx, func(tx *store.Tx) error {
		tx.Changed("forwarder/" + id)
		return tx.PutForwarder(&store.Forwarder{ID: id, TokenID: agent.GetTokenId(), Caller: caller, Until: now.Add(forwarderTime).UnixMilli()})
	})
	if err != nil {
		return nil, err
	}
	t := &hubv1.ForwardTicket{Forwarder: id, Agent: agent.GetTokenId(), Target: target, ExpiresAt: timestamppb.New(now.Add(forward.TicketTime))}
	out := &hubv1.OpenForwardResponse{Edges: edges, ExpiresAt: t.GetExpiresAt()}
	if out.Ticket, err = forward.Sign(h.signing, t); err != nil {
		return nil, err
	}
	for _, e := range edges {
		out.Addresses = append(out.Addresses, e.GetAddresses()...)
	}
	return out, nil
}

// forwardEdges are the edges to try: first those that are known to have a session with the agent,
// then the others, of which one may have a new one.
func (h *Hub) forwardEdges(agent *hubv1.Agent) (out []*hubv1.ForwardEdge) {
	var ids []string
	for _, r := range agent.GetReplicas() {
		for _, s := range r.GetSessions() {
			if !s.GetDraining() && !slices.Contains(ids, s.GetEdgeId()) {
				ids = append(ids, s.GetEdgeId())
			}
		}
	}
	for _, e := range h.feed.edges() {
		if id := e.GetAddress().GetId(); !e.GetDraining() && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		a := h.feed.get("edge/" + id).GetEdge().GetAddress()
		if len(a.GetAddresses()) == 0 {
			continue
		}
		out = append(out, &hubv1.ForwardEdge{Addresses: a.GetAddresses(), KeyHash: a.GetKeyHash(), ServerName: id + ".edge." + h.cfg.HubHost})
	}
	return out
}

// checkForwarders removes those whose credential or agent is gone, or who were not heard of for
// long: edges end their connections.
func (h *Hub) checkForwarders(ctx context.Context) error {
	any := false
	h.feed.each("forwarder", func(*hubv1.Resource) { any = true })
	if !any {
		return nil
	}
	var gone []string
	look := func(tx *store.Tx) error {
		gone = gone[:0]
		all, err := tx.Forwarders()
		if err != nil {
			return err
		}
		for _, f := range all {
			lives, err := h.forwarderLives(tx, f)
			if err != nil {
				return err
			}
			if !lives {
				gone = append(gone, f.ID)
			}
		}
		return nil
	}
	if err := h.store.Read(ctx, look); err != nil || len(gone) == 0 {
		return err
	}
	return h.write(ctx, func(tx *store.Tx) error {
		if err := look(tx); err != nil {
			return err
		}
		for _, id := range gone {
			if err := tx.DeleteForwarder(id); err != nil {
				return err
			}
			tx.Gone("forwarder/" + id)
		}
		return nil
	})
}

func (h *Hub) forwarderLives(tx *store.Tx, f *store.Forwarder) (bool, error) {
	if f.Until < tx.Now.UnixMilli() {
		return false, nil
	}
	tok, err := tx.Token(f.TokenID)
	if errors.Is(err, store.ErrNotFound) || err == nil && (tok.RevokedAt != 0 || tok.Disabled) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return h.credentialLives(tx, f.Caller)
}

func forwarderResource(f *store.Forwarder) *hubv1.Resource {
	return &hubv1.Resource{Item: &hubv1.Resource_Forwarder{Forwarder: &hubv1.Forwarder{Id: f.ID, Agent: f.TokenID, Caller: f.Caller}}}
}

// credentialLives tells whether a credential of callerOf still counts, and may forward.
func (h *Hub) credentialLives(tx *store.Tx, caller string) (bool, error) {
	kind, id, _ := strings.Cut(caller, "/")
	var u *store.User
	var err error
	switch kind {
	case "local":
		return true, nil
	case "key":
		u, err = tx.KeyUser(id)
	case "signin":
		u, err = tx.SignInUser(id)
	}
	return err == nil && u != nil && !u.Disabled && RoleIncludes(u.Role, RoleAdmin), err
}
