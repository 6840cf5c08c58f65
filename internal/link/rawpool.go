package link

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// rawIdleMax bounds idle raw lanes of a replica.
	rawIdleMax = 128
	// rawIdleMin are kept once a tunnel asked, since a burst that finds none takes TLS lanes or QUIC.
	rawIdleMin = 16
	// rawSlot is how long the streams count together that find no time to dial new lanes between
	// them.
	rawSlot = 250 * time.Millisecond
)

// rawPool is the edge's side of a replica's raw lanes. Each carries one stream.
type rawPool struct {
	r *Replica
	// asked is how many idle ones the agent was asked for.
	asked atomic.Int32

	mu     sync.Mutex
	all    map[*lane]struct{}
	idle   []*lane
	demand demand
	used   bool      // a tunnel asks for raw lanes
	slot   time.Time // begin of the current slot
	slotN  int       // streams in it
	// budget is how many may be used at once now, as of budgetAt.
	budget   float64
	budgetAt time.Time
	closed   bool
}

func newRawPool(r *Replica) *rawPool {
	t := r.acceptor.timing
	return &rawPool{r: r, all: map[*lane]struct{}{}, demand: demand{window: t.laneShrink}, budget: float64(t.rawRate), budgetAt: time.Now()}
}

// take returns an idle lane, nil if there is none or too many were used of late.
func (p *rawPool) take() *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, rate := time.Now(), float64(p.r.pair.timing.rawRate)
	p.used = true
	if now.Sub(p.slot) > rawSlot {
		p.slot, p.slotN = now, 0
	}
	p.slotN++
	p.demand.note(p.slotN, now)
	p.tell(now)
	p.budget = min(rate, p.budget+now.Sub(p.budgetAt).Seconds()*rate)
	p.budgetAt = now
	n := len(p.idle)
	if n == 0 || p.budget < 1 {
		return nil
	}
	p.budget--
	l := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return l
}

// target is how many idle lanes are wanted. The caller holds mu.
func (p *rawPool) target(now time.Time) int {
	if !p.used || p.closed || !canWaitReadable {
		return 0
	}
	return max(rawIdleMin, p.demand.target(rawIdleMax, now))
}

// tell sends the demand if it changed. The caller holds mu.
func (p *rawPool) tell(now time.Time) {
	if n := int32(p.target(now)); p.asked.Swap(n) != n {
		p.r.lanes.retell()
	}
}

// join takes a lane that the agent dialled; false when there are enough.
func (p *rawPool) join(l *lane) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= rawIdleMax || len(p.all) >= lanesAlone {
		return false
	}
	p.all[l] = struct{}{}
	p.idle = append(p.idle, l)
	p.r.pair.metrics.lane(laneRaw, 1)
	p.r.pair.goFunc(func() { p.watch(l) })
	return true
}

// watch notices the end of an idle lane: nothing else may come before it is taken.
func (p *rawPool) watch(l *lane) {
	_, err := l.plain.watch()
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
	if !closed && pathBroke(err) {
		p.r.pair.probe(nil)
	}
}

// pathBroke reports an error that the path or a lost peer makes.
func pathBroke(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT)
}

// drop forgets and closes a lane.
func (p *rawPool) drop(l *lane) {
	p.mu.Lock()
	_, ok := p.all[l]
	delete(p.all, l)
	p.mu.Unlock()
	if ok {
		p.r.pair.metrics.lane(laneRaw, -1)
	}
	l.destroy(false)
}

// tend retires idle lanes above the target, the longest idle first.
func (p *rawPool) tend(now time.Time) {
	p.mu.Lock()
	p.tell(now)
	n := max(0, len(p.idle)-p.target(now))
	retired := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.mu.Unlock()
	for _, l := range retired {
		p.drop(l)
	}
}

// dropIdle closes the idle lanes.
func (p *rawPool) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, l := range idle {
		p.drop(l)
	}
}

func (p *rawPool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.dropIdle()
}

