package hub

import (
	"context"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// preflightTime is what an agent has to try an origin and answer: its own limit is 20 s.
const preflightTime = 25 * time.Second

// Preflight has an agent try an origin and tells what it found.
func (h *Hub) Preflight(ctx context.Context, r *hubv1.PreflightRequest) (*hubv1.PreflightAnswer, error) {
	q := r.GetAsk()
	if q.GetOrigin().GetUrl() == "" {
		return nil, invalid("ask.origin.url", "", "give what the tunnel would have, as http://127.0.0.1:3000", "is missing")
	}
	if q.GetKind() == wirev1.Kind_KIND_UNSPECIFIED {
		q.Kind = wirev1.Kind_KIND_HTTP
	}
	if q.GetHostname() != "" {
		name, err := hostname.Normalize(q.GetHostname())
		if err != nil {
			return nil, invalid("ask.hostname", q.GetHostname(), "give the public name of the tunnel, or none", "is no host name: %v", err)
		}
		q.Hostname = name
	}
	agent, err := h.GetAgent(ctx, r.GetAgent())
	if err != nil {
		return nil, err
	}
	x, err := h.ask(ctx, agent, "", preflightTime, &hubv1.Ask{Ask: &hubv1.Ask_Preflight{Preflight: q}})
	if err != nil {
		return nil, err
	}
	return x.GetPreflight(), nil
}
