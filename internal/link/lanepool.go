package link

import (
	"context"
	"slices"
	"sync"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

const (
	// lanesBesideQUIC and lanesAlone cap the lanes of a replica.
	lanesBesideQUIC = 256
	lanesAlone      = 4096
)

// lanePool is the edge's side of the lanes of a replica: it decides how many there are, hands
// them out and retires them.
type lanePool struct {
	r      *Replica
	maxCfg int

	mu      sync.Mutex
	all     map[*lane]struct{}
	idle    []*lane // most recently used last
	waiters []chan *lane
	demand  demand
	missed  int       // streams of late that found no lane and took QUIC
	missAt  time.Time // the last of them
	limit   int       // what the agent can hold
	asked   int
	shortAt time.Time // when idle streams were last asked to give up their lanes
	closed  bool
}

// shortEvery is how often idle streams may be asked to give up their lanes.
const shortEvery = 100 * time.Millisecond

func newLanePool(r *Replica, maxLanes int, shrink time.Duration) *lanePool {
	return &lanePool{r: r, maxCfg: maxLanes, all: map[*lane]struct{}{}, limit: lanesAlone, demand: demand{window: shrink}}
}

// cap is how many lanes there may be.
func (p *lanePool) cap(quic bool) int {
	n := lanesAlone
	if p.maxCfg > 0 {
		n = p.maxCfg
	}
	if quic {
		n = min(n, lanesBesideQUIC)
	}
	return min(n, p.limit)
}

// counts returns idle and all lanes, and whether there may be any.
func (p *lanePool) counts() (idle, total int, possible bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle), len(p.all), p.cap(false) > 0
}

// take returns an idle lane, or nil; either way the demand is noted and told to the agent.
func (p *lanePool) take() *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l *lane
	if n := len(p.idle); n > 0 {
		l = p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
	}
	p.ask(l == nil)
	return l
}

// wait returns the next free lane, or nil when ctx ends.
func (p *lanePool) wait(ctx context.Context) *lane {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		l := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.ask(false)
		p.mu.Unlock()
		return l
	}
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	c := make(chan *lane, 1)
	p.waiters = append(p.waiters, c)
	p.ask(false)
	p.mu.Unlock()
	select {
	case l := <-c:
		return l
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.waiters = slices.DeleteFunc(p.waiters, func(o chan *lane) bool { return o == c })
	p.mu.Unlock()
	select {
	case l := <-c: // it came at the last moment
		if l != nil {
			p.put(l)
		}
	default:
	}
	return nil
}

// ask notes the demand now and sends it when it grew. missed: a stream would have taken a lane.
// The caller holds mu.
func (p *lanePool) ask(missed bool) {
	now := time.Now()
	if missed {
		p.missed++
		p.missAt = now
	}
	p.demand.note(p.wanted(), now)
	limit := p.cap(p.r.hasQUIC())
	p.tell(p.demand.target(limit, now), false)
	if missed || len(p.waiters) > 0 {
		p.short(limit, now)
	}
}

// short asks what holds idle streams to give up their lanes, if there can be no more of them. The
// caller holds mu.
func (p *lanePool) short(limit int, now time.Time) {
	f := p.r.acceptor.cfg.Short
	if f == nil || len(p.all) < limit || now.Sub(p.shortAt) < shortEvery {
		return
	}
	p.shortAt = now
	p.r.pair.goFunc(func() { f(p.r) })
}

// wanted is how many lanes are busy, waited for or were missed. The caller holds mu.
func (p *lanePool) wanted() int { return len(p.all) - len(p.idle) + len(p.waiters) + p.missed }

// tell sends the demand if it changed. The caller holds mu.
func (p *lanePool) tell(target int, always bool) {
	if target == p.asked && !always {
		return
	}
	p.asked = target
	if s := p.r.pair.current(); s != nil {
		s.send(&wirev1.Control{Message: &wirev1.Control_LaneDemand{LaneDemand: &wirev1.LaneDemand{Lanes: uint32(target), RawIdle: uint32(p.r.raw.asked.Load())}}})
	}
}

