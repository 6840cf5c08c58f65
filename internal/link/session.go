package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/wire"
)

const (
	// controlQueue bounds control frames that wait for the network; more means the peer is stuck.
	controlQueue = 4096
	// pingPadding makes a ping large enough to earn a stateless reset.
	pingPadding = 64
)

// controlConn is the control connection of a session: a QUIC stream or a TLS connection.
type controlConn interface {
	io.ReadWriteCloser
	SetWriteDeadline(t time.Time) error
}

// session is one carrier connection of a pair, with its control frames, liveness, QUIC streams
// and datagrams.
type session struct {
	pair    *pair
	number  uint64
	carrier string
	local   net.Addr
	remote  net.Addr
	since   time.Time
	ctl     controlConn
	qc      *quic.Conn // nil on TCP carriers
	target  tcpTarget  // where the agent dials lanes
	raw     *rawKey    // vouches for raw lanes; nil = there are none
	// closeConn ends the connection below, at once.
	closeConn func(err error)

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when all goroutines ended

	out frameQueue
	// takesDatagrams: the carrier has datagrams at both ends.
	takesDatagrams bool
	pace           pacer
	sealed         *sealed // nil = there is none

	heard     atomic.Int64 // time of the last control frame by steadyNow, UnixNano
	rtt       atomic.Int64
	streams   atomic.Int64
	pingSent  atomic.Int64
	pings     atomic.Uint64 // number of the last ping
	pongs     atomic.Uint64 // number of the last ping that was answered
	probed    atomic.Uint64 // number of the last ping that was a probe
	replaced  atomic.Bool   // a better session took over
	peerDrain atomic.Bool   // the peer announced that it ends

	mu         sync.Mutex
	live       map[*quicStream]struct{}
	ended      bool
	probeAgain bool // a probe was asked for while one waited
}

// newSession describes a connection after its opening; qc is nil on TCP carriers.
func newSession(p *pair, number uint64, carrier string, ctl controlConn, qc *quic.Conn, local, remote net.Addr, closeConn func(error)) *session {
	s := &session{
		pair: p, number: number, carrier: carrier, ctl: ctl, qc: qc, local: local, remote: remote,
		closeConn: closeConn, since: time.Now(), done: make(chan struct{}),
		out: newFrameQueue(), live: map[*quicStream]struct{}{},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.heard.Store(steadyNow().UnixNano())
	s.takesDatagrams = takesDatagrams(qc)
	return s
}

// start runs the session until it ends; its pair must hold it already.
func (s *session) start() {
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.close(f())
		}()
	}
	if s.sealed != nil {
		s.sealed.start()
	}
	run(s.readControl)
	run(s.writeControl)
	run(s.watch)
	if s.qc != nil {
		run(s.acceptStreams)
		run(s.relieve)
		if s.takesDatagrams {
			run(s.readDatagrams)
		}
	}
	go func() {
		defer s.pair.done()
		<-s.ctx.Done()
		if s.sealed != nil {
			s.sealed.end()
		}
		s.closeConn(context.Cause(s.ctx))
		_ = s.ctl.Close()
		wg.Wait()
		s.abortStreams()
		s.pair.remove(s)
		s.pair.askLanes()
		close(s.done)
		s.pair.owner.ended(s)
	}()
}

// close ends the session with err as its cause; only the first call counts.
func (s *session) close(err error) {
	if err == nil {
		err = io.EOF
	}
	s.cancel(err)
}

// draining reports whether new streams should go elsewhere.
func (s *session) draining() bool { return s.replaced.Load() || s.peerDrain.Load() }

// send queues a control frame and never blocks: a peer that takes none for so long is dead.
func (s *session) send(m *wirev1.Control) {
	if !s.out.put(m) && s.ctx.Err() == nil {
		s.close(errors.New("the control connection is stuck"))
	}
}

