package hub

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// TestManyTunnels keeps lists, a change and a snapshot of 10,000 tunnels within what people wait
// for; the bounds are wide, they catch what grows with the square.
func TestManyTunnels(t *testing.T) {
	const n = 10000
	h := newTestHub(t)
	a := h.replica(h.invite_("a", "**.many.test"))
	err := h.write(t.Context(), func(tx *store.Tx) error {
		for i := range n {
			c, p := parseEntry(web(fmt.Sprintf("h%05d.many.test", i)))
			if p != nil {
				return p
			}
			row := c.row("a", 1)
			row.OrphanedAt = 1 // nobody declares it, and that is known
			c.tunnel.Tenant, c.tunnel.TokenIds = "a", []string{a.key().token}
			row.Spec, _ = proto.Marshal(c.tunnel)
			if err := tx.AddTunnel(row, "", 0, 0); err != nil {
				return err
			}
			tx.Changed("tunnel/" + row.ID)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	within := func(what string, d time.Duration, f func()) {
		t.Helper()
		begin := time.Now()
		f()
		if took := time.Since(begin); took > d {
			t.Errorf("%s took %v, want less than %v", what, took, d)
		} else {
			t.Logf("%s took %v", what, took)
		}
	}
	p95 := func(what string, f func(i int)) {
		t.Helper()
		var took []time.Duration
		for i := range 60 {
			begin := time.Now()
			f(i)
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		t.Logf("%s: median %v, p95 %v", what, took[30], took[57])
		if took[57] > time.Second {
			t.Errorf("%s: p95 %v", what, took[57])
		}
	}
	page := ""
	p95("a page", func(int) {
		l, next, err := h.ListTunnels(t.Context(), 100, page, "")
		if err != nil || len(l) != 100 {
			t.Error(len(l), err)
		}
		page = next
	})
	p95("a search", func(i int) {
		if l, _, err := h.ListTunnels(t.Context(), 100, "", fmt.Sprintf("h%05d", i*100)); err != nil || len(l) != 1 {
			t.Error(len(l), err)
		}
	})
	got := 0
	stop := h.watch(Watcher{Edge: true}, 0, func(m *hubv1.WatchResponse) { got += len(m.GetPuts()) })
	within("a change at the edge", 5*time.Second, func() {
		a.ok(web("new.many.test"))
		stop(h.feed.at())
	})
	if got < n+1 {
		t.Errorf("%d resources", got)
	}
	within("a tick", 5*time.Second, h.ticked)
}
