package hub

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
)

// farEdge is a joined edge.
type farEdge struct {
	h       *testHub
	key     *identity.NodeKey
	token   *hubv1.Credential
	address *wirev1.EdgeAddress
	started time.Time
}

func (h *testHub) joinEdge(name string) *farEdge {
	h.t.Helper()
	id, _, err := h.InviteEdge(h.t.Context(), &hubv1.InviteEdgeRequest{Name: name})
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := h.Credential(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	key, err := identity.NewNodeKey()
	if err != nil {
		h.t.Fatal(err)
	}
	return &farEdge{h, key, c, &wirev1.EdgeAddress{Id: key.ID(), KeyHash: key.Hash(), Addresses: []string{name + ".test:443"}}, h.clock.now().Add(-time.Hour)}
}

func (e *farEdge) report(sessions ...*hubv1.SessionReport) error {
	return e.h.Report(e.h.t.Context(), &hublink.Caller{Role: wirev1.Role_ROLE_EDGE, Credential: e.token, NodeKey: e.key.Public()},
		&hubv1.ReportRequest{Edge: e.address, Sessions: sessions, StartedAt: timestamppb.New(e.started)})
}

func (e *farEdge) ok(sessions ...*hubv1.SessionReport) {
	e.h.t.Helper()
	if err := e.report(sessions...); err != nil {
		e.h.t.Fatal(err)
	}
}

func (h *testHub) process(agent *hubv1.Agent, id string) *hubv1.SessionReport {
	return &hubv1.SessionReport{TokenId: agent.GetTokenId(), ReplicaId: id, HostName: "host-" + id, Since: timestamppb.New(h.clock.now())}
}

func (h *testHub) holder(agent *hubv1.Agent) (string, uint64) {
	c := h.feed.get("credential/" + agent.GetTokenId()).GetCredential()
	return c.GetHolderReplica(), c.GetHolderTerm()
}

func (h *testHub) wantHolder(t *testing.T, agent *hubv1.Agent, want string) (term uint64) {
	t.Helper()
	got, term := h.holder(agent)
	if got != want {
		t.Fatalf("%q holds the enrolment, want %q", got, want)
	}
	return term
}

func TestHolders(t *testing.T) {
	drained := func(s *hubv1.SessionReport) *hubv1.SessionReport { s.Draining = true; return s }
	t.Run("the first one holds, it goes, the next one holds", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		e.ok(h.process(a, "a"))
		h.wantHolder(t, a, "a")
		got, _ := h.GetAgent(t.Context(), "home")
		if got.GetState() != "online" || got.GetHolderReplica() != "a" || got.GetHolderHost() != "host-a" {
			t.Error(got)
		}
		at := h.feed.at()
		e.ok(h.process(a, "a"))
		if h.feed.at() != at {
			t.Error("the same report again is a change")
		}
		e.ok(h.process(a, "b"))
		h.wantHolder(t, a, "b")
		e.ok()
		h.wantHolder(t, a, "")
	})
	t.Run("it holds while any edge has a session of it", func(t *testing.T) {
		h := newTestHub(t)
		a, e, f := h.enrol("home"), h.joinEdge("e"), h.joinEdge("f")
		e.ok(h.process(a, "a"))
		f.ok(h.process(a, "a"))
		e.ok()
		h.wantHolder(t, a, "a")
		h.restart()
		f.ok(h.process(a, "a"))
		h.wantHolder(t, a, "a")
		f.ok()
		h.wantHolder(t, a, "")
	})
	t.Run("a drain gives it up everywhere", func(t *testing.T) {
		h := newTestHub(t)
		a, e, f := h.enrol("home"), h.joinEdge("e"), h.joinEdge("f")
		e.ok(h.process(a, "a"))
		f.ok(h.process(a, "a"))
		e.ok(drained(h.process(a, "a")), h.process(a, "b"))
		h.wantHolder(t, a, "b")
		f.ok(drained(h.process(a, "a")))
		h.wantHolder(t, a, "b")
	})
	t.Run("two edges that were apart: the holder stays, and the other edge hears a later decision", func(t *testing.T) {
		h := newTestHub(t)
		a, e, f := h.enrol("home"), h.joinEdge("e"), h.joinEdge("f")
		e.ok(h.process(a, "a"))
		before := h.wantHolder(t, a, "a")
		f.ok(h.process(a, "b"))
		if term := h.wantHolder(t, a, "a"); term <= before {
			t.Errorf("term %d after %d", term, before)
		}
	})
	t.Run("an edge that starts again: the holder has a while to come back", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		e.ok(h.process(a, "a"))
		e.started = h.clock.now()
		e.ok()
		h.wantHolder(t, a, "a")
		h.clock.add(returnTime)
		e.ok()
		h.wantHolder(t, a, "")
	})
	t.Run("an edge that starts again and has another one knows", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		e.started = h.clock.now()
		e.ok(h.process(a, "a"))
		e.ok(h.process(a, "b"))
		h.wantHolder(t, a, "b")
	})
	t.Run("T21 an edge that falls silent no longer counts; it is back with its next report", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		e.ok(h.process(a, "a"))
		h.clock.add(edgeSilence / 2)
		if err := h.lostEdges(t.Context(), h.clock.now()); err != nil {
			t.Fatal(err)
		}
		h.wantHolder(t, a, "a")
		h.clock.add(edgeSilence)
		if err := h.lostEdges(t.Context(), h.clock.now()); err != nil {
			t.Fatal(err)
		}
		h.wantHolder(t, a, "")
		e.ok(h.process(a, "a"))
		h.wantHolder(t, a, "a")
	})
	t.Run("an edge that another hub hears is that hub's business", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		e.ok(h.process(a, "a"))
		h.clock.add(2 * edgeSilence)
		if err := h.store.Write(t.Context(), func(tx *store.Tx) error { return tx.SeenEdge(e.key.ID()) }); err != nil {
			t.Fatal(err)
		}
		if err := h.lostEdges(t.Context(), h.clock.now()); err != nil {
			t.Fatal(err)
		}
		h.wantHolder(t, a, "a")
	})
	t.Run("under every token of the agent", func(t *testing.T) {
		h := newTestHub(t)
		a, e := h.enrol("home"), h.joinEdge("e")
		_, token, _, err := h.RotateAgent(t.Context(), &hubv1.RotateAgentRequest{Id: "home"})
		if err != nil {
			t.Fatal(err)
		}
		e.ok(h.process(a, "a"))
		c := h.feed.get("credential/" + tokenKeys(t, token).Public().HexID()).GetCredential()
		if c.GetHolderReplica() != "a" {
			t.Error(c)
		}
	})
}

