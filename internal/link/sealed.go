package link

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/adit-dev/adit/internal/datagram"
)

const (
	// sealedEvery is how often the way is asked for while datagrams are sent; sealedTrust is how
	// long it is taken without an answer.
	sealedEvery = 250 * time.Millisecond
	sealedTrust = 2 * time.Second
	// sealedLook is how often QUIC is asked anew for the size of the path's packets by what is too
	// large.
	sealedLook = 5 * time.Millisecond
)

// sealed is the short way for the datagrams of a QUIC session: sealed packets on the socket that
// the session's QUIC uses, between the same addresses. A datagram costs one encryption and a share
// of one system call, and none of QUIC's goroutines, acknowledgements and timers; its congestion
// control, which would hold up what mostly has its own, is left to pathGuard.
//
// A side takes the way only while the other one answers on it. Until then, for what is larger than
// the packets of the path, and where a middlebox passes nothing but QUIC, datagrams are QUIC's.
type sealed struct {
	carrier *datagram.Carrier
	now     func() time.Time
	// path tells where the other side is, and what fits a packet to it.
	path func() (to netip.AddrPort, room int)
	// from makes packets leave from the address that the session uses.
	from []byte
	drop func(reason string, n int)
	// deliver takes a datagram and returns the flow that got it; nil if none did.
	deliver func(b []byte) *flow

	// Of the goroutine that reads.
	in      unsealer
	arrived uint64
	touched []*flow

	mu    sync.Mutex
	out   sealer
	buf   []byte
	sent  uint64
	guard pathGuard
	to    netip.AddrPort
	room  int
	// asked is when the last question was sent, heard when the last answer came, looked when path
	// was.
	asked, heard, looked time.Time
}

// newSealed makes the way of one end of a session; agent tells which.
func newSealed(c *datagram.Carrier, cs tls.ConnectionState, agent bool, local net.Addr) (*sealed, error) {
	b, err := cs.ExportKeyingMaterial(sealedLabel, nil, sealedExport)
	if err != nil {
		return nil, err
	}
	one, two := b[:sealedExport/2], b[sealedExport/2:]
	if !agent {
		one, two = two, one
	}
	end := func(b []byte) (uint64, *sealKey, error) {
		key, err := newSealKey(cs.CipherSuite, 0, b[8:])
		return binary.BigEndian.Uint64(b), key, err
	}
	s := &sealed{carrier: c, now: steadyNow, from: c.ReplyFrom(addrPort(local).Addr())}
	if s.out.id, s.out.key, err = end(one); err != nil {
		return nil, err
	}
	s.in.id, s.in.key, err = end(two)
	return s, err
}

// sendNow queues a datagram, given in two pieces, for flush. It is false where the datagram must
// go by QUIC.
func (s *sealed) sendNow(head, payload []byte) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.asked) >= sealedEvery {
		s.ask(now)
	}
	size := len(head) + len(payload)
	if size > s.room && now.Sub(s.looked) >= sealedLook {
		s.look(now) // QUIC finds out what the path's packets hold while it carries what is too large.
	}
	if now.Sub(s.heard) > sealedTrust || size > s.room {
		return false
	}
	if !s.guard.allow(size+sealedExtra, now) {
		s.drop(dropPathFull, 1)
		return true
	}
	s.queue(sealedData, head, payload)
	return true
}

// look sees where the other side is, and what fits a packet to it. The caller holds mu.
func (s *sealed) look(now time.Time) {
	s.looked = now
	s.to, s.room = s.path()
}

// ask asks whether the other side gets sealed packets, and how much of what was sent. The caller
// holds mu.
func (s *sealed) ask(now time.Time) {
	s.asked = now
	s.look(now)
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], s.sent)
	binary.BigEndian.PutUint64(b[8:], uint64(now.UnixNano()))
	s.queue(sealedAsk, b[:], nil)
	s.flush()
}

// queue seals a packet. The caller holds mu.
func (s *sealed) queue(kind byte, one, two []byte) {
	var err error
	if s.buf, err = s.out.seal(s.buf[:0], kind, one, two); err != nil {
		s.drop(dropWriteFailed, 1)
		return
	}
	s.sent += uint64(len(s.buf))
	s.carrier.Queue(s.buf, s.from, s.to)
}

// flush sends what sendNow queued.
func (s *sealed) flush() {
	lost := s.carrier.Flush()
	s.drop(dropWriteFailed, lost.Refused+lost.Failed)
}

