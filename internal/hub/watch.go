package hub

import (
	"context"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// chunkItems and chunkBytes bound one message of a watch.
const (
	chunkItems = 256
	chunkBytes = 1 << 20
)

// Watcher is who watches: it decides what is seen.
type Watcher struct {
	// Edge sees all that edges serve with; else TokenID sees edges and its own tunnels.
	Edge    bool
	TokenID string
	// ReplicaID is the agent process that watches, which is also asked there.
	ReplicaID string
}

func (w Watcher) sees(r *hubv1.Resource) bool {
	if w.Edge {
		return true
	}
	switch i := r.GetItem().(type) {
	case *hubv1.Resource_Edge:
		return true
	case *hubv1.Resource_Tunnel:
		for _, id := range i.Tunnel.GetTokenIds() {
			if id == w.TokenID {
				return true
			}
		}
	}
	return false
}

// shown is r as w may see it. Resources are never changed in place.
func (w Watcher) shown(r *hubv1.Resource) *hubv1.Resource {
	t := r.GetTunnel()
	if w.Edge || t == nil {
		return r
	}
	if s := forAgent(t); s != t {
		return &hubv1.Resource{Item: &hubv1.Resource_Tunnel{Tunnel: s}}
	}
	return r
}

// Watch sends what w may know and every change of it until ctx ends, send fails or the hub stops:
// deltas from a revision that is still in the log, else a snapshot first. Agents always get a
// snapshot: it is small, and what left their view is nobody else's business.
func (h *Hub) Watch(ctx context.Context, w Watcher, from uint64, send func(*hubv1.WatchResponse) error) error {
	if from > h.feed.at() {
		// Another hub told the watcher of what this one has not read yet.
		if err := h.refresh(ctx); err != nil {
			return err
		}
	}
	v := &view{feed: h.feed, w: w, send: send}
	if !w.Edge {
		v.sent = map[string]bool{}
	}
	if !w.Edge || !h.feed.reaches(from) {
		if err := v.snapshot(); err != nil {
			return err
		}
	} else {
		v.revision = from
	}
	var asked <-chan *hubv1.Ask
	if w.ReplicaID != "" {
		var end func()
		asked, end = h.asks.listen(replicaKey{w.TokenID, w.ReplicaID})
		defer end()
	}
	for {
		moved, err := v.delta()
		if err != nil {
			return err
		}
		select {
		case <-moved:
		case q := <-asked:
			if err := send(&hubv1.WatchResponse{Asks: []*hubv1.Ask{q}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-h.stopping:
			return reason.New(reason.Draining, reason.HopHub, "the hub is stopping")
		}
	}
}

// reaches tells whether deltas from a revision are still known.
func (f *feed) reaches(from uint64) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return from != 0 && from >= f.floor && from <= f.revision
}

// view is what one watch has sent.
type view struct {
	feed     *feed
	w        Watcher
	send     func(*hubv1.WatchResponse) error
	revision uint64
	// sent holds the keys an agent knows; nil for edges, which see everything.
	sent map[string]bool
}

func (v *view) snapshot() error {
	v.feed.mu.RLock()
	keys := make([]string, 0, len(v.feed.items))
	for k, r := range v.feed.items {
		if v.w.sees(r) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	items := make([]*hubv1.Resource, len(keys))
	for i, k := range keys {
		items[i] = v.w.shown(v.feed.items[k])
	}
	v.revision = v.feed.revision
	v.feed.mu.RUnlock()

	for {
		n := chunk(items)
		m := &hubv1.WatchResponse{Snapshot: true, Puts: items[:n]}
		items = items[n:]
		if m.Complete = len(items) == 0; m.Complete {
			m.Revision = v.revision
		}
		if err := v.send(m); err != nil {
			return err
		}
		if m.Complete {
			break
		}
	}
	if v.sent != nil {
		clear(v.sent)
		for _, k := range keys {
			v.sent[k] = true
		}
	}
	return nil
}

// chunk is how many of items fit one message.
func chunk(items []*hubv1.Resource) int {
	size := 0
	for i, r := range items {
		size += proto.Size(r)
		if i == chunkItems || i > 0 && size > chunkBytes {
			return i
		}
	}
	return len(items)
}

// delta sends what changed since the last message and returns what signals more.
func (v *view) delta() (<-chan struct{}, error) {
	v.feed.mu.RLock()
	moved := v.feed.moved
	if v.revision < v.feed.floor {
		// Too slow: the log has moved on. What is new comes as a snapshot.
		v.feed.mu.RUnlock()
		if err := v.snapshot(); err != nil {
			return nil, err
		}
		return v.delta()
	}
	log := v.feed.log
	log = log[sort.Search(len(log), func(i int) bool { return log[i].revision > v.revision }):]
	last := map[string]uint64{}
	for _, c := range log {
		last[c.item] = c.revision
	}
	type entry struct {
		logged
		r *hubv1.Resource
	}
	var entries []entry
	for _, c := range log {
		if last[c.item] == c.revision { // only where an item changed last
			entries = append(entries, entry{c, v.feed.items[c.item]})
		}
	}
	end := v.feed.revision
	v.feed.mu.RUnlock()

	m, size := &hubv1.WatchResponse{Complete: true}, 0
	flush := func(at uint64) error {
		v.revision = at
		if len(m.Puts)+len(m.Deletes) == 0 && !m.Redeclare {
			return nil
		}
		m.Revision = at
		err := v.send(m)
		m, size = &hubv1.WatchResponse{Complete: true}, 0
		return err
	}
	for i, e := range entries {
		switch {
		case strings.HasPrefix(e.item, hubItems):
		case isVerdicts(e.item):
			m.Redeclare = m.Redeclare || !v.w.Edge && e.item == verdictsItem(v.w.TokenID)
		case e.r != nil && v.w.sees(e.r):
			r := v.w.shown(e.r)
			m.Puts = append(m.Puts, r)
			size += proto.Size(r)
			if v.sent != nil {
				v.sent[e.item] = true
			}
		case v.sent == nil || v.sent[e.item]:
			m.Deletes = append(m.Deletes, e.item)
			delete(v.sent, e.item)
		}
		if len(m.Puts)+len(m.Deletes) >= chunkItems || size > chunkBytes {
			at := e.revision
			if i == len(entries)-1 {
				at = end
			}
			if err := flush(at); err != nil {
				return nil, err
			}
		}
	}
	return moved, flush(end)
}