func TestEdgeAdmin(t *testing.T) {
	h := newTestHub(t)
	e := h.joinEdge("e")
	e.ok()
	id := e.key.ID()
	t.Run("taken out of service, and back", func(t *testing.T) {
		s, err := h.DrainEdge(t.Context(), id, false)
		if err != nil || !s.GetEdge().GetOutOfService() || !h.feed.get("edge/"+id).GetEdge().GetOutOfService() {
			t.Fatal(s, err)
		}
		if got := edgeAddresses(h.feed.edges()); len(got) != 0 {
			t.Errorf("agents are still sent to %v", got)
		}
		e.ok() // its own word changes nothing
		if !h.feed.get("edge/" + id).GetEdge().GetOutOfService() {
			t.Error("a report put it back into service")
		}
		if s, err := h.DrainEdge(t.Context(), id, true); err != nil || s.GetEdge().GetOutOfService() {
			t.Error(s, err)
		}
		_, err = h.DrainEdge(t.Context(), "nothing", false)
		wantProblem(t, err, "not_found", "")
	})
	t.Run("invites are listed with their edges", func(t *testing.T) {
		l, _, err := h.ListEdgeInvites(t.Context(), 0, "")
		if err != nil || len(l) != 1 || l[0].GetName() != "e" || l[0].GetEdges() != 1 {
			t.Error(l, err)
		}
	})
	t.Run("removed: its key is refused from then on", func(t *testing.T) {
		if err := h.RemoveEdge(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if h.feed.get("edge/"+id) != nil {
			t.Error("it is still there")
		}
		if err := e.report(); err == nil {
			t.Error("its report is taken")
		}
		if r := h.Admit(t.Context(), &hublink.Caller{Role: wirev1.Role_ROLE_EDGE, Credential: e.token, NodeKey: e.key.Public()}); r == nil {
			t.Error("it is admitted")
		}
		h.report()
		wantProblem(t, h.RemoveEdge(t.Context(), h.edge.ID()), "invalid", "id")
	})
}

// TestManyHolders has a thousand enrolled agents at one edge: what a report costs the hub.
func TestManyHolders(t *testing.T) {
	h := newTestHub(t)
	e := h.joinEdge("e")
	const n = 1000
	var sessions []*hubv1.SessionReport
	for i := range n {
		sessions = append(sessions, h.process(h.enrol(fmt.Sprint("agent-", i)), fmt.Sprint(i)))
	}
	took := func(what string, limit time.Duration) {
		t.Helper()
		start := time.Now()
		e.ok(sessions...)
		d := time.Since(start)
		t.Logf("%s: %v", what, d.Round(time.Millisecond))
		if d > limit {
			t.Errorf("%s took %v, want %v at most", what, d, limit)
		}
	}
	took("all of them new", 10*time.Second)
	took("nothing new", 100*time.Millisecond)
	e.started = h.clock.now()
	took("right after the edge's start", time.Second)
	h.wantHolder(t, &hubv1.Agent{TokenId: sessions[n-1].GetTokenId()}, fmt.Sprint(n-1))
}

// TestSeveralHubsOneHolder has two edges report to two hubs of one database: one holder, and both hubs
// say the same.
func TestSeveralHubsOneHolder(t *testing.T) {
	hubs := newTestHubs(t, 2)
	one, two := hubs[0], hubs[1]
	a := one.enrol("home")
	e := one.joinEdge("e")
	refresh := func() {
		t.Helper()
		for _, h := range hubs {
			if err := h.refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	refresh()
	f := two.joinEdge("f")
	e.ok(one.process(a, "a"))
	refresh()
	term := two.wantHolder(t, a, "a")
	f.ok(two.process(a, "b"))
	refresh()
	if later := one.wantHolder(t, a, "a"); later <= term {
		t.Errorf("the edge of the other one hears nothing new: term %d after %d", later, term)
	}
	f.ok(two.process(a, "a"))
	e.ok()
	refresh()
	two.wantHolder(t, a, "a")
	f.ok()
	refresh()
	one.wantHolder(t, a, "")
	f.ok(two.process(a, "b"))
	refresh()
	one.wantHolder(t, a, "b")
}

// TestBackAfterSwitchedOff has the watches of a switched off agent end after those of its return began.
func TestBackAfterSwitchedOff(t *testing.T) {
	h := newTestHub(t)
	a := h.enrol("home")
	x := h.replica(&hubv1.Invite{Id: a.GetTokenId()})
	first, second := h.Serving(x.caller), h.Serving(x.caller)
	if _, err := h.SetAgentEnabled(t.Context(), "home", false); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetAgentEnabled(t.Context(), "home", true); err != nil {
		t.Fatal(err)
	}
	defer h.Serving(x.caller)()
	first()
	second()
	got, err := h.GetAgent(t.Context(), "home")
	if err != nil || len(got.GetReplicas()) != 1 || got.GetReplicas()[0].GetState() == "offline" {
		t.Errorf("%v %v", got, err)
	}
}