// retell sends the demand on a new session.
func (p *lanePool) retell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell(p.demand.target(p.cap(p.r.hasQUIC()), time.Now()), true)
}

// setLimit takes the agent's word on how many it can hold.
func (p *lanePool) setLimit(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = n
	p.tell(p.demand.target(p.cap(p.r.hasQUIC()), time.Now()), false)
}

// join adds a lane that the agent dialled; false when there are too many.
func (p *lanePool) join(l *lane) bool {
	p.mu.Lock()
	if p.closed || len(p.all) >= p.cap(false) {
		p.mu.Unlock()
		return false
	}
	p.all[l] = struct{}{}
	p.missed = max(0, p.missed-1)
	p.mu.Unlock()
	p.r.pair.metrics.lane(laneTLS, 1)
	p.put(l)
	return true
}

// free takes a lane back from its stream.
func (p *lanePool) free(l *lane, clean bool) {
	if clean {
		p.put(l)
	} else {
		p.drop(l)
	}
}

// put takes a free lane back: to the longest waiter, or to the idle ones.
func (p *lanePool) put(l *lane) {
	t := p.r.pair.timing
	p.mu.Lock()
	if _, ok := p.all[l]; !ok || p.closed || l.bytes.Load() > t.laneBytes || time.Since(l.since) > t.laneAge {
		p.mu.Unlock()
		p.drop(l)
		return
	}
	if len(p.waiters) > 0 {
		c := p.waiters[0]
		p.waiters = p.waiters[1:]
		c <- l
		p.mu.Unlock()
		return
	}
	if l.sentinel == nil {
		c := make(chan error, 1)
		l.sentinel = c
		p.r.pair.goFunc(func() { p.sentinel(l, c) })
	}
	p.idle = append(p.idle, l)
	p.mu.Unlock()
}

// sentinel reads on an idle lane: nothing may come before it is taken, so what comes is its end.
// Once it is taken, this read is the first of its stream.
func (p *lanePool) sentinel(l *lane, c chan error) {
	err := l.readHeader()
	c <- err
	p.mu.Lock()
	i := slices.Index(p.idle, l)
	if i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	closed := p.closed
	p.mu.Unlock()
	if i < 0 {
		return
	}
	p.drop(l)
	if !closed {
		// The path or the peer may be gone: ask the sessions.
		p.r.pair.probe(nil)
	}
}

// drop forgets and closes a lane.
func (p *lanePool) drop(l *lane) {
	p.mu.Lock()
	_, ok := p.all[l]
	delete(p.all, l)
	p.mu.Unlock()
	if ok {
		p.r.pair.metrics.lane(laneTLS, -1)
	}
	l.destroy(false)
}

// tend retires idle lanes above the target.
func (p *lanePool) tend(now time.Time) {
	p.mu.Lock()
	if now.Sub(p.missAt) > p.r.pair.timing.laneShrink/demandBuckets {
		p.missed = 0
	}
	p.demand.note(p.wanted(), now)
	target := p.demand.target(p.cap(p.r.hasQUIC()), now)
	p.tell(target, false)
	if len(p.waiters) > 0 {
		p.short(p.cap(p.r.hasQUIC()), now) // some may have fallen idle since
	}
	var retired []*lane
	for len(p.all)-len(retired) > target && len(p.idle) > 0 {
		// Those that carried bulk first, they hold the most memory; else the longest idle.
		i := max(0, slices.IndexFunc(p.idle, func(l *lane) bool { return l.bulk.Load() }))
		retired = append(retired, p.idle[i])
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	p.mu.Unlock()
	for _, l := range retired {
		p.drop(l)
	}
}

// dropIdle resets the idle lanes: the agent is believed to have moved, or to be gone.
func (p *lanePool) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, l := range idle {
		l.destroy(true)
		p.drop(l)
	}
}

// close closes every lane.
func (p *lanePool) close() {
	p.mu.Lock()
	p.closed = true
	all := make([]*lane, 0, len(p.all))
	for l := range p.all {
		all = append(all, l)
	}
	p.idle = nil
	for _, c := range p.waiters {
		c <- nil
	}
	p.waiters = nil
	p.mu.Unlock()
	for _, l := range all {
		p.drop(l)
	}
}
