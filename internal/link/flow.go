package link

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// Limits of flows.
const (
	// flowQueueLen and flowQueueBytes bound what waits in front of the carrier for one flow: a
	// burst of 500 datagrams fits.
	flowQueueLen   = 1024
	flowQueueBytes = 8 << 20
	// flowSetBytes bounds what waits for all flows of a replica.
	flowSetBytes = 64 << 20
	// flowStreamWait is how long a datagram waits for a stream.
	flowStreamWait = 5 * time.Second
	// flowStreamEnd is how long a stream may take to end cleanly before it is aborted.
	flowStreamEnd = 5 * time.Second
)

// flowCarrier is what a session lends to flows.
type flowCarrier interface {
	// datagrams reports whether the carrier has datagrams; on one without, a flow takes a stream.
	datagrams() bool
	// sendDatagram sends b, which it does not keep, and may block while the carrier is busy. For a
	// b that does not fit the error is a *quic.DatagramTooLargeError; any other means that the
	// session is over.
	sendDatagram(b []byte) error
	// sendNow queues a datagram, given in two pieces, on the short way beside the carrier; it does not
	// block. False where there is none or the datagram does not fit: sendDatagram then.
	sendNow(head, payload []byte) bool
	// flush sends what sendNow queued.
	flush()
	// sendControl queues m for the control stream; it does not block.
	sendControl(m *wirev1.Control)
}

// flowSet is what edge and agent share of the flows between one replica and one edge. It lives
// as long as their pair, so flows survive a change of session.
type flowSet struct {
	dropped *prometheus.CounterVec
	log     *slog.Logger
	// current is the session for what is sent now, nil if there is none.
	current func() flowCarrier
	// goFunc runs a goroutine that the end of the pair waits for.
	goFunc func(func())
	// find returns the flow that d, which arrived on c, is for; nil if there is none.
	find func(c flowCarrier, d *wire.Datagram) *flow
	// stream returns a stream for the datagrams of f that need one.
	stream func(f *flow) (Stream, error)
	// ended is told of flows that are gone, if set. The caller holds mu.
	ended func(f *flow)

	parts  partTable
	told   recently
	queued atomic.Int64

	mu     sync.Mutex
	flows  map[uint32]*flow
	closed bool
}

func (s *flowSet) drop(reason string, n int) {
	if n > 0 {
		s.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

func (s *flowSet) lookup(id uint32) *flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id]
}

// count is the number of flows.
func (s *flowSet) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.flows))
}

// close ends all flows and refuses new ones.
func (s *flowSet) close() {
	s.mu.Lock()
	s.closed = true
	all := slices.Collect(maps.Values(s.flows))
	s.mu.Unlock()
	for _, f := range all {
		f.end(nil)
	}
}

// add makes f known; false when the set is closed or f has ended already.
func (s *flowSet) add(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || f.ctx.Err() != nil {
		return false
	}
	s.flows[f.id.Load()] = f
	return true
}

func (s *flowSet) remove(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := f.id.Load(); s.flows[id] == f {
		delete(s.flows, id)
		if s.ended != nil {
			s.ended(f)
		}
	}
}

// receiveDatagram takes a datagram that arrived on c; b is valid during the call only. It returns
// the flow that got it, whose batchEnd is due; nil if none did.
func (s *flowSet) receiveDatagram(c flowCarrier, b []byte) *flow {
	d, err := wire.ParseDatagram(b)
	if err == nil && d.Type == wire.DatagramPart {
		whole := s.parts.add(&d)
		if whole == nil {
			return nil
		}
		if d, err = wire.ParseDatagram(whole); d.Type == wire.DatagramPart {
			err = wire.ErrDatagram
		}
	}
	if err != nil {
		s.drop(dropMalformed, 1)
		return nil
	}
	f := s.find(c, &d)
	if f == nil {
		s.drop(dropFlowUnknown, 1)
		return nil
	}
	f.deliver(d.Sequence, d.Payload)
	return f
}

// tell sends m about the flow id on c, unless it was sent a moment ago.
func (s *flowSet) tell(c flowCarrier, id uint32, m *wirev1.Control) {
	if c != nil && s.told.add(id) {
		c.sendControl(m)
	}
}

