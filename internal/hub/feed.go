package hub

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// chunkItems and chunkBytes bound one message of a watch.
	chunkItems = 256
	chunkBytes = 1 << 20
	// keepChanges is how many changes a watch may be behind and still resume.
	keepChanges = 20000
)

// feed is the state of all resources in memory, as of one revision, with the log that led there.
// Watches read from it: however many there are, the store is read once per change.
type feed struct {
	mu       sync.RWMutex
	items    map[string]*hubv1.Resource
	log      []logged
	floor    uint64
	revision uint64
	// moved is closed when the revision grows.
	moved chan struct{}
	// listed are the tunnels in the order of lists; nil after one has changed.
	listed []placed

	refreshing sync.Mutex
}

type logged struct {
	revision uint64
	item     string
}

func newFeed() *feed {
	return &feed{items: map[string]*hubv1.Resource{}, moved: make(chan struct{})}
}

// load reads everything.
func (h *Hub) load(ctx context.Context) error {
	f := h.feed
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	items := map[string]*hubv1.Resource{}
	var log []logged
	var last, floor int64
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if last, floor, err = tx.Revision(); err != nil {
			return err
		}
		changes, err := tx.Changes(floor)
		if err != nil {
			return err
		}
		for _, c := range changes {
			log = append(log, logged{uint64(c.Revision), c.Item})
		}
		return h.loadAll(tx, func(r *hubv1.Resource) { items[r.Key()] = r })
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.items, f.log, f.floor, f.revision = items, log, uint64(floor), uint64(last)
	f.listed = nil
	return nil
}

func (h *Hub) loadAll(tx *store.Tx, put func(*hubv1.Resource)) error {
	tunnels, err := tx.Tunnels()
	if err != nil {
		return err
	}
	for _, t := range tunnels {
		r, err := h.tunnelResource(t)
		if err != nil {
			return err
		}
		put(r)
	}
	tokens, err := tx.Tokens(agentKinds, "", "", 0)
	if err != nil {
		return err
	}
	holders, err := tx.Holders()
	if err != nil {
		return err
	}
	byAgent := map[string]*store.Holder{}
	for _, x := range holders {
		byAgent[x.Agent] = x
	}
	for _, t := range tokens {
		put(credentialResource(t, byAgent[firstToken(t)]))
	}
	edges, err := tx.Edges()
	if err != nil {
		return err
	}
	for _, e := range edges {
		r, err := edgeResource(e)
		if err != nil {
			return err
		}
		put(r)
	}
	certs, err := tx.Certificates()
	if err != nil {
		return err
	}
	for _, c := range certs {
		put(h.certificateResource(c))
	}
	forwarders, err := tx.Forwarders()
	if err != nil {
		return err
	}
	for _, f := range forwarders {
		put(forwarderResource(f))
	}
	put(h.settings())
	return nil
}

// loadOne reads the resource item; nil when there is none.
func (h *Hub) loadOne(tx *store.Tx, item string) (r *hubv1.Resource, err error) {
	kind, id, _ := strings.Cut(item, "/")
	switch kind {
	case "tunnel":
		var t *store.Tunnel
		if t, err = tx.Tunnel(id); err == nil {
			r, err = h.tunnelResource(t)
		}
	case "credential":
		var t *store.Token
		if t, err = tx.Token(id); err == nil && t.Kind != "edge" {
			var holder *store.Holder
			if holder, err = tx.Holder(firstToken(t)); errors.Is(err, store.ErrNotFound) {
				holder, err = nil, nil
			}
			r = credentialResource(t, holder)
		}
	case "edge":
		var e *store.Edge
		if e, err = tx.Edge(id); err == nil {
			r, err = edgeResource(e)
		}
	case "certificate":
		var c *store.Certificate
		if c, err = tx.Certificate(id); err == nil {
			r = h.certificateResource(c)
		}
	case "forwarder":
		var f *store.Forwarder
		if f, err = tx.Forwarder(id); err == nil {
			r = forwarderResource(f)
		}
	case "settings":
		r = h.settings()
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return r, err
}

// write changes the store, with the row that the audit gets of it, and brings the feed up to date
// before it returns.
func (h *Hub) write(ctx context.Context, f func(*store.Tx) error) error {
	a := ActorFrom(ctx)
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		return a.record(tx)
	})
	if err != nil {
		return err
	}
	if err := h.refresh(context.WithoutCancel(ctx)); err != nil {
		// What was written stands; the poll brings it to the feed.
		h.log.Warn("change feed: read failed, trying again soon", "error", err)
	}
	return nil
}

