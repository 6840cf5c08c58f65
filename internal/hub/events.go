package hub

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// keepEvents and maxEvents bound the events that are kept.
	keepEvents = 30 * 24 * time.Hour
	maxEvents  = 100_000
	// eventPoll is how late an event of another hub may be seen by a watch.
	eventPoll = time.Second
)

// Severities of events and problems.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

var severities = map[string]int{SeverityInfo: 1, SeverityWarning: 2, SeverityError: 3}

// Kinds of events; docs/reference/events.md says what each means.
const (
	EventAgentOnline        = "agent_online"
	EventAgentOffline       = "agent_offline"
	EventReplicaNew         = "replica_new"
	EventEdgeOnline         = "edge_online"
	EventEdgeOffline        = "edge_offline"
	EventCertificateFailing = "certificate_failing"
	EventCertificateOK      = "certificate_ok"
	EventPortUnavailable    = "port_unavailable"
	EventPortAvailable      = "port_available"
	EventTunnelFailing      = "tunnel_failing"
	EventTunnelOK           = "tunnel_ok"
	EventNoticeFailing      = "notice_failing"
	EventNoticeOK           = "notice_ok"
	EventLockedOut          = "locked_out"
	EventTest               = "test"
)

var eventKinds = []string{
	EventAgentOnline, EventAgentOffline, EventReplicaNew, EventEdgeOnline, EventEdgeOffline, EventCertificateFailing, EventCertificateOK,
	EventPortUnavailable, EventPortAvailable, EventTunnelFailing, EventTunnelOK, EventNoticeFailing, EventNoticeOK, EventLockedOut, EventTest,
}

// EventKinds are all kinds of events.
func EventKinds() []string { return slices.Clone(eventKinds) }

// signal wakes everybody who waits for the next change of something.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// wait returns what is closed at the next raise.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

// event records that something happened, in the transaction in which it did. Kind, severity,
// subject and text are set; id and time follow.
func (h *Hub) event(tx *store.Tx, e *hubv1.Event) error {
	if severities[e.GetSeverity()] == 0 {
		return fmt.Errorf("event %s: severity %q is unknown", e.GetKind(), e.GetSeverity())
	}
	id, err := tx.NextEventID()
	if err != nil {
		return err
	}
	e.Id, e.At = uint64(id), timestamppb.New(tx.Now)
	raw, err := proto.Marshal(e)
	if err != nil {
		return err
	}
	tx.AfterCommit(h.happened.raise)
	if h.store.Shared() {
		tx.Changed(happenedItem)
	}
	return tx.AddEvent(&store.Event{ID: id, At: tx.Now.UnixMilli(), Kind: e.GetKind(), Severity: severities[e.GetSeverity()], Subject: e.GetSubject(), Entry: raw})
}

func eventsOf(rows []store.Event) ([]*hubv1.Event, error) {
	out := make([]*hubv1.Event, len(rows))
	for i, r := range rows {
		out[i] = &hubv1.Event{}
		if err := proto.Unmarshal(r.Entry, out[i]); err != nil {
			return nil, fmt.Errorf("event %d: %w", r.ID, err)
		}
	}
	return out, nil
}

func severityOf(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	if n := severities[s]; n != 0 {
		return n, nil
	}
	return 0, invalid("severity", s, "use info, warning or error", "is no severity")
}

// ListEvents returns one page of events, newest first.
func (h *Hub) ListEvents(ctx context.Context, r *hubv1.ListEventsRequest) ([]*hubv1.Event, string, error) {
	severity, err := severityOf(r.GetSeverity())
	if err != nil {
		return nil, "", err
	}
	after, n, err := pageOf(r.GetPageSize(), r.GetPageToken(), 1)
	if err != nil {
		return nil, "", err
	}
	f := store.EventFilter{Before: -1, Kind: r.GetKind(), Subject: r.GetSubject(), Severity: severity, Limit: int64(n) + 1}
	if after[0] != "" {
		if f.Before, err = strconv.ParseInt(after[0], 10, 64); err != nil {
			return nil, "", invalid("page_token", r.GetPageToken(), "use next_page_token of the page before, or none", "is no page token")
		}
	}
	if r.GetSince() != nil {
		f.Since = r.GetSince().AsTime().UnixMilli()
	}
	var rows []store.Event
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.Events(f); return err }); err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > n {
		rows = rows[:n]
		next = pageToken(strconv.FormatInt(rows[n-1].ID, 10))
	}
	out, err := eventsOf(rows)
	return out, next, err
}

// WatchEvents sends events after an id (0 = from now on) until ctx ends or send fails.
func (h *Hub) WatchEvents(ctx context.Context, r *hubv1.WatchEventsRequest, send func([]*hubv1.Event) error) error {
	severity, err := severityOf(r.GetSeverity())
	if err != nil {
		return err
	}
	at := int64(r.GetAfterId())
	if at == 0 {
		if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { at, err = tx.LastEventID(); return err }); err != nil {
			return err
		}
	}
	t := time.NewTicker(eventPoll)
	defer t.Stop()
	for {
		more := h.happened.wait()
		var rows []store.Event
		err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
			rows, err = tx.Events(store.EventFilter{Before: -1, After: at, Severity: severity, Limit: defaultPage, OldestFirst: true})
			return err
		})
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			events, err := eventsOf(rows)
			if err != nil {
				return err
			}
			if err := send(events); err != nil {
				return err
			}
			at = rows[len(rows)-1].ID
			continue
		}
		select {
		case <-more:
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.stopping:
			return reason.New(reason.Draining, reason.HopHub, "the hub is stopping")
		}
	}
}

// prune forgets records that are too old or too many.
func (h *Hub) prune(ctx context.Context) error {
	return h.store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.PruneEvents(tx.Now.Add(-keepEvents).UnixMilli(), maxEvents); err != nil {
			return err
		}
		return pruneTraffic(tx)
	})
}

// subjectOf is the name of a tunnel in events, e.g. tunnel/grafana.example.com.
func subjectOf(t *hubv1.Tunnel) string {
	if t.GetHostname() != "" {
		return "tunnel/" + t.GetHostname()
	}
	return "tunnel/" + strings.ToLower(protocolOf(t.GetKind())) + ":" + ports(int(t.GetPort()), int(t.GetPortLast()))
}