// flow is one side of a flow.
type flow struct {
	set *flowSet
	// id changes only when the agent adopts the flow for a new number.
	id     atomic.Uint32
	ctx    context.Context
	cancel context.CancelFunc
	header *wirev1.StreamHeader
	// announce is the encoded header, at the edge, which goes with every datagram until acked.
	announce []byte
	acked    atomic.Bool
	receive  func(b []byte)
	refusal  atomic.Pointer[reason.Error]

	// deliverMu orders deliveries: a flow may arrive on two carriers and a stream at once.
	deliverMu  sync.Mutex
	seen       sequenceWindow
	afterBatch func()

	// Of the drain goroutine, of which there is one at a time; of who holds mu while there is none.
	sequence, part uint16
	scratch        []byte

	// streamReady wakes who waits for a stream; openMu lets one open it.
	streamReady chan struct{}
	openMu      sync.Mutex
	// writeMu orders writes to a stream and the end of them.
	writeMu sync.Mutex

	mu       sync.Mutex
	queue    flowQueue
	draining bool
	// unflushed has what sendNow queued.
	unflushed flowCarrier
	closed    bool
	carried   Stream
	// carriedOn is the session that carried was opened on; nil at the agent.
	carriedOn flowCarrier
}

func (s *flowSet) newFlow(id uint32, h *wirev1.StreamHeader) *flow {
	f := &flow{set: s, header: h, streamReady: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.id.Store(id)
	return f
}

// Done is closed when the flow ended.
func (f *flow) Done() <-chan struct{} { return f.ctx.Done() }

// Refusal is why the agent refused the flow, if it did.
func (f *flow) Refusal() *reason.Error { return f.refusal.Load() }

// Send sends one datagram.
func (f *flow) Send(b []byte) error {
	err := f.Queue(b)
	f.Flush()
	return err
}

// Queue is Send for one of several datagrams.
func (f *flow) Queue(b []byte) error {
	if len(b) > wire.MaxPayload {
		f.set.drop(dropTooLarge, 1)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return net.ErrClosed
	case !f.draining && f.sendNow(b):
		return nil
	case f.queue.len() >= flowQueueLen || f.queue.bytes+len(b) > flowQueueBytes:
		f.set.drop(dropQueueFull, 1)
		return nil
	case f.set.queued.Load()+int64(len(b)) > flowSetBytes:
		f.set.drop(dropMemory, 1)
		return nil
	}
	if !f.draining {
		f.draining = true
		f.set.goFunc(f.drain)
	}
	f.set.queued.Add(int64(len(b)))
	f.queue.push(b)
	return nil
}

// Flush sends what Queue left waiting.
func (f *flow) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unflushed != nil {
		f.unflushed.flush()
		f.unflushed = nil
	}
}

// AfterBatch makes done follow the last of the datagrams that were received together.
func (f *flow) AfterBatch(done func()) {
	f.deliverMu.Lock()
	defer f.deliverMu.Unlock()
	f.afterBatch = done
}

func (f *flow) batchEnd() {
	f.deliverMu.Lock()
	done := f.afterBatch
	f.deliverMu.Unlock()
	if done != nil {
		done()
	}
}

// sendNow sends a datagram on the session's short way, from the caller's goroutine. The caller
// holds mu, and nothing is queued.
func (f *flow) sendNow(b []byte) bool {
	c := f.set.current()
	if c == nil || !c.datagrams() || f.carried != nil && f.carriedOn != nil && f.carriedOn != c {
		return false
	}
	if f.unflushed != nil && f.unflushed != c {
		f.unflushed.flush()
	}
	d := wire.Datagram{Type: wire.DatagramData, Flow: f.id.Load(), Sequence: f.sequence}
	if f.announce != nil && !f.acked.Load() {
		d.Type, d.Header = wire.DatagramOpen, f.announce
	}
	var err error
	if f.scratch, err = d.Append(f.scratch[:0]); err != nil || !c.sendNow(f.scratch, b) {
		return false
	}
	f.sequence++
	f.unflushed = c
	return true
}

// Close ends the flow on both sides.
func (f *flow) Close() error {
	f.Flush()
	if f.end(nil) {
		if c := f.set.current(); c != nil {
			c.sendControl(endOf(f.id.Load(), nil))
		}
	}
	return nil
}

func endOf(id uint32, refusal *reason.Error) *wirev1.Control {
	e := &wirev1.FlowEnd{Flow: id}
	if refusal != nil {
		e.Refusal = refusal.Refusal()
	}
	return &wirev1.Control{Message: &wirev1.Control_FlowEnd{FlowEnd: e}}
}

