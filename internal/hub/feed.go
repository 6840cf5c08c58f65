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
)

// keepChanges is how many changes a watch may be behind and still resume.
const keepChanges = 20000

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
