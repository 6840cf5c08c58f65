package hub

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

const (
	// lostGrace is how long a tunnel outlives its last live declarer while other replicas of its
	// token live.
	lostGrace = 60 * time.Second
	// orphanLife is how long it stays, offline, with no replica alive.
	orphanLife = 30 * 24 * time.Hour
	// tickStep caps what one tick adds to the listening clock, so that a suspended machine does
	// not count its sleep.
	tickStep = 5 * time.Second
)

// reaper decides when a declared tunnel is withdrawn because nobody declares it any more.
//
// Time is measured on a listening clock, which stands still while the hub hears from no edge:
// then it cannot know who lives. Marks on that clock are stored, and so is the clock.
type reaper struct {
	// stale: what the store holds has changed since it was read.
	stale atomic.Bool

	mu       sync.Mutex
	loaded   bool
	clock    time.Duration
	saved    time.Duration
	lastTick time.Time
	step     time.Duration

	replicas map[replicaKey]store.Replica
	decls    map[string][]replicaKey // by tunnel
	declared map[replicaKey][]string
	tunnels  map[string]*store.Tunnel
	servers  map[string][]string // token ids by tunnel
	// lastAlive and aliveSince are marks on the clock, for replicas and for tokens.
	lastAlive  map[replicaKey]time.Duration
	aliveSince map[string]time.Duration
}

func newReaper() *reaper {
	return &reaper{step: tickStep, lastAlive: map[replicaKey]time.Duration{}, aliveSince: map[string]time.Duration{}}
}

// invalidate makes the next tick read the store again.
func (r *reaper) invalidate() { r.stale.Store(true) }

// forget makes the next tick start over, as after a start of the hub: what other hubs did meanwhile
// is in the store.
func (r *reaper) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded, r.lastTick = false, time.Time{}
	clear(r.lastAlive)
	clear(r.aliveSince)
}

const clockKey = "listening_clock_ms"

func (r *reaper) load(tx *store.Tx) error {
	if r.lastTick.IsZero() {
		v, err := tx.Meta(clockKey)
		if err != nil {
			return err
		}
		ms, _ := strconv.ParseInt(string(v), 10, 64)
		r.clock = time.Duration(ms) * time.Millisecond
		r.saved, r.lastTick = r.clock, tx.Now
	}
	replicas, err := tx.Replicas()
	if err != nil {
		return err
	}
	decls, err := tx.DeclarationsBy("", "")
	if err != nil {
		return err
	}
	tunnels, err := tx.Tunnels()
	if err != nil {
		return err
	}
	r.replicas, r.decls, r.declared = map[replicaKey]store.Replica{}, map[string][]replicaKey{}, map[replicaKey][]string{}
	r.tunnels, r.servers = map[string]*store.Tunnel{}, map[string][]string{}
	for _, x := range replicas {
		k := replicaKey{x.TokenID, x.ReplicaID}
		r.replicas[k] = x
		if _, ok := r.lastAlive[k]; !ok {
			r.lastAlive[k] = r.clock
		}
	}
	for _, d := range decls {
		if d.TunnelID != "" {
			k := keyOfDeclaration(d)
			r.decls[d.TunnelID] = append(r.decls[d.TunnelID], k)
			r.declared[k] = append(r.declared[k], d.TunnelID)
		}
	}
	for _, t := range tunnels {
		if t.Source != "declared" {
			continue
		}
		spec := &hubv1.Tunnel{}
		if err := proto.Unmarshal(t.Spec, spec); err != nil {
			return err
		}
		r.tunnels[t.ID], r.servers[t.ID] = t, spec.GetTokenIds()
	}
	r.loaded = true
	return nil
}

