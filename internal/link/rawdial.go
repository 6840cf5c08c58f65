package link

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// rawDialler is the agent's side of raw lanes: it keeps as many idle ones as the edge asks for.
type rawDialler struct {
	c    *Connector
	kick chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	want     int
	dialling int
	idle     int
	lanes    map[uint64]*rawLane
	next     uint64 // counter of the last one, over all sessions
	pause    time.Duration
	until    time.Time // no dial before
	warned   bool      // that there are none
	stopped  bool
}

// rawLane is a lane with its state; busy is closed when a stream rides it.
type rawLane struct {
	*lane
	busy  chan struct{}
	taken bool
}

func newRawDialler(c *Connector) *rawDialler {
	return &rawDialler{c: c, kick: make(chan struct{}, 1), lanes: map[uint64]*rawLane{}}
}

func (d *rawDialler) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (d *rawDialler) setWant(n int) {
	d.mu.Lock()
	d.want = n
	d.mu.Unlock()
	d.wake()
}

func (d *rawDialler) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.lanes)
}

// run dials until ctx ends, then closes all lanes and waits.
func (d *rawDialler) run(ctx context.Context) {
	for ctx.Err() == nil {
		var timer <-chan time.Time
		if pause := d.begin(ctx); pause > 0 {
			timer = time.After(pause)
		}
		select {
		case <-ctx.Done():
		case <-d.kick:
		case <-timer:
		}
	}
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.destroy(true)
	d.wg.Wait()
}

// begin starts the dials that are due; it returns how long none may be.
func (d *rawDialler) begin(ctx context.Context) time.Duration {
	s := d.c.pair.current()
	d.mu.Lock()
	defer d.mu.Unlock()
	if pause := time.Until(d.until); pause > 0 {
		return pause
	}
	if s == nil || d.want == 0 {
		return 0
	}
	if why := rawImpossible(s); why != "" {
		d.warn(why, nil)
		return 0
	}
	for d.idle+d.dialling < d.want && d.dialling < lanesAtOnce && len(d.lanes)+d.dialling < d.c.lanes.hard {
		d.dialling++
		d.next++
		id := d.next
		d.wg.Go(func() { d.dial(ctx, s, id) })
	}
	return 0
}

// rawImpossible says why a session has no raw lanes; empty = it may.
func rawImpossible(s *session) string {
	switch {
	case !canWaitReadable:
		return "this system has none"
	case s.raw == nil:
		return "the session exports no key"
	case s.carrier == CarrierWS:
		return "the session uses WebSockets"
	case s.target.proxy != nil:
		return "the edge is reached through a proxy"
	}
	return ""
}

// warn says once that there are no raw lanes. The caller holds mu.
func (d *rawDialler) warn(why string, err error) {
	if d.warned {
		return
	}
	d.warned = true
	d.c.log.Warn("raw lanes are not available; tunnels with carrier_policy raw use TLS lanes", "why", why, "error", err)
}

// dial makes one lane and watches it until a stream rides it or it ends.
func (d *rawDialler) dial(ctx context.Context, s *session, id uint64) {
	t, err := d.connect(ctx, s, id)
	d.mu.Lock()
	d.dialling--
	if err != nil || d.stopped {
		if err != nil && ctx.Err() == nil {
			d.rest()
			d.warn("a plain connection to the edge failed", err)
		}
		d.mu.Unlock()
		if t != nil {
			_ = t.Close()
		}
		d.wake()
		return
	}
	// The edge may use it as soon as it has the preamble.
	l := &rawLane{lane: newRawLane(id, t, nil), busy: make(chan struct{})}
	d.lanes[id] = l
	d.idle++
	d.mu.Unlock()
	d.c.metrics.lane(laneRaw, 1)
	d.wake()
	if _, err := t.Write(s.raw.preamble(id)); err != nil {
		_ = t.Close() // the watch ends at once
	}
	data, err := l.plain.watch()
	if data {
		// Payload may overtake the header.
		timer := time.NewTimer(d.c.timing.dial)
		defer timer.Stop()
		select {
		case <-l.busy:
		case <-timer.C:
			err = errors.New("payload without a header")
		}
	}
	d.ended(ctx, l, err)
}

// ended forgets a lane that no stream took.
func (d *rawDialler) ended(ctx context.Context, l *rawLane, err error) {
	d.mu.Lock()
	if l.taken {
		d.pause, d.warned = 0, false
		d.mu.Unlock()
		return
	}
	if time.Since(l.since) >= d.c.timing.laneBackoff {
		d.pause = 0
	} else if ctx.Err() == nil && !d.stopped && d.lanes[l.id] == l {
		d.rest() // no lane after lane in a tight loop
		d.warn("the edge, or something before it, closes them", err)
	}
	d.mu.Unlock()
	d.drop(l)
	if ctx.Err() == nil && pathBroke(err) {
		d.c.pair.probe(nil)
	}
}

// rest pauses dialling, longer each time. The caller holds mu.
func (d *rawDialler) rest() {
	d.pause = min(time.Minute, max(d.c.timing.laneBackoff, 2*d.pause))
	d.until = time.Now().Add(d.pause)
}

func (d *rawDialler) connect(ctx context.Context, s *session, id uint64) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.c.timing.dial)
	defer cancel()
	target := s.target
	if s.qc != nil {
		targets, err := d.c.tcpTargets([]string{s.remote.String()})
		if err != nil {
			return nil, err
		}
		target = targets[0]
	}
	if target.proxy != nil {
		return nil, errors.New("the edge is reached through a proxy")
	}
	c, err := d.c.dialThrough(ctx, target)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("no TCP connection")
	}
	return t, nil
}

// open serves a stream that the edge opened on a raw lane.
func (d *rawDialler) open(s *session, m *wirev1.RawOpen) {
	h := m.GetHeader()
	if h == nil || h.Kind == wirev1.Kind_KIND_UDP {
		return
	}
	answer := func(a *wirev1.StreamAnswer) error {
		cur := d.c.pair.current()
		if cur == nil {
			return ErrLost
		}
		cur.send(&wirev1.Control{Message: &wirev1.Control_RawAnswer{RawAnswer: &wirev1.RawAnswer{StreamId: h.StreamId, Answer: a}}})
		return nil
	}
	d.mu.Lock()
	l := d.lanes[m.Lane]
	ok := l != nil && !l.taken
	if ok {
		l.taken = true
		d.idle--
		close(l.busy)
	}
	d.mu.Unlock()
	d.wake()
	if !ok {
		e := reason.New(reason.NoAgent, reason.HopAgent, "the raw lane of the stream is gone; try again").Safe()
		_ = answer(&wirev1.StreamAnswer{Refusal: e.Refusal()})
		return
	}
	p := d.c.pair
	st := newLaneStream(p, l.lane, func(*lane, bool) { d.drop(l) })
	st.answer = answer
	if !st.register(h.StreamId) {
		st.kill(ErrLost)
		return
	}
	p.goFunc(func() { serveHeader(context.Background(), p, st, h, d.c.cfg.Handler) })
}

// drop forgets and closes a lane.
func (d *rawDialler) drop(l *rawLane) {
	d.mu.Lock()
	known := d.lanes[l.id] == l
	if known {
		delete(d.lanes, l.id)
		if !l.taken {
			d.idle--
		}
	}
	d.mu.Unlock()
	if known {
		d.c.metrics.lane(laneRaw, -1)
	}
	l.destroy(false)
	d.wake()
}

// destroy closes the idle lanes, and those that streams ride if all is set.
func (d *rawDialler) destroy(all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.lanes {
		if all || !l.taken {
			l.lane.destroy(l.taken)
		}
	}
}
