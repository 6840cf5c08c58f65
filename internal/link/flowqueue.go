package link

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/wire"
)

// flowHeadroom is kept free in front of a queued payload, for the length on a stream and the
// datagram's own head, so that sending copies nothing.
const flowHeadroom = 2 + wire.MaxDatagram - wire.MaxPayload

// smallDatagram is the size of pooled buffers: what fits a packet.
const smallDatagram = 2048

var datagramPool = sync.Pool{New: func() any { return new([smallDatagram]byte) }}

// getDatagram returns a buffer of n bytes.
func getDatagram(n int) []byte {
	if n > smallDatagram {
		return make([]byte, n)
	}
	return datagramPool.Get().(*[smallDatagram]byte)[:n]
}

func putDatagram(b []byte) {
	if cap(b) == smallDatagram {
		datagramPool.Put((*[smallDatagram]byte)(b[:smallDatagram]))
	}
}

// encodeInPlace writes the head of a data datagram in front of the payload of a queued buffer
// and returns the whole.
func encodeInPlace(buf []byte, id uint32, sequence uint16) []byte {
	var head [flowHeadroom]byte
	head[0] = byte(wire.DatagramData)
	n := 1 + binary.PutUvarint(head[1:], uint64(id))
	binary.BigEndian.PutUint16(head[n:], sequence)
	n += 2
	start := flowHeadroom - n
	copy(buf[start:], head[:n])
	return buf[start:]
}

// flowQueue is a queue of payloads with headroom.
type flowQueue struct {
	items [][]byte
	head  int
	bytes int
}

func (q *flowQueue) len() int { return len(q.items) - q.head }

// push appends a copy of b.
func (q *flowQueue) push(b []byte) {
	buf := getDatagram(flowHeadroom + len(b))
	copy(buf[flowHeadroom:], b)
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, buf)
	q.bytes += len(b)
}

// pop takes the oldest; nil when there is none.
func (q *flowQueue) pop() []byte {
	if q.len() == 0 {
		return nil
	}
	buf := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	q.bytes -= len(buf) - flowHeadroom
	if q.len() == 0 {
		q.head = 0
		if cap(q.items) > 64 {
			q.items = nil // A burst is over: an idle flow keeps no room for the next.
		} else {
			q.items = q.items[:0]
		}
	}
	return buf
}

// clear empties the queue and returns how many datagrams and payload bytes it held.
func (q *flowQueue) clear() (n, size int) {
	n, size = q.len(), q.bytes
	for _, buf := range q.items[q.head:] {
		putDatagram(buf)
	}
	*q = flowQueue{}
	return n, size
}

// sequenceWindow counts datagrams that did not arrive. One that is more than 64 numbers late
// counts as lost.
type sequenceWindow struct {
	started bool
	high    uint16
	// seen has bit i set when high-i arrived.
	seen uint64
}

// mark notes that sequence arrived and returns how many are now known to be lost.
func (w *sequenceWindow) mark(sequence uint16) (lost int) {
	if !w.started {
		*w = sequenceWindow{started: true, high: sequence, seen: ^uint64(0)}
		return 0
	}
	ahead := int(int16(sequence - w.high))
	switch {
	case ahead >= 64:
		lost = 64 - bits.OnesCount64(w.seen) + ahead - 64
		w.seen, w.high = 1, sequence
	case ahead > 0:
		lost = ahead - bits.OnesCount64(w.seen>>(64-ahead))
		w.seen, w.high = w.seen<<ahead|1, sequence
	case ahead > -64:
		w.seen |= 1 << -ahead
	}
	return lost
}

// flush returns how many numbers below the highest never arrived, and does not count them again.
func (w *sequenceWindow) flush() (lost int) {
	if !w.started {
		return 0
	}
	lost = 64 - bits.OnesCount64(w.seen)
	w.seen = ^uint64(0)
	return lost
}

// partTable puts datagrams together that came in parts. It holds the newest partsHeld
// incomplete ones; a datagram that loses its place is lost, as its sequence number shows.
type partTable struct {
	mu   sync.Mutex
	m    map[partKey]*partial
	ring [partsHeld]partKey
	next int
}

const partsHeld = 256

type partKey struct {
	flow uint32
	id   uint16
}

type partial struct {
	pieces [wire.MaxParts][]byte
	count  uint8
	missing,
	size int
}

// add returns the whole datagram when d was its last missing part.
func (t *partTable) add(d *wire.Datagram) []byte {
	key := partKey{d.Flow, d.Sequence}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.m[key]
	if p == nil || p.count != d.Count {
		if t.m == nil {
			t.m = make(map[partKey]*partial)
		}
		if p == nil {
			delete(t.m, t.ring[t.next])
			t.ring[t.next] = key
			t.next = (t.next + 1) % partsHeld
		}
		p = &partial{count: d.Count, missing: int(d.Count)}
		t.m[key] = p
	}
	if p.pieces[d.Index] != nil {
		return nil
	}
	p.pieces[d.Index] = append(make([]byte, 0, len(d.Payload)), d.Payload...)
	p.size += len(d.Payload)
	if p.missing--; p.missing > 0 {
		return nil
	}
	delete(t.m, key)
	whole := make([]byte, 0, p.size)
	for _, piece := range p.pieces[:p.count] {
		whole = append(whole, piece...)
	}
	return whole
}

// recently remembers flow numbers for a moment, so that a burst of datagrams is answered once.
type recently struct {
	mu sync.Mutex
	m  map[uint32]time.Time
}

const (
	recentlyFor = 200 * time.Millisecond
	recentlyMax = 1024
)

// has reports whether id was added a moment ago.
func (r *recently) has(id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.m[id]
	return ok && time.Since(at) < recentlyFor
}

// add reports whether id was not there, and remembers it.
func (r *recently) add(id uint32) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.m[id]; ok && now.Sub(at) < recentlyFor {
		return false
	}
	if r.m == nil || len(r.m) >= recentlyMax {
		r.m = make(map[uint32]time.Time)
	}
	r.m[id] = now
	return true
}
