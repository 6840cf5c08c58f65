package edge

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/reason"
)

// feedState is what the edge knows of its hub.
type feedState struct {
	// mu orders changes; readers use the view.
	mu   sync.Mutex
	book book
	// connected: the hub was heard on the watch that runs. heard is when, in Unix nanoseconds.
	connected atomic.Bool
	heard     atomic.Int64
	// watching: a watch runs, so a report that the hub took means that it is heard.
	watching atomic.Bool
}

// follow watches the hub for ever, with full jitter between attempts.
func (e *Edge) follow(ctx context.Context) {
	wait := e.cfg.ReconnectMin
	for ctx.Err() == nil {
		begin := e.cfg.Now()
		from := e.view.Load().revision
		e.feed.mu.Lock()
		e.feed.book.pending = nil
		e.feed.mu.Unlock()
		e.feed.watching.Store(true)
		err := e.cfg.Feed.Watch(ctx, from, e.apply)
		e.feed.watching.Store(false)
		e.setConnected(false)
		if ctx.Err() != nil {
			return
		}
		if e.cfg.Now().Sub(begin) > e.cfg.ReconnectMax {
			wait = e.cfg.ReconnectMin
		}
		pause := rand.N(wait) + 1
		e.cfg.Log.Warn("the hub is not heard; going on with what is known", "err", err, "revision", from, "retry_in", pause.Round(time.Millisecond))
		wait = min(2*wait, e.cfg.ReconnectMax)
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (e *Edge) setConnected(on bool) {
	if on {
		e.feed.heard.Store(e.cfg.Now().UnixNano())
	}
	if e.feed.connected.Swap(on) == on {
		return
	}
	e.metrics.connected.Set(b2f(on))
	if on {
		e.cfg.Log.Info("connected to the hub", "revision", e.view.Load().revision)
	}
	e.wakeReport()
}

// apply takes one message of the watch.
func (e *Edge) apply(m *hubv1.WatchResponse) error {
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	e.setConnected(true)
	if !m.GetSnapshot() && !e.view.Load().complete {
		return errors.New("the hub sent a delta before any snapshot")
	}
	puts, deletes, complete, err := e.feed.book.take(m)
	if err != nil || !complete {
		return err
	}
	e.commit(m.GetRevision(), puts, deletes)
	return nil
}

// commit makes a change the edge's view and lets everybody act on the difference. Nothing that
// did not change is touched.
func (e *Edge) commit(revision uint64, puts []*hubv1.Resource, deletes []string) {
	b := &e.feed.book
	if b.items == nil {
		b.items = map[string]*hubv1.Resource{}
	}
	now, c := b.next(e.view.Load(), revision, puts, deletes)
	e.view.Store(now)
	e.metrics.revision.Set(float64(revision))
	e.metrics.tunnels.Set(float64(now.table.Len()))
	e.registry.refresh(c.tunnels)
	for id, t := range c.tunnels {
		e.ports.change(id, t.now)
		if !continues(t.old, t.now) {
			e.raw.CloseTunnel(id)
			e.proxy.CloseTunnel(id)
		}
	}
	e.ports.reconcile()
	if len(c.tunnels) > 0 {
		e.ports.replicasChanged()
	}
	if c.credentials {
		e.acceptor.Recheck(e.admitted)
		e.enrol.decided()
	}
	if c.forwarders {
		e.forwards.recheck()
	}
	if c.edges {
		e.enrol.wake()
		e.acceptor.BroadcastEdges(e.edges())
	}
	e.readyOnce.Do(func() { close(e.ready) })
	e.snapshot.touch()
	e.wakeReport()
}

// continues reports whether connections of the old tunnel may go on under the new one: it answers
// under the same name, carries to the same origins and does not admit fewer visitors.
func continues(old, now *hubv1.Tunnel) bool {
	if old == nil {
		return true
	}
	if now == nil || old.GetKind() != now.GetKind() || old.GetHostname() != now.GetHostname() ||
		old.GetPort() != now.GetPort() || old.GetPortLast() != now.GetPortLast() || old.GetAddress() != now.GetAddress() ||
		len(old.GetOrigins()) != len(now.GetOrigins()) {
		return false
	}
	for i, o := range old.GetOrigins() {
		if !proto.Equal(o, now.GetOrigins()[i]) {
			return false
		}
	}
	return access.Admits(old.GetAccess(), now.GetAccess())
}

// edges is the list for agents: those of the snapshot that take sessions, this one included as
// soon as it runs.
func (e *Edge) edges() []*wirev1.EdgeAddress {
	v := e.view.Load()
	self := e.cfg.Key.ID()
	var out []*wirev1.EdgeAddress
	if !e.draining.Load() && !e.outOfService() {
		out = append(out, e.cfg.Address)
	}
	for _, id := range sortedKeys(v.edges) {
		if edge := v.edges[id]; id != self && !edge.GetDraining() && !edge.GetOutOfService() {
			out = append(out, edge.GetAddress())
		}
	}
	return out
}

// outOfService reports whether the hub was told to send agents elsewhere.
func (e *Edge) outOfService() bool { return e.view.Load().edges[e.cfg.Key.ID()].GetOutOfService() }

// tooOld says why new sessions are refused when the hub was not heard for too long.
func (e *Edge) tooOld() *reason.Error {
	most := e.cfg.MaxSnapshotAge
	if most <= 0 || e.feed.connected.Load() {
		return nil
	}
	heard := time.Unix(0, e.feed.heard.Load())
	if age := e.cfg.Now().Sub(heard); age > most {
		return reason.New(reason.HubUnreachable, reason.HopEdge,
			"this edge has not heard its hub for %v, longer than --max-snapshot-age %v; it takes no new sessions until the hub is back", age.Round(time.Second), most)
	}
	return nil
}
