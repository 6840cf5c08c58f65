package hub

import (
	"context"
	"fmt"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	defaultLogLines = 200
	maxLogLines     = 500
	// logTime bounds a question for lines; an agent that has none waits a little less for one.
	logTime = 15 * time.Second
	// logPause is how long to wait for an agent that went away while its log is followed.
	logPause = time.Second
)

// Logs sends the last lines of an agent's log, then, with follow, new ones until ctx ends. While the
// agent is away it waits; what runs next is shown from its beginning.
func (h *Hub) Logs(ctx context.Context, r *hubv1.LogsRequest, send func(*hubv1.LogsResponse) error) error {
	lines := r.GetLines()
	switch {
	case lines == 0:
		lines = defaultLogLines
	case lines > maxLogLines:
		return invalid("lines", fmt.Sprint(lines), "ask for 1 to 500", "is more than 500")
	}
	agent, err := h.GetAgent(ctx, r.GetAgent())
	if err != nil {
		return err
	}
	replica, after := "", uint64(0)
	for first := true; ; first = false {
		if !first && replica == "" {
			// Another process may hold the enrolment now.
			if agent, err = h.GetAgent(ctx, agent.GetTokenId()); err != nil {
				return err
			}
		}
		if replica == "" {
			replica = h.askable(agent)
		}
		q := &hubv1.Ask{Ask: &hubv1.Ask_Logs{Logs: &hubv1.LogsAsk{After: after, Lines: lines, Follow: !first}}}
		x, err := h.ask(ctx, agent, replica, logTime, q)
		switch {
		case err != nil && !first && ctx.Err() == nil && reason.Is(err, reason.NoAgent):
			replica, after = "", 0
			if !pause(ctx, h.stopping, logPause) {
				return ctx.Err()
			}
			continue
		case err != nil:
			return err
		}
		l := x.GetLogs()
		if len(l.GetLines()) > 0 || first {
			if err := send(&hubv1.LogsResponse{Lines: l.GetLines(), Truncated: l.GetTruncated()}); err != nil {
				return err
			}
		}
		if !r.GetFollow() {
			return nil
		}
		after, lines = l.GetPosition(), maxLogLines
	}
}

// pause waits and tells whether to go on.
func pause(ctx context.Context, stopping <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-stopping:
		return false
	case <-t.C:
		return true
	}
}

// askable is the replica to ask: the one that holds the enrolment, or one that watches here. Empty
// = whichever can be found.
func (h *Hub) askable(agent *hubv1.Agent) string {
	if agent.GetHolderReplica() != "" {
		return agent.GetHolderReplica()
	}
	if keys := h.asks.here(agent.GetTokenId(), ""); len(keys) > 0 {
		return keys[0].replica
	}
	return ""
}
