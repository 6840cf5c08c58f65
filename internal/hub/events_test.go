package hub

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// observed looks at what is wrong, as Run does.
func (h *testHub) observed() {
	h.t.Helper()
	if err := h.observe(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// live lets time pass like pass, and looks at what is wrong meanwhile.
func (h *testHub) live(d time.Duration, sessions ...*hubv1.SessionReport) {
	h.t.Helper()
	for ; d > 0; d -= conditionStep {
		h.clock.add(conditionStep)
		h.report(sessions...)
		h.observed()
	}
}

// told are the events so far, oldest first, as "kind subject".
func (h *testHub) told() []string {
	h.t.Helper()
	l, _, err := h.ListEvents(h.t.Context(), &hubv1.ListEventsRequest{PageSize: maxPage})
	if err != nil {
		h.t.Fatal(err)
	}
	out := make([]string, len(l))
	for i, e := range l {
		out[len(l)-1-i] = e.GetKind() + " " + e.GetSubject()
	}
	return out
}

func (h *testHub) happen(kind, severity, subject string) {
	h.t.Helper()
	err := h.store.Write(h.t.Context(), func(tx *store.Tx) error {
		return h.event(tx, &hubv1.Event{Kind: kind, Severity: severity, Subject: subject, Text: "happened"})
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func wantTold(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAgentEvents(t *testing.T) {
	h := newTestHub(t)
	r := h.replica(h.invite_("home", "*.home.dev"))
	ids := r.ok(web("a.home.dev"))
	s := r.session(ids...)
	s.RemoteAddress = "192.0.2.1:4000"
	h.live(settling+conditionStep, s)
	wantTold(t, h.told(), "agent_online agent/home")

	// A restart within the patience is nobody's business.
	h.live(4 * time.Second)
	h.live(4*time.Second, s)
	wantTold(t, h.told(), "agent_online agent/home")

	h.live(20 * time.Second)
	if p, err := h.ListProblems(t.Context()); err != nil || len(p) != 1 || p[0].GetSubject() != "agent/home" || p[0].GetReason() != "no_agent" || p[0].GetSince() == nil {
		t.Fatalf("problems: %v, %v", p, err)
	}
	// The hub restarts: nothing is told twice, and it waits for machines to report.
	h.restart()
	h.live(settling + conditionStep)
	wantTold(t, h.told(), "agent_online agent/home", "agent_offline agent/home")

	s.RemoteAddress = "192.0.2.99:4000"
	h.live(conditionStep, s)
	h.live(conditionStep, s)
	wantTold(t, h.told(), "agent_online agent/home", "agent_offline agent/home", "agent_online agent/home", "replica_new agent/home")
	if p, err := h.ListProblems(t.Context()); err != nil || len(p) != 0 {
		t.Fatalf("problems: %v, %v", p, err)
	}
	// The edge falls silent.
	for range 20 {
		h.clock.add(conditionStep)
		h.observed()
	}
	if got := h.told(); !strings.HasPrefix(got[len(got)-1], "edge_offline edge/") && !strings.HasPrefix(got[len(got)-2], "edge_offline edge/") {
		t.Fatalf("no word of the edge: %v", got)
	}
}

func TestTunnelEvents(t *testing.T) {
	h := newTestHub(t)
	r := h.replica(h.grant("home", &hubv1.CreateInviteRequest{Hostnames: []string{"a.home.dev"}}))
	ids := r.ok(web("a.home.dev"))
	s := r.session(ids...)
	h.live(settling+conditionStep, s)
	report := func(state string) {
		t.Helper()
		err := h.Report(t.Context(), r.caller, &hubv1.ReportRequest{Tunnels: []*hubv1.TunnelReport{{TunnelId: ids[0], State: state, Reason: "origin_refused", Detail: "refused"}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	report("problem")
	h.live(14*time.Second, s)
	report("online")
	h.live(conditionStep, s)
	wantTold(t, h.told()[1:], "tunnel_failing tunnel/a.home.dev", "tunnel_ok tunnel/a.home.dev")
}

func TestListEvents(t *testing.T) {
	h := newTestHub(t)
	for i := range 5 {
		h.clock.add(time.Minute)
		h.happen(EventAgentOffline, SeverityWarning, "agent/a%"+string(rune('0'+i)))
	}
	h.happen(EventEdgeOffline, SeverityError, "edge/e_1")
	list := func(r *hubv1.ListEventsRequest) (subjects []string, next string) {
		t.Helper()
		l, next, err := h.ListEvents(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l {
			subjects = append(subjects, e.GetSubject())
		}
		return subjects, next
	}
	first, next := list(&hubv1.ListEventsRequest{PageSize: 4})
	second, end := list(&hubv1.ListEventsRequest{PageSize: 4, PageToken: next})
	if strings.Join(append(first, second...), " ") != "edge/e_1 agent/a%4 agent/a%3 agent/a%2 agent/a%1 agent/a%0" || end != "" {
		t.Fatal(first, second, end)
	}
	for _, c := range []struct {
		name string
		r    *hubv1.ListEventsRequest
		n    int
	}{
		{"severity and above", &hubv1.ListEventsRequest{Severity: "error"}, 1},
		{"kind", &hubv1.ListEventsRequest{Kind: EventAgentOffline}, 5},
		{"% in a subject is no wildcard", &hubv1.ListEventsRequest{Subject: "a%3"}, 1},
		{"_ neither", &hubv1.ListEventsRequest{Subject: "E_"}, 1},
		{"since", &hubv1.ListEventsRequest{Since: timestamppb.New(h.clock.now().Add(-time.Minute))}, 3},
	} {
		if got, _ := list(c.r); len(got) != c.n {
			t.Errorf("%s: %v, want %d", c.name, got, c.n)
		}
	}
	_, _, err := h.ListEvents(t.Context(), &hubv1.ListEventsRequest{Severity: "loud"})
	wantProblem(t, err, reason.Invalid, "severity")
	_, _, err = h.ListEvents(t.Context(), &hubv1.ListEventsRequest{PageToken: "%%"})
	wantProblem(t, err, reason.Invalid, "page_token")
}

func TestEventRetention(t *testing.T) {
	h := newTestHub(t)
	h.happen(EventAgentOffline, SeverityWarning, "agent/old")
	h.clock.add(keepEvents + time.Minute)
	if err := h.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantTold(t, h.told())
	// Ids grow although the last one was pruned.
	before := uint64(h.clock.now().Add(-time.Second).UnixMicro())
	h.happen(EventAgentOffline, SeverityWarning, "agent/new")
	l, _, err := h.ListEvents(t.Context(), &hubv1.ListEventsRequest{})
	if err != nil || len(l) != 1 || l[0].GetId() < before {
		t.Fatal(l, err)
	}
	if err := h.store.Write(t.Context(), func(tx *store.Tx) error { return tx.PruneEvents(0, 0) }); err != nil {
		t.Fatal(err)
	}
	wantTold(t, h.told())
}

func TestWatchEvents(t *testing.T) {
	h := newTestHub(t)
	h.happen(EventAgentOffline, SeverityWarning, "agent/before")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *hubv1.Event, 8)
	done := make(chan error, 1)
	go func() {
		done <- h.WatchEvents(ctx, &hubv1.WatchEventsRequest{AfterId: 1, Severity: "warning"}, func(l []*hubv1.Event) error {
			for _, e := range l {
				got <- e
			}
			return nil
		})
	}()
	if e := <-got; e.GetSubject() != "agent/before" {
		t.Fatal(e)
	}
	h.happen(EventAgentOnline, SeverityInfo, "agent/quiet")
	h.happen(EventAgentOffline, SeverityWarning, "agent/after")
	if e := <-got; e.GetSubject() != "agent/after" {
		t.Fatal(e)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
