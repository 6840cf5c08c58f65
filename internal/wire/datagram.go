package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// DatagramType is the first byte of every datagram of a flow.
type DatagramType byte

// Types of datagrams.
const (
	// DatagramData carries a payload of a flow that the receiver knows.
	DatagramData DatagramType = 1
	// DatagramOpen carries the flow's header before the payload, until it is acknowledged.
	DatagramOpen DatagramType = 2
	// DatagramPart carries a piece of an encoded datagram of one of the types above.
	DatagramPart DatagramType = 3
)

// Limits of datagrams.
const (
	// MaxPayload is the largest UDP payload over IPv4.
	MaxPayload = 65507
	// MaxParts is into how many parts a datagram is cut at most.
	MaxParts = 4
	// MaxPartOverhead is what a part adds to the piece it carries, at most.
	MaxPartOverhead = 1 + binary.MaxVarintLen32 + 2 + 1
	// MaxDatagram is the largest encoded datagram without a header.
	MaxDatagram = 1 + binary.MaxVarintLen32 + 2 + MaxPayload
)

// ErrDatagram is wrapped by every error of ParseDatagram.
var ErrDatagram = errors.New("malformed datagram")

// Datagram is one datagram of a flow as it travels between edge and agent:
//
//	data: 1, varint flow, uint16 sequence, payload
//	open: 2, varint flow, uint16 sequence, uint16 length of the header, header, payload
//	part: 3, varint flow, uint16 id, byte (index << 4 | count), piece
type Datagram struct {
	Type DatagramType
	Flow uint32
	// Sequence counts the datagrams of a flow in one direction; of a part it is the id that the
	// parts of one datagram share.
	Sequence uint16
	// Header is the encoded StreamHeader of DatagramOpen, not decoded here.
	Header []byte
	// Index and Count place a part.
	Index, Count uint8
	// Payload is the visitor's or origin's bytes, or the piece of a part.
	Payload []byte
}

// Append appends d encoded. It fails for a header or payload over its limit only.
func (d *Datagram) Append(b []byte) ([]byte, error) {
	if len(d.Header) > MaxHeader {
		return b, fmt.Errorf("flow header of %d bytes, limit %d: %w", len(d.Header), MaxHeader, ErrTooLarge)
	}
	if len(d.Payload) > MaxPayload {
		return b, fmt.Errorf("datagram of %d bytes, limit %d: %w", len(d.Payload), MaxPayload, ErrTooLarge)
	}
	b = append(b, byte(d.Type))
	b = binary.AppendUvarint(b, uint64(d.Flow))
	b = binary.BigEndian.AppendUint16(b, d.Sequence)
	switch d.Type {
	case DatagramOpen:
		b = binary.BigEndian.AppendUint16(b, uint16(len(d.Header)))
		b = append(b, d.Header...)
	case DatagramPart:
		b = append(b, d.Index<<4|d.Count)
	}
	return append(b, d.Payload...), nil
}

// ParseDatagram decodes b. Header and Payload point into b.
func ParseDatagram(b []byte) (Datagram, error) {
	var d Datagram
	if len(b) == 0 {
		return d, fmt.Errorf("%w: empty", ErrDatagram)
	}
	d.Type = DatagramType(b[0])
	flow, n := binary.Uvarint(b[1:])
	if n <= 0 || flow > math.MaxUint32 || n > 1 && b[n] == 0 {
		return d, fmt.Errorf("%w: bad flow number", ErrDatagram)
	}
	d.Flow = uint32(flow)
	b = b[1+n:]
	if len(b) < 2 {
		return d, fmt.Errorf("%w: no sequence number", ErrDatagram)
	}
	d.Sequence = binary.BigEndian.Uint16(b)
	b = b[2:]
	switch d.Type {
	case DatagramData:
	case DatagramOpen:
		if len(b) < 2 {
			return d, fmt.Errorf("%w: no header length", ErrDatagram)
		}
		l := int(binary.BigEndian.Uint16(b))
		b = b[2:]
		if l > MaxHeader || l > len(b) {
			return d, fmt.Errorf("%w: header of %d bytes, have %d, limit %d", ErrDatagram, l, len(b), MaxHeader)
		}
		d.Header, b = b[:l:l], b[l:]
	case DatagramPart:
		if len(b) < 1 {
			return d, fmt.Errorf("%w: no part number", ErrDatagram)
		}
		d.Index, d.Count = b[0]>>4, b[0]&15
		b = b[1:]
		if d.Count < 2 || d.Count > MaxParts || d.Index >= d.Count {
			return d, fmt.Errorf("%w: part %d of %d", ErrDatagram, d.Index, d.Count)
		}
	default:
		return d, fmt.Errorf("%w: type %d is not known", ErrDatagram, d.Type)
	}
	if len(b) > MaxPayload {
		return d, fmt.Errorf("%w: payload of %d bytes, limit %d", ErrDatagram, len(b), MaxPayload)
	}
	d.Payload = b
	return d, nil
}