// refresh applies what the change log holds beyond the feed's revision.
func (h *Hub) refresh(ctx context.Context) error {
	f := h.feed
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	var changes []store.Change
	now := map[string]*hubv1.Resource{}
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if changes, err = tx.Changes(int64(f.at())); err != nil {
			return err
		}
		for _, c := range changes {
			if _, done := now[c.Item]; done {
				continue
			}
			if now[c.Item], err = h.loadOne(tx, c.Item); err != nil {
				return fmt.Errorf("%s: %w", c.Item, err)
			}
		}
		return nil
	})
	if err != nil || len(changes) == 0 {
		return err
	}
	f.apply(changes, now)
	if h.store.Shared() {
		for item, r := range now {
			h.note(ctx, item, r)
		}
	}
	return nil
}

func (f *feed) at() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.revision
}

func (f *feed) apply(changes []store.Change, now map[string]*hubv1.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for item, r := range now {
		if strings.HasPrefix(item, "tunnel/") {
			f.listed = nil
		}
		if r == nil {
			delete(f.items, item)
		} else {
			f.items[item] = r
		}
	}
	for _, c := range changes {
		f.log = append(f.log, logged{uint64(c.Revision), c.Item})
	}
	f.revision = f.log[len(f.log)-1].revision
	if n := len(f.log) - keepChanges; n > 0 {
		f.floor = f.log[n-1].revision
		f.log = append([]logged(nil), f.log[n:]...)
	}
	close(f.moved)
	f.moved = make(chan struct{})
}

// get returns the resource item, nil if there is none. Resources are never changed in place.
func (f *feed) get(item string) *hubv1.Resource {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.items[item]
}

// each calls visit for every resource of a kind.
func (f *feed) each(kind string, visit func(*hubv1.Resource)) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for k, r := range f.items {
		if strings.HasPrefix(k, kind+"/") {
			visit(r)
		}
	}
}

func (f *feed) tunnels() []*hubv1.Tunnel {
	var out []*hubv1.Tunnel
	f.each("tunnel", func(r *hubv1.Resource) { out = append(out, r.GetTunnel()) })
	return out
}

// placed is a tunnel with what it is sorted and found by.
type placed struct {
	t        *hubv1.Tunnel
	at, text string
}

// list returns the tunnels in the order of their places. It is not to be changed.
func (f *feed) list() []placed {
	f.mu.RLock()
	listed := f.listed
	f.mu.RUnlock()
	if listed != nil {
		return listed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed == nil {
		f.listed = []placed{}
		for k, r := range f.items {
			if t := r.GetTunnel(); t != nil && strings.HasPrefix(k, "tunnel/") {
				at := place(t)
				f.listed = append(f.listed, placed{t, at, at + "\n" + strings.ToLower(t.GetName()) + "\n" + strings.ToLower(t.GetTenant())})
			}
		}
		sort.Slice(f.listed, func(i, j int) bool { return f.listed[i].at < f.listed[j].at })
	}
	return f.listed
}

func (f *feed) edges() []*hubv1.Edge {
	var out []*hubv1.Edge
	f.each("edge", func(r *hubv1.Resource) { out = append(out, r.GetEdge()) })
	sort.Slice(out, func(i, j int) bool { return out[i].GetAddress().GetId() < out[j].GetAddress().GetId() })
	return out
}

func edgeAddresses(edges []*hubv1.Edge) []*wirev1.EdgeAddress {
	var out []*wirev1.EdgeAddress
	for _, e := range edges {
		if !e.GetDraining() && !e.GetOutOfService() {
			out = append(out, e.GetAddress())
		}
	}
	return out
}

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

// poll brings in what other hubs wrote to the same database: at once when the database tells of it,
// and anyhow every 2 s.
func (h *Hub) poll(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	hints := h.store.Hints(ctx, &wg)
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	h.loop(ctx, "change feed", h.refresh, func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		case <-hints:
		}
		return true
	})
}

func credentialResource(t *store.Token, holder *store.Holder) *hubv1.Resource {
	c := credentialOf(t)
	if holder != nil {
		c.HolderReplica, c.HolderTerm = holder.Replica, uint64(holder.Term)
		if holder.Replica != "" {
			c.HolderHost, c.HolderSince = holder.HostName, stamp(holder.Since)
		}
	}
	return &hubv1.Resource{Item: &hubv1.Resource_Credential{Credential: c}}
}

func (h *Hub) tunnelResource(t *store.Tunnel) (*hubv1.Resource, error) {
	p := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, p); err != nil {
		return nil, fmt.Errorf("tunnel %s: %w", t.ID, err)
	}
	h.unseal(t, p)
	p.CreatedAt, p.OrphanedAt = stamp(t.CreatedAt), stamp(t.OrphanedAt)
	return &hubv1.Resource{Item: &hubv1.Resource_Tunnel{Tunnel: p}}, nil
}

func edgeResource(e *store.Edge) (*hubv1.Resource, error) {
	p := &hubv1.Edge{}
	if err := proto.Unmarshal(e.Spec, p); err != nil {
		return nil, fmt.Errorf("edge %s: %w", e.ID, err)
	}
	p.OutOfService = e.Drained
	return &hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: p}}, nil
}
