package hub

import (
	"fmt"
	"net"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// tokenPlace is where a token is used: the name of the host, and the address it comes from.
type tokenPlace struct{ token, host, address string }

type newPlace struct {
	tokenPlace
	name string
}

// newPlaces are the places of sessions that this hub has not noted yet.
func (h *Hub) newPlaces(now time.Time) []newPlace {
	var out []newPlace
	found := map[tokenPlace]bool{}
	h.presence.look(func(edges map[string]*edgePresence, _ map[replicaKey]*agentPresence) {
		for _, e := range edges {
			if !e.fresh(now) {
				continue
			}
			for _, s := range e.sessions {
				address, _, err := net.SplitHostPort(s.GetRemoteAddress())
				if err != nil {
					address = s.GetRemoteAddress()
				}
				if p := (tokenPlace{s.GetTokenId(), s.GetHostName(), address}); !found[p] && !h.conditions.seen[p] {
					found[p] = true
					out = append(out, newPlace{tokenPlace: p})
				}
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
		if !isNew {
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
