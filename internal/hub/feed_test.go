package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

func newCancel(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

// mirror applies a feed as an edge would.
type mirror struct {
	t        *testing.T
	items    map[string]*hubv1.Resource
	next     map[string]*hubv1.Resource
	revision uint64
	chunks   int
	snaps    int
}

func (m *mirror) apply(w *hubv1.WatchResponse) {
	if n := len(w.GetPuts()) + len(w.GetDeletes()); n > chunkItems {
		m.t.Errorf("a message of %d items", n)
	}
	if w.GetSnapshot() {
		m.chunks++
		if m.next == nil {
			m.next = map[string]*hubv1.Resource{}
		}
		for _, r := range w.GetPuts() {
			m.next[r.Key()] = r
		}
		if w.GetComplete() {
			m.items, m.next = m.next, nil
			m.snaps++
			m.revision = w.GetRevision()
		} else if w.GetRevision() != 0 {
			m.t.Error("a chunk that is not the last has a revision")
		}
		return
	}
	if !w.GetComplete() || w.GetRevision() <= m.revision {
		m.t.Errorf("delta: revision %d after %d, complete %v", w.GetRevision(), m.revision, w.GetComplete())
	}
	m.revision = w.GetRevision()
	for _, r := range w.GetPuts() {
		m.items[r.Key()] = r
	}
	for _, k := range w.GetDeletes() {
		delete(m.items, k)
	}
}

func (m *mirror) same(h *testHub, w Watcher) {
	m.t.Helper()
	var want []string
	h.feed.mu.RLock()
	for k, r := range h.feed.items {
		if w.sees(r) {
			want = append(want, k)
		}
	}
	h.feed.mu.RUnlock()
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(m.items)); !slices.Equal(got, want) {
		m.t.Errorf("the watcher has %v, want %v", got, want)
	}
}

func TestWatch(t *testing.T) {
	h := newTestHub(t)
	h.report()
	inv := h.invite_("a", "*.example.com")
	a, b := h.replica(inv), h.replica(h.invite_("b", "*.b.test"))
	var ds []*hubv1.DeclaredTunnel
	for i := range 520 {
		ds = append(ds, web(fmt.Sprintf("h%03d.example.com", i)))
	}
	a.ok(ds...)
	b.ok(web("x.b.test"))
	edge := Watcher{Edge: true}
	m := &mirror{t: t}
	stop := h.watch(edge, 0, m.apply)
	a.ok(ds[:10]...) // 510 deletes in one go
	b.ok(web("x.b.test"), web("y.b.test"))
	stop(h.feed.at())
	m.same(h, edge)
	if m.chunks < 3 || m.snaps != 1 {
		t.Errorf("%d chunks, %d snapshots", m.chunks, m.snaps)
	}

	t.Run("resume", func(t *testing.T) {
		b.ok(web("z.b.test"))
		stop := h.watch(edge, m.revision, m.apply)
		stop(h.feed.at())
		m.same(h, edge)
		if m.snaps != 1 {
			t.Error("a snapshot although the revision is in the log")
		}
	})
	t.Run("resume across a restart of the hub", func(t *testing.T) {
		h.restart()
		b.ok(web("after.b.test"))
		stop := h.watch(edge, m.revision, m.apply)
		stop(h.feed.at())
		m.same(h, edge)
		if m.snaps != 1 {
			t.Error("a snapshot although the revision is in the log")
		}
	})
	t.Run("a revision that is not known gets a snapshot", func(t *testing.T) {
		for _, from := range []uint64{1, h.feed.at() + 1} {
			m := &mirror{t: t}
			stop := h.watch(edge, from, m.apply)
			stop(h.feed.at())
			m.same(h, edge)
			if m.snaps != 1 {
				t.Errorf("from %d: %d snapshots", from, m.snaps)
			}
		}
	})
	t.Run("an agent sees edges and its own tunnels only", func(t *testing.T) {
		w := Watcher{TokenID: b.key().token}
		m := &mirror{t: t}
		stop := h.watch(w, 0, m.apply)
		a.ok(web("other.example.com"))
		b.ok(web("only.b.test"))
		stop(h.feed.at())
		m.same(h, w)
		for k, r := range m.items {
			if r.GetCredential() != nil || r.GetCertificate() != nil || r.GetTunnel() != nil && r.GetTunnel().GetTenant() != "b" {
				t.Errorf("an agent of b sees %s", k)
			}
		}
		if len(m.items) != 2 {
			t.Errorf("%v", slices.Sorted(maps.Keys(m.items)))
		}
	})
}

func TestWatchEnds(t *testing.T) {
	h := newTestHub(t)
	broken := errors.New("broken pipe")
	if err := h.Watch(t.Context(), Watcher{Edge: true}, 0, func(*hubv1.WatchResponse) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	ctx, cancel := newCancel(t)
	err := h.Watch(ctx, Watcher{Edge: true}, 0, func(*hubv1.WatchResponse) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	err = h.Watch(t.Context(), Watcher{Edge: true}, 0, func(*hubv1.WatchResponse) error { h.stop(); return nil })
	if !reason.Is(err, reason.Draining) {
		t.Error(err)
	}
}

func TestSlowWatchStartsAgain(t *testing.T) {
	h := newTestHub(t)
	b := h.replica(h.invite_("b", "*.b.test"))
	m := &mirror{t: t}
	v := &view{feed: h.feed, w: Watcher{Edge: true}, send: func(w *hubv1.WatchResponse) error { m.apply(w); return nil }}
	if err := v.snapshot(); err != nil {
		t.Fatal(err)
	}
	b.ok(web("x.b.test"))
	b.ok(web("y.b.test"))
	// The log has moved on meanwhile.
	h.feed.mu.Lock()
	h.feed.floor, h.feed.log = h.feed.revision, nil
	h.feed.mu.Unlock()
	if _, err := v.delta(); err != nil {
		t.Fatal(err)
	}
	m.same(h, Watcher{Edge: true})
	if m.snaps != 2 {
		t.Errorf("%d snapshots", m.snaps)
	}
}

func TestOtherProcessesWrites(t *testing.T) {
	h := newTestHub(t)
	other, err := New(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	h.invite_("a", "a.test")
	if err := other.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if other.feed.at() != h.feed.at() {
		t.Errorf("revision %d, want %d", other.feed.at(), h.feed.at())
	}
}

func TestRun(t *testing.T) {
	h := newTestHub(t)
	h.SetIssuer(&fakeIssuer{})
	ctx, cancel := newCancel(t)
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop := h.watch(Watcher{Edge: true}, 0, func(m *hubv1.WatchResponse) {
		for _, p := range m.GetPuts() {
			if p.GetCertificate().GetName() == "hub.example.com" {
				cancel()
			}
		}
	})
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no certificate for the hub host, or Run does not end")
	}
	stop(0)
}
