package link

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"syscall"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

const (
	// lanesAtOnce is how many lanes are dialled at a time.
	lanesAtOnce = 16
	// laneRefusals is after how many answers of a wrong edge lanes are given up beside QUIC.
	laneRefusals = 3
)

// laneDialler is the agent's side of the lanes: it holds as many as the edge asks for.
type laneDialler struct {
	c    *Connector
	hard int // configuration and descriptors
	kick chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	want     int
	limit    int // hard, or less after failed dials
	dialling int
	lanes    map[*lane]bool // true while a stream rides it
	nextID   uint64
	pause    time.Duration
	until    time.Time // no dial before
	wrong    int       // answers of a wrong edge in a row
	stopped  bool
	alone    time.Time // when the last session ended; zero while one is up
}

func newLaneDialler(c *Connector) *laneDialler {
	d := &laneDialler{c: c, kick: make(chan struct{}, 1), lanes: map[*lane]bool{}}
	d.hard = lanesAlone
	if c.cfg.MaxLanes > 0 {
		d.hard = c.cfg.MaxLanes
	}
	d.hard = min(d.hard, max(1, descriptorLimit()/4))
	d.limit = d.hard
	return d
}

func (d *laneDialler) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (d *laneDialler) setWant(n int) {
	d.mu.Lock()
	d.want = n
	d.mu.Unlock()
	d.wake()
}

// sessions notes whether a session is up: lanes outlive the last one for a while only.
func (d *laneDialler) sessions(up bool) {
	d.mu.Lock()
	switch {
	case up:
		d.alone = time.Time{}
	case d.alone.IsZero():
		d.alone = time.Now()
	}
	d.mu.Unlock()
	d.wake()
}

// sendLimit tells the edge how many lanes there can be.
func (d *laneDialler) sendLimit(s *session) {
	d.mu.Lock()
	n := d.limit
	d.mu.Unlock()
	if s != nil {
		s.send(&wirev1.Control{Message: &wirev1.Control_LaneLimit{LaneLimit: &wirev1.LaneLimit{Lanes: uint32(n)}}})
	}
}

func (d *laneDialler) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.lanes)
}

// run dials until ctx ends, then closes all lanes and waits.
func (d *laneDialler) run(ctx context.Context) {
	for ctx.Err() == nil {
		d.mu.Lock()
		pause := time.Until(d.until)
		need := min(d.want, d.limit) - len(d.lanes) - d.dialling
		ready := pause <= 0 && need > 0 && d.dialling < lanesAtOnce
		s := d.c.pair.current()
		raised := pause <= 0 && d.limit < d.hard && s != nil && !d.until.IsZero()
		if raised {
			// After a pause one more may be tried; its success lifts the limit further.
			d.limit, d.until = d.limit+1, time.Time{}
		}
		if ready && s != nil {
			d.dialling++
			d.nextID++
			id := d.nextID
			d.wg.Add(1)
			go func() { defer d.wg.Done(); d.dial(ctx, s, id) }()
		}
		waits := pause > 0 && (need > 0 || d.limit < d.hard)
		d.mu.Unlock()
		if raised {
			d.sendLimit(s)
		}
		if ready && s != nil || raised {
			continue
		}
		var timer <-chan time.Time
		if waits {
			timer = time.After(pause)
		}
		if left := d.grace(); left > 0 && (timer == nil || left < pause) {
			timer = time.After(left)
		}
		select {
		case <-ctx.Done():
		case <-d.kick:
		case <-timer:
		}
	}
	d.mu.Lock()
	d.stopped = true
	d.destroyAll()
	d.mu.Unlock()
	d.wg.Wait()
}

// destroyAll closes all lanes. The caller holds mu.
func (d *laneDialler) destroyAll() {
	for l := range d.lanes {
		l.destroy(true)
	}
}

// grace is how much longer lanes live without a session; when it is over they are closed.
func (d *laneDialler) grace() time.Duration {
	up := d.c.pair.current() != nil
	d.mu.Lock()
	defer d.mu.Unlock()
	if up {
		d.alone = time.Time{}
	}
	if d.alone.IsZero() || len(d.lanes)+d.c.raw.count() == 0 {
		return 0
	}
	left := d.c.timing.laneGrace - time.Since(d.alone)
	if left <= 0 {
		d.destroyAll()
		d.c.raw.destroy(true)
		return 0
	}
	return left
}

// dial makes one lane.
func (d *laneDialler) dial(ctx context.Context, s *session, id uint64) {
	l, err := d.open(ctx, s, id)
	d.mu.Lock()
	d.dialling--
	if err != nil {
		if ctx.Err() == nil {
			d.failed(s, err)
		}
		d.mu.Unlock()
		d.wake()
		return
	}
	if d.stopped {
		d.mu.Unlock()
		l.destroy(false)
		return
	}
	raised := d.limit < d.hard
	d.limit = min(d.hard, max(1, d.limit)*2)
	d.pause, d.until, d.wrong = 0, time.Time{}, 0
	d.lanes[l] = false
	d.mu.Unlock()
	d.c.metrics.lane(laneTLS, 1)
	if raised {
		d.sendLimit(d.c.pair.current())
	}
	d.wake()
	// The stack of the dial is larger than waiting needs.
	d.wg.Go(func() { d.keep(ctx, l) })
}