func (s *session) readControl() error {
	for {
		m := &wirev1.Control{}
		if err := wire.ReadFrame(s.ctl, m, wire.MaxControl); err != nil {
			return fmt.Errorf("control connection: %w", err)
		}
		s.heard.Store(steadyNow().UnixNano())
		switch f := m.Message.(type) {
		case *wirev1.Control_Ping:
			s.send(&wirev1.Control{Message: &wirev1.Control_Pong{Pong: &wirev1.Pong{Nonce: f.Ping.Nonce, Padding: make([]byte, pingPadding)}}})
		case *wirev1.Control_Pong:
			s.ponged(f.Pong.Nonce)
		case *wirev1.Control_Abort:
			s.pair.aborted(f.Abort)
		case *wirev1.Control_FlowAck, *wirev1.Control_FlowUnknown, *wirev1.Control_FlowEnd, *wirev1.Control_FlowStream:
			s.pair.flows.control(s, m)
		case *wirev1.Control_Drain:
			s.peerDrain.Store(true)
			s.pair.owner.control(s, m)
		default:
			// Frames of a newer version are ignored, the protocol version says what must be known.
			s.pair.owner.control(s, m)
		}
	}
}

func (s *session) writeControl() error {
	for {
		select {
		case <-s.out.more:
		case <-s.ctx.Done():
			return nil
		}
		waiting := s.out.take()
		var buf []byte
		for i, m := range waiting {
			var err error
			if buf, err = wire.AppendFrame(buf, m, wire.MaxControl); err != nil {
				return err
			}
			if len(buf) < 16<<10 && i < len(waiting)-1 {
				continue
			}
			_ = s.ctl.SetWriteDeadline(time.Now().Add(s.pair.timing.dead))
			if _, err := s.ctl.Write(buf); err != nil {
				return fmt.Errorf("control connection: %w", err)
			}
			buf = buf[:0]
		}
	}
}

// ping asks for a sign of life; it returns the number of the pong that will be one.
func (s *session) ping() uint64 {
	s.pingSent.Store(steadyNow().UnixNano())
	n := s.pings.Add(1)
	s.send(&wirev1.Control{Message: &wirev1.Control_Ping{Ping: &wirev1.Ping{Nonce: n, Padding: make([]byte, pingPadding)}}})
	return n
}

// watch sends pings and notices a silent peer.
func (s *session) watch() error {
	t := s.pair.timing
	ticker := time.NewTicker(t.ping)
	defer ticker.Stop()
	s.ping()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-ticker.C:
		}
		if silent := steadyNow().Sub(time.Unix(0, s.heard.Load())); silent > t.dead-t.ping/2 {
			return fmt.Errorf("%w: nothing heard for %v", errDead, silent.Round(time.Millisecond))
		}
		s.pair.watchLanes(t.dead)
		s.ping()
	}
}

var errDead = errors.New("the other side is silent")

// probe closes the session unless it answers within the probe time. One that is asked for while
// another waits follows it as soon as that is answered: an answer may be older than the question.
func (s *session) probe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect() {
		s.probeAgain = true
		return
	}
	if s.ctx.Err() != nil {
		return
	}
	n := s.ping()
	s.probed.Store(n)
	s.judge(n)
}

// judge closes the session if the answer to probe n has not come in the probe time. While packets
// still come the answer is late, not missing: bulk and losses hold it up, and the limit on silence
// holds anyway.
func (s *session) judge(n uint64) {
	time.AfterFunc(s.pair.timing.probe/2, func() {
		half := s.received() // what was under way when the peer went has come by now
		time.AfterFunc(s.pair.timing.probe/2, func() {
			switch {
			case s.pongs.Load() >= n || s.ctx.Err() != nil:
			case s.received() > half:
				s.judge(n)
			default:
				s.close(fmt.Errorf("%w: no answer to a probe in %v", errDead, s.pair.timing.probe))
			}
		})
	})
}

// received counts the peer's packets; 0 on TCP carriers, whose control connection carries nothing
// that could hold an answer up.
func (s *session) received() uint64 {
	if s.qc == nil {
		return 0
	}
	return s.qc.ConnectionStats().PacketsReceived
}