// tick advances the listening clock and withdraws what is due.
func (h *Hub) tick(ctx context.Context) error {
	r := h.reap
	if !h.Leads() {
		h.presence.forget(h.cfg.Now())
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale.Swap(false) || !r.loaded {
		r.loaded = false
		if err := h.store.Read(ctx, r.load); err != nil {
			return err
		}
	}
	now := h.cfg.Now()
	if dt := now.Sub(r.lastTick); dt > 0 && h.presence.heard(now) {
		r.clock += min(dt, r.step)
	}
	r.lastTick = now
	h.presence.forget(now)
	alive := h.presence.alive(now)
	steps := r.due(alive)
	save := r.clock-r.saved >= time.Minute
	if len(steps) == 0 && !save {
		return nil
	}
	err := h.write(ctx, func(tx *store.Tx) error {
		if h.store.Shared() {
			// Another hub may have taken over, or replicas have declared there.
			if err := h.leading(tx); err != nil {
				return err
			}
			if err := r.load(tx); err != nil {
				return err
			}
			steps = r.due(alive)
		}
		return h.withdrawDue(tx, steps, r.clock, save)
	})
	if errors.Is(err, errNotLeader) {
		return nil
	}
	if err != nil {
		return err
	}
	if save {
		r.saved = r.clock
	}
	r.loaded = len(steps) == 0
	return nil
}

// step is one change that a tick makes.
type step struct {
	replica replicaKey
	tunnel  string
	lost    time.Duration
	do      stepKind
}

type stepKind int

const (
	markLost stepKind = iota
	markAlive
	forgetReplica
	orphan
	adopt
	withdraw
)

func (r *reaper) due(alive map[replicaKey]map[string]bool) []step {
	var steps []step
	r.see(alive)
	for k, x := range r.replicas {
		_, lives := alive[k]
		switch {
		case lives && x.LostMark.Valid:
			steps = append(steps, step{replica: k, do: markAlive})
		case !lives && !x.LostMark.Valid:
			steps = append(steps, step{replica: k, lost: r.lastAlive[k], do: markLost})
		case !lives && r.superseded(k, alive):
			steps = append(steps, step{replica: k, do: forgetReplica})
		}
	}
	for id, t := range r.tunnels {
		if s, ok := r.dueTunnel(id, t, alive); ok {
			steps = append(steps, s)
		}
	}
	return steps
}

// see keeps the marks of who lives.
func (r *reaper) see(alive map[replicaKey]map[string]bool) {
	tokens := map[string]bool{}
	for k := range alive {
		r.lastAlive[k] = r.clock
		tokens[k.token] = true
	}
	for t := range tokens {
		if _, ok := r.aliveSince[t]; !ok {
			r.aliveSince[t] = r.clock
		}
	}
	for t := range r.aliveSince {
		if !tokens[t] {
			delete(r.aliveSince, t)
		}
	}
	for k := range r.lastAlive {
		if _, ok := alive[k]; ok {
			continue
		}
		if _, ok := r.replicas[k]; !ok {
			delete(r.lastAlive, k)
		}
	}
}

// superseded tells whether a lost replica holds nothing up any more: each of its tunnels has a
// live declarer, or there are none.
func (r *reaper) superseded(k replicaKey, alive map[replicaKey]map[string]bool) bool {
	if r.clock-r.lostAt(k) < lostGrace {
		return false
	}
	for _, id := range r.declared[k] {
		if !r.upheld(id, alive) {
			return false
		}
	}
	return true
}

func (r *reaper) lostAt(k replicaKey) time.Duration {
	if m := r.replicas[k].LostMark; m.Valid {
		return time.Duration(m.Int64) * time.Millisecond
	}
	return r.lastAlive[k]
}

// upheld tells whether a live replica declares the tunnel. One that never reached the hub counts
// if an edge says that it serves the tunnel.
func (r *reaper) upheld(id string, alive map[replicaKey]map[string]bool) bool {
	for _, k := range r.decls[id] {
		if _, ok := alive[k]; ok {
			return true
		}
	}
	for k, serves := range alive {
		if _, declares := r.replicas[k]; !declares && serves[id] {
			return true
		}
	}
	return false
}

func (r *reaper) dueTunnel(id string, t *store.Tunnel, alive map[replicaKey]map[string]bool) (step, bool) {
	if r.upheld(id, alive) {
		return step{tunnel: id, do: adopt}, t.OrphanedAt != 0
	}
	lost := time.Duration(t.OrphanMark) * time.Millisecond
	for _, k := range r.decls[id] {
		lost = max(lost, r.lostAt(k))
	}
	if len(r.decls[id]) == 0 && t.OrphanedAt == 0 {
		// Nobody declares it and nobody has been noted as lost: count from now on.
		return step{tunnel: id, lost: r.clock, do: orphan}, true
	}
	// A replica of its tokens that has lived for a while and does not declare it speaks for all.
	for _, token := range r.servers[id] {
		if since, ok := r.aliveSince[token]; ok && r.clock-max(since, lost) >= lostGrace {
			return step{tunnel: id, do: withdraw}, true
		}
	}
	if r.clock-lost >= orphanLife {
		return step{tunnel: id, do: withdraw}, true
	}
	return step{tunnel: id, lost: lost, do: orphan}, t.OrphanedAt == 0 && r.clock-lost >= lostGrace
}

func (h *Hub) withdrawDue(tx *store.Tx, steps []step, clock time.Duration, save bool) error {
	if save {
		if err := tx.SetMeta(clockKey, []byte(strconv.FormatInt(clock.Milliseconds(), 10))); err != nil {
			return err
		}
		if err := tx.DropHeld(); err != nil {
			return err
		}
		if err := tx.PruneChanges(keepChanges); err != nil {
			return err
		}
	}
	for _, s := range steps {
		var err error
		switch s.do {
		case markLost:
			err = tx.SetLost(s.replica.token, s.replica.replica, sql.NullInt64{Int64: s.lost.Milliseconds(), Valid: true})
		case markAlive:
			err = tx.SetLost(s.replica.token, s.replica.replica, sql.NullInt64{})
		case forgetReplica:
			err = h.forgetReplica(tx, s.replica)
		case withdraw:
			h.log.Info("declared tunnel withdrawn: no live replica declares it", "tunnel", s.tunnel)
			err = h.deleteTunnel(tx, s.tunnel)
		case orphan, adopt:
			err = setOrphan(tx, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetReplica removes a lost replica. Somebody else upholds its tunnels; if none of its token
// does, the token may no longer serve them.
func (h *Hub) forgetReplica(tx *store.Tx, k replicaKey) error {
	decls, err := tx.DeclarationsBy(k.token, k.replica)
	if err != nil {
		return err
	}
	for _, d := range decls {
		if d.TunnelID == "" {
			continue
		}
		all, err := tx.Declarations(d.TunnelID)
		if err != nil {
			return err
		}
		if len(all) > 1 {
			if err := h.dropDeclarer(tx, d.TunnelID, k); err != nil {
				return err
			}
		}
	}
	return tx.DeleteReplica(k.token, k.replica)
}

func setOrphan(tx *store.Tx, s step) error {
	t, err := tx.Tunnel(s.tunnel)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	t.OrphanedAt, t.OrphanMark = 0, 0
	if s.do == orphan {
		t.OrphanedAt, t.OrphanMark = tx.Now.UnixMilli(), s.lost.Milliseconds()
	}
	tx.Changed("tunnel/" + t.ID)
	return tx.SetTunnel(t)
}
