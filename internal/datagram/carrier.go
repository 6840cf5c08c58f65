package datagram

import (
	"encoding/binary"
	"sync"
)

// A packet with Mark in the upper six bits of its first byte is none of QUIC, which sets one of
// the upper two, and none of STUN, whose first byte is below 4. Eight bytes follow that tell whose
// it is.
const (
	Mark     = 0x2c
	markMask = 0xfc
	// HeadSize is the mark and the number of the receiver.
	HeadSize = 1 + 8
)

// Receiver takes the marked packets of a Carrier that have its number.
type Receiver interface {
	// Packet takes one packet, in the goroutine that reads for all: it must not wait. b is valid
	// during the call only, and may be changed.
	Packet(b []byte)
	// BatchEnd is called after the last of the packets that were there together.
	BatchEnd()
}

// Carrier is the UDP socket of a QUIC transport that carries marked packets beside it: given to
// the transport as its connection, it keeps the marked packets from it.
type Carrier struct {
	*Socket
	reading

	mu        sync.RWMutex
	receivers map[uint64]Receiver
}

// Register makes r the receiver of the packets with number id until Forget. A number is random:
// nobody else has it.
func (c *Carrier) Register(id uint64, r Receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receivers == nil {
		c.receivers = make(map[uint64]Receiver)
	}
	c.receivers[id] = r
}

// Forget undoes Register.
func (c *Carrier) Forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.receivers, id)
}

// receiver is whose the packet b is; nil where nobody has its number. marked tells that it is not
// one of QUIC.
func (c *Carrier) receiver(b []byte) (r Receiver, marked bool) {
	if len(b) == 0 || b[0]&markMask != Mark {
		return nil, false
	}
	if len(b) < HeadSize {
		return nil, true
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.receivers[binary.BigEndian.Uint64(b[1:])], true
}

// AppendHead appends the head of a packet to receiver id; kind is the lower two bits of the first
// byte.
func AppendHead(b []byte, kind byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, Mark|kind&^markMask), id)
}