// end ends this side; false if it had ended before.
func (f *flow) end(refusal *reason.Error) bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	f.closed = true
	if refusal != nil {
		f.refusal.Store(refusal)
	}
	st := f.carried
	f.carried = nil
	n, size := f.queue.clear()
	f.mu.Unlock()

	f.set.queued.Add(-int64(size))
	f.set.drop(dropFlowEnded, n)
	f.cancel()
	if f.deliverMu.TryLock() { // Else a delivery is under way, perhaps the caller's: it counts.
		f.set.drop(dropLost, f.seen.flush())
		f.deliverMu.Unlock()
	}
	f.set.remove(f)
	f.endStream(st)
	return true
}

// deliver hands a payload that arrived to the receiver.
func (f *flow) deliver(sequence uint16, payload []byte) {
	f.deliverMu.Lock()
	defer f.deliverMu.Unlock()
	if f.ctx.Err() != nil {
		f.set.drop(dropFlowEnded, 1)
		return
	}
	f.set.drop(dropLost, f.seen.mark(sequence))
	f.receive(payload)
	if f.ctx.Err() != nil {
		f.set.drop(dropLost, f.seen.flush())
	}
}

// forgetSequence starts the count anew: the other side lost the flow and starts from 0.
func (f *flow) forgetSequence() {
	f.deliverMu.Lock()
	defer f.deliverMu.Unlock()
	f.set.drop(dropLost, f.seen.flush())
	f.seen = sequenceWindow{}
}

// drain sends what is queued and ends when nothing is: an idle flow costs no goroutine.
func (f *flow) drain() {
	for {
		f.mu.Lock()
		buf := f.queue.pop()
		if buf == nil {
			f.draining = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		f.set.queued.Add(-int64(len(buf) - flowHeadroom))
		f.transmit(buf)
		putDatagram(buf)
	}
}

// transmit sends one queued datagram over the carrier of the moment.
func (f *flow) transmit(buf []byte) {
	sequence := f.sequence
	f.sequence++
	drop := dropNoSession
	var tried flowCarrier
	// A second try is for a session or lane that turns out to be gone, a third for the next.
	for range 3 {
		c := f.set.current()
		if c == nil || c == tried {
			break
		}
		var err error
		if c.datagrams() {
			err = f.asDatagram(c, sequence, buf)
		} else {
			err = f.onStream(c, sequence, buf)
		}
		if err == nil {
			return
		}
		if f.ctx.Err() != nil {
			drop = dropFlowEnded
			break
		}
		if errors.Is(err, errNoStream) {
			drop = dropNoStream
			break
		}
		if !errors.Is(err, errStreamLost) {
			tried = c
		}
		drop = dropSessionLost
	}
	f.set.drop(drop, 1)
}

var (
	errNoStream   = errors.New("no stream for the flow")
	errStreamLost = errors.New("the flow's stream is gone")
)

// asDatagram sends a datagram as one or, if it does not fit, in parts or on a stream.
func (f *flow) asDatagram(c flowCarrier, sequence uint16, buf []byte) error {
	f.releaseStream(c)
	encoded := encodeInPlace(buf, f.id.Load(), sequence)
	if f.announce != nil && !f.acked.Load() {
		d := wire.Datagram{Type: wire.DatagramOpen, Flow: f.id.Load(), Sequence: sequence,
			Header: f.announce, Payload: buf[flowHeadroom:]}
		var err error
		if f.scratch, err = d.Append(f.scratch[:0]); err != nil {
			return err
		}
		encoded = f.scratch
	}
	if c.sendNow(encoded, nil) {
		c.flush()
		return nil
	}
	err := c.sendDatagram(encoded)
	var large *quic.DatagramTooLargeError
	if !errors.As(err, &large) {
		return err
	}
	piece := int(large.MaxDatagramPayloadSize) - wire.MaxPartOverhead
	if piece <= 0 || len(encoded) > piece*wire.MaxParts {
		return f.onStream(c, sequence, buf)
	}
	if err := f.inParts(c, encoded, piece); errors.As(err, &large) {
		// The path's packets have just become smaller.
		return f.onStream(c, sequence, buf)
	} else if err != nil {
		return err
	}
	return nil
}

func (f *flow) inParts(c flowCarrier, encoded []byte, piece int) error {
	count := (len(encoded) + piece - 1) / piece
	piece = (len(encoded) + count - 1) / count
	id := f.part
	f.part++
	var out []byte
	for i := range count {
		d := wire.Datagram{Type: wire.DatagramPart, Flow: f.id.Load(), Sequence: id,
			Index: uint8(i), Count: uint8(count), Payload: encoded[i*piece : min((i+1)*piece, len(encoded))]}
		var err error
		if out, err = d.Append(out[:0]); err != nil {
			return err
		}
		if err := c.sendDatagram(out); err != nil {
			return err
		}
	}
	return nil
}