// keep has the streams of l served until it ends.
func (d *laneDialler) keep(ctx context.Context, l *lane) {
	served, err := d.serve(l)
	l.destroy(false)
	d.forget(l)
	d.mu.Lock()
	if served == 0 && time.Since(l.since) < d.c.timing.laneBackoff && ctx.Err() == nil {
		d.rest() // no lane after lane in a tight loop
	}
	d.mu.Unlock()
	d.wake()
	if err != nil && ctx.Err() == nil {
		d.c.log.Debug("lane ended", "lane", l.id, "error", err)
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT) {
			d.c.pair.probe(nil)
		}
	}
}

// rest pauses dialling, longer each time. The caller holds mu.
func (d *laneDialler) rest() {
	d.pause = min(time.Minute, max(d.c.timing.laneBackoff, 2*d.pause))
	d.until = time.Now().Add(d.pause)
}

// failed lowers the limit and pauses. The caller holds mu.
func (d *laneDialler) failed(s *session, err error) {
	d.rest()
	d.c.log.Debug("lane not dialled", "error", err, "retry_in", d.pause)
	limit := max(1, min(d.limit, len(d.lanes)))
	if reason.Is(err, reason.WrongEdge) || errors.Is(err, errWrongPin) {
		if d.wrong++; d.wrong >= laneRefusals && s.qc != nil {
			limit = 0
			d.c.log.Warn("lanes reach another edge than the session does; streams stay on QUIC. Give each edge an address that reaches only that edge", "error", err)
			d.pause = 10 * time.Minute
			d.until = time.Now().Add(d.pause)
		}
	}
	if limit != d.limit {
		d.limit = limit
		s.send(&wirev1.Control{Message: &wirev1.Control_LaneLimit{LaneLimit: &wirev1.LaneLimit{Lanes: uint32(limit)}}})
	}
}

// open dials one lane the way the session went.
func (d *laneDialler) open(ctx context.Context, s *session, id uint64) (*lane, error) {
	ctx, cancel := context.WithTimeout(ctx, d.c.timing.dial)
	defer cancel()
	carrier, target := s.carrier, s.target
	if s.qc != nil {
		carrier = CarrierTLS
		targets, err := d.c.tcpTargets([]string{s.remote.String()})
		if err != nil {
			return nil, err
		}
		target = targets[0]
	}
	b, err := d.c.dialTCP(ctx, target, carrier)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { b.close(ctx.Err()) })
	defer stop()
	if _, err := d.c.cfg.Dialler.Open(ctx, b.ctl, b.cs, &wirev1.Opening{Lane: &wirev1.Lane{Id: id}}); err != nil {
		b.close(err)
		return nil, err
	}
	tc, ok := b.ctl.(*tls.Conn)
	if !ok {
		b.close(nil)
		return nil, errors.New("a lane needs TLS")
	}
	return newLane(id, tc), nil
}

// forget takes a lane that ended out of the books, so that another one may be dialled.
func (d *laneDialler) forget(l *lane) {
	d.mu.Lock()
	_, known := d.lanes[l]
	delete(d.lanes, l)
	d.mu.Unlock()
	if known {
		d.c.metrics.lane(laneTLS, -1)
		d.wake()
	}
}

// serve serves the streams that come over l, one after the other, and counts them.
func (d *laneDialler) serve(l *lane) (served int, err error) {
	p := d.c.pair
	for ; ; served++ {
		// While idle this read is the sentinel that notices the end of the lane.
		if err := l.readHeader(); err != nil {
			return served, err
		}
		if l.rem == 0 {
			return served, errors.New("an empty frame on an idle lane")
		}
		free := make(chan bool, 1)
		st := newLaneStream(p, l, func(l *lane, clean bool) {
			if !clean {
				d.forget(l) // its handler may take a while yet
			}
			free <- clean
		})
		_ = st.SetReadDeadline(time.Now().Add(p.timing.dial))
		h, err := wire.ReadHeader(st)
		if err != nil {
			st.kill(ErrLost)
			return served, err
		}
		_ = st.SetReadDeadline(time.Time{})
		if !st.register(h.StreamId) {
			st.kill(ErrLost)
			return served, ErrLost
		}
		d.busy(l, true)
		// On this goroutine: the lane carries nothing else until the stream has left it.
		serveHeader(context.Background(), p, st, h, d.c.cfg.Handler)
		clean := <-free
		d.busy(l, false)
		if !clean {
			return served + 1, nil
		}
	}
}

func (d *laneDialler) busy(l *lane, on bool) {
	d.mu.Lock()
	if _, ok := d.lanes[l]; ok {
		d.lanes[l] = on
	}
	d.mu.Unlock()
}

// dropIdle closes the idle lanes: the path they were dialled on is believed dead.
func (d *laneDialler) dropIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l, busy := range d.lanes {
		if !busy {
			l.destroy(false)
		}
	}
}