// openRaw opens a stream on an idle raw lane; nil, nil when there is none.
func (r *Replica) openRaw(ctx context.Context, h *wirev1.StreamHeader, first []byte) (Outgoing, error) {
	for {
		s := r.pair.current()
		if s == nil {
			return nil, nil
		}
		l := r.raw.take()
		if l == nil {
			return nil, nil
		}
		st := newLaneStream(r.pair, l, func(l *lane, _ bool) { r.raw.drop(l) })
		if !st.register(h.StreamId) {
			st.kill(ErrLost)
			return nil, r.openError(ErrLost, "the edge closes").Safe()
		}
		stop := context.AfterFunc(ctx, func() { _ = st.SetWriteDeadline(time.Unix(1, 0)) })
		_, err := st.Write(first)
		if !stop() {
			st.kill(net.ErrClosed)
			return nil, r.openError(ctx.Err(), "cancelled while the stream was opened").Safe()
		}
		if err != nil {
			st.kill(ErrLost) // without a header nothing of it went further
			continue
		}
		// The session that carries the header must live until the answer has come.
		s.streams.Add(1)
		lost := context.AfterFunc(s.ctx, func() { st.kill(ErrLost) })
		l.plain.answer.then(func() {
			lost()
			s.streams.Add(-1)
		})
		s.send(&wirev1.Control{Message: &wirev1.Control_RawOpen{RawOpen: &wirev1.RawOpen{Lane: l.id, Header: h}}})
		return r.outgoing(st, h), nil
	}
}

// rawAnswered takes the agent's answer to a stream on a raw lane.
func (r *Replica) rawAnswered(m *wirev1.RawAnswer) {
	r.pair.mu.Lock()
	st := r.pair.streams[m.GetStreamId()]
	r.pair.mu.Unlock()
	if st == nil || st.lane.plain == nil {
		return
	}
	a := m.GetAnswer()
	if a == nil {
		a = &wirev1.StreamAnswer{}
	}
	if err := st.lane.plain.answer.deliver(a); err != nil {
		st.kill(ErrLost)
	}
}

// ServeRaw takes a TCP connection that does not begin with a TLS handshake: a raw lane, or nothing
// of ours. It returns when the connection has been handed over or closed.
func (a *Acceptor) ServeRaw(_ context.Context, c net.Conn) {
	remote := addrPort(c.RemoteAddr())
	leave, ok := a.enter(remote)
	if !ok {
		_ = c.Close()
		return
	}
	defer leave()
	stop := context.AfterFunc(a.ctx, func() { _ = c.Close() })
	defer stop()
	if err := a.acceptRaw(c); err != nil {
		a.metrics.refused.WithLabelValues(string(reason.ProofInvalid)).Inc()
		a.log.Debug("raw lane refused", "remote", remote, "error", err)
		_ = c.Close()
	}
}

func (a *Acceptor) acceptRaw(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(opening.Timeout))
	var b [preambleSize]byte
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return err
	}
	if b[0] != rawVersion {
		return errPreamble
	}
	if _, err := io.ReadFull(c, b[1:]); err != nil {
		return err
	}
	id, counter, err := parsePreamble(b[:])
	if err != nil {
		return err
	}
	a.mu.Lock()
	s := a.raw[id]
	a.mu.Unlock()
	if s == nil || !s.raw.admit(b[:], counter) {
		return errors.New("no session vouches for it, or it was used before")
	}
	if t, ok := c.(interface{ Take() []byte }); ok && len(t.Take()) > 0 {
		return errors.New("bytes before a stream was opened")
	}
	t := tcpConn(c)
	if t == nil {
		return errors.New("no TCP connection")
	}
	if err := t.SetDeadline(time.Time{}); err != nil {
		return err
	}
	r, ok := s.pair.owner.(*Replica)
	if !ok || !r.raw.join(newRawLane(counter, t, newAnswerBox())) {
		return errors.New("no place for it")
	}
	return nil
}

// forgetRaw ends what s vouches for.
func (a *Acceptor) forgetRaw(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.raw != nil {
		delete(a.raw, s.raw.id)
	}
}
