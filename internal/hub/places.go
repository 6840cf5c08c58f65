package hub

import (
	"fmt"
	"net"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
)

// tokenPlace is where a token is used: the name of the host, and the address it comes from.
type tokenPlace struct{ token, host, address string }

type newPlace struct {
	tokenPlace
	name string
	// quiet: it is noted, and nobody told: the same process is told of by its session.
	quiet bool
}

// addressOf is the address of a peer without its port; empty if it has none.
func addressOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return hostOf(a.String())
}

// hostOf is an address without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// newPlaces are the places that this hub has not noted yet: of sessions, then of links to the hub. Of a
// standby, which has no session, only the link tells.
func (h *Hub) newPlaces(now time.Time) []newPlace {
	var out []newPlace
	found := map[tokenPlace]bool{}
	h.presence.look(func(edges map[string]*edgePresence, agents map[replicaKey]*agentPresence) {
		serving := map[string]bool{}
		for _, e := range edges {
			if !e.fresh(now) {
				continue
			}
			for _, s := range e.sessions {
				serving[s.GetReplicaId()] = true
				if p := (tokenPlace{s.GetTokenId(), s.GetHostName(), hostOf(s.GetRemoteAddress())}); !found[p] && !h.conditions.seen[p] {
					found[p] = true
					out = append(out, newPlace{tokenPlace: p})
				}
			}
		}
		for k, a := range agents {
			p := tokenPlace{k.token, a.hostName, a.address}
			if a.watches == 0 || a.address == "" || found[p] || h.conditions.seen[p] {
				continue
			}
			c := h.feed.get("credential/" + k.token).GetCredential()
			if c.GetKind() != string(identity.KindAgent) {
				continue // its replicas all serve
			}
			holder := c.GetHolderReplica()
			if quiet := serving[k.replica]; quiet || holder != "" && holder != k.replica {
				found[p] = true
				out = append(out, newPlace{tokenPlace: p, quiet: quiet})
			}
		}
	})
	for i := range out {
		out[i].name = h.feed.get("credential/" + out[i].token).GetCredential().GetName()
	}
	return out
}

// notePlaces stores places; one that a token was not used at before is an event.
func (h *Hub) notePlaces(tx *store.Tx, places []newPlace) error {
	for _, p := range places {
		isNew, first, err := tx.SeenPlace(p.token, p.host, p.address)
		if err != nil {
			return err
		}
		if !isNew || p.quiet {
			continue
		}
		e := &hubv1.Event{
			Kind: EventReplicaNew, Severity: SeverityWarning, Subject: "agent/" + p.name,
			Text:       fmt.Sprintf("connected from a place not seen before: host %s, address %s", p.host, p.address),
			Attributes: map[string]string{"host": p.host, "address": p.address},
		}
		if first {
			e.Kind, e.Severity = EventAgentOnline, SeverityInfo
			e.Text = fmt.Sprintf("connected for the first time: host %s, address %s", p.host, p.address)
		}
		if err := h.event(tx, e); err != nil {
			return err
		}
	}
	return nil
}