// ponged takes the answer to a ping.
func (s *session) ponged(nonce uint64) {
	if nonce == s.pings.Load() {
		s.rtt.Store(steadyNow().UnixNano() - s.pingSent.Load())
	}
	s.pongs.Store(nonce)
	s.mu.Lock()
	again := s.probeAgain && !s.suspect()
	if again {
		s.probeAgain = false
	}
	s.mu.Unlock()
	if again {
		s.probe()
	}
}

// suspect reports whether a probe waits for its answer.
func (s *session) suspect() bool { return s.probed.Load() > s.pongs.Load() }

func (s *session) acceptStreams() error {
	for {
		qs, err := s.qc.AcceptStream(s.ctx)
		if err != nil {
			return err
		}
		st, err := s.newQUICStream(qs)
		if err != nil {
			return err
		}
		s.pair.owner.incoming(s, st)
	}
}

// openStream opens a QUIC stream without waiting for the peer.
func (s *session) openStream() (*quicStream, error) {
	qs, err := s.qc.OpenStream()
	if err != nil {
		return nil, err
	}
	return s.newQUICStream(qs)
}

func (s *session) newQUICStream(qs *quic.Stream) (*quicStream, error) {
	st := &quicStream{qs: qs, sess: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		qs.CancelRead(quicStreamAborted)
		qs.CancelWrite(quicStreamAborted)
		return nil, net.ErrClosed
	}
	s.live[st] = struct{}{}
	s.streams.Add(1)
	s.pair.active.Add(1)
	return st, nil
}

// release forgets a stream that ended.
func (s *session) release(st *quicStream) {
	s.mu.Lock()
	_, ok := s.live[st]
	delete(s.live, st)
	s.mu.Unlock()
	if !ok {
		return
	}
	s.pair.active.Add(-1)
	s.streams.Add(-1)
}

// relieve resets the longest-stalled streams when all stalled ones together hold too much. What
// is written and not read lies in the peer's memory, at most a stream's window.
func (s *session) relieve() error {
	t := time.NewTicker(s.pair.timing.tick)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-t.C:
			now := steadyNow()
			for _, st := range s.overStalled(now) {
				s.pair.log.Warn("stream reset: its reader stalled and stalled streams hold too much memory", "session", s.number, "stalled_for", now.Sub(time.Unix(0, st.blocked.Load())))
				s.pair.metrics.stalled.Inc()
				st.Abort()
			}
		}
	}
}

// overStalled lists the streams to reset so that the rest of the stalled ones is within bounds.
func (s *session) overStalled(now time.Time) []*quicStream {
	type stalled struct {
		st    *quicStream
		since int64
		held  int64
	}
	var all []stalled
	var total int64
	s.mu.Lock()
	for st := range s.live {
		since := st.blocked.Load()
		if since == 0 || now.Sub(time.Unix(0, since)) < s.pair.timing.stalled {
			continue
		}
		held := min(max(st.written.Load(), streamWindow), maxStreamWindow)
		all = append(all, stalled{st, since, held})
		total += held
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b stalled) int { return cmp.Compare(a.since, b.since) })
	var out []*quicStream
	for _, a := range all {
		if total <= s.pair.timing.stalledBytes {
			break
		}
		total -= a.held
		out = append(out, a.st)
	}
	return out
}

// abortStreams runs after the connection ended.
func (s *session) abortStreams() {
	s.mu.Lock()
	s.ended = true
	live := make([]*quicStream, 0, len(s.live))
	for st := range s.live {
		live = append(live, st)
	}
	s.mu.Unlock()
	for _, st := range live {
		st.peerGone()
	}
}

func (s *session) info() SessionInfo {
	i := SessionInfo{
		ID: s.number, Carrier: s.carrier, Path: "direct", Since: s.since,
		Remote: addrPort(s.remote), Draining: s.draining(),
		RTT: time.Duration(s.rtt.Load()), Streams: int(s.streams.Load()),
	}
	return i
}

func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	switch a := a.(type) {
	case *net.TCPAddr:
		return unmap(a.AddrPort())
	case *net.UDPAddr:
		return unmap(a.AddrPort())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return unmap(ap)
}

func unmap(ap netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()) }