// Packet implements datagram.Receiver.
func (s *sealed) Packet(b []byte) {
	size := len(b)
	kind, text, err := s.in.open(b)
	if err != nil {
		s.drop(dropMalformed, 1)
		return
	}
	s.arrived += uint64(size)
	switch {
	case kind == sealedData:
		f := s.deliver(text)
		if n := len(s.touched); f != nil && (n == 0 || s.touched[n-1] != f) {
			s.touched = append(s.touched, f)
		}
	case kind == sealedAsk && len(text) == 16:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.look(s.now())
		s.queue(sealedAnswer, text, binary.BigEndian.AppendUint64(nil, s.arrived))
		s.flush()
	case kind == sealedAnswer && len(text) == 24:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard = s.now()
		s.guard.answered(binary.BigEndian.Uint64(text), binary.BigEndian.Uint64(text[16:]), time.Unix(0, int64(binary.BigEndian.Uint64(text[8:]))))
	default:
		s.drop(dropMalformed, 1)
	}
}

// BatchEnd implements datagram.Receiver.
func (s *sealed) BatchEnd() {
	for i, f := range s.touched {
		f.batchEnd()
		s.touched[i] = nil
	}
	s.touched = s.touched[:0]
}

func (s *sealed) start() { s.carrier.Register(s.in.id, s) }
func (s *sealed) end()   { s.carrier.Forget(s.in.id) }

// pathGuard keeps a flood from filling the path: others share it, and sealed packets have no
// congestion control of their own. As long as what is sent arrives there is no limit. Where a
// quarter is lost, no more is sent than arrived; without loss the limit rises again.
type pathGuard struct {
	// limit is in bytes per second; 0 = none.
	limit, tokens float64
	filled        time.Time

	sent, arrived uint64
	at            time.Time
}

const (
	// guardLeast is the lowest limit, guardMost the one above which there is none; bytes per second.
	guardLeast = 256 << 10
	guardMost  = 1 << 30
	// guardBurst is what may go at once, as time.
	guardBurst = 50 * time.Millisecond
	// guardSample is the least that tells anything, in bytes.
	guardSample = 32 << 10
)

// allow reports whether n bytes may be sent.
func (g *pathGuard) allow(n int, now time.Time) bool {
	if g.limit == 0 {
		return true
	}
	g.tokens = min(g.tokens+g.limit*now.Sub(g.filled).Seconds(), max(g.limit*guardBurst.Seconds(), 1<<16))
	g.filled = now
	if g.tokens < float64(n) {
		return false
	}
	g.tokens -= float64(n)
	return true
}

// answered takes what had been sent at a time, and how much of it has arrived.
func (g *pathGuard) answered(sent, arrived uint64, at time.Time) {
	if !at.After(g.at) || sent < g.sent || arrived < g.arrived {
		return // overtaken by a later answer
	}
	s, a, took := float64(sent-g.sent), float64(arrived-g.arrived), at.Sub(g.at).Seconds()
	first := g.at.IsZero()
	if !first && s < guardSample {
		return
	}
	g.sent, g.arrived, g.at = sent, arrived, at
	switch {
	case first:
	case a < 0.75*s:
		if g.limit == 0 {
			g.filled, g.tokens = at, 0
		}
		g.limit = max(a/took, guardLeast)
	case a > 0.95*s && g.limit > 0:
		if g.limit *= 1.25; g.limit > guardMost {
			g.limit = 0
		}
	}
}

// tooLarge fits no datagram; QUIC tells what would.
var tooLarge [1 << 16]byte

// shareSocket gives the session its short way for datagrams, where its socket can be shared.
func (s *session) shareSocket(c *datagram.Carrier, cs tls.ConnectionState, agent bool) error {
	if c == nil || !s.takesDatagrams {
		return nil
	}
	x, err := newSealed(c, cs, agent, s.local)
	if err != nil {
		return err
	}
	x.drop = func(reason string, n int) {
		if n > 0 {
			s.pair.metrics.dropped.WithLabelValues(reason).Add(float64(n))
		}
	}
	x.deliver = func(b []byte) *flow { return s.pair.flows.sealed(s, b) }
	x.path = func() (to netip.AddrPort, room int) {
		// QUIC leaves more for its own head and tag than a sealed packet adds.
		var large *quic.DatagramTooLargeError
		if errors.As(s.qc.SendDatagram(tooLarge[:]), &large) {
			room = int(large.MaxDatagramPayloadSize)
		}
		return addrPort(s.qc.RemoteAddr()), room
	}
	s.sealed = x
	return nil
}
