package proxy

import "encoding/binary"

// closeGoingAway is the WebSocket close code that the edge sends.
const closeGoingAway = 1001

// frames follows the frames of one direction of a WebSocket, whatever pieces they come in, just
// to know where a frame of our own may go: between two others. It looks at nothing else.
type frames struct {
	header [14]byte
	have   int    // bytes of the header seen
	left   uint64 // bytes of the payload to come
	closed bool   // a close frame began
}

// next takes a prefix of b, at least one byte: up to the end of the frame, or all of it. done
// says that a frame ended there.
func (f *frames) next(b []byte) (n int, done bool) {
	for f.left == 0 && n < len(b) {
		f.header[f.have] = b[n]
		f.have++
		n++
		if need := f.need(); f.have < need {
			continue
		}
		f.left = f.length()
		f.have = 0
		f.closed = f.closed || f.header[0]&0x0f == 8
		if f.left == 0 {
			return n, true
		}
	}
	take := min(f.left, uint64(len(b)-n))
	n += int(take)
	f.left -= take
	return n, take > 0 && f.left == 0
}

// between reports whether no frame has begun that has not ended.
func (f *frames) between() bool { return f.have == 0 && f.left == 0 }

// need is the length of the header, as far as it can be known yet.
func (f *frames) need() int {
	if f.have < 2 {
		return 2
	}
	n := 2
	switch f.header[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.header[1]&0x80 != 0 {
		n += 4
	}
	return n
}

func (f *frames) length() uint64 {
	switch n := f.header[1] & 0x7f; n {
	case 126:
		return uint64(binary.BigEndian.Uint16(f.header[2:]))
	case 127:
		// The highest bit must be 0; whoever sets it never sees the end of that frame.
		return binary.BigEndian.Uint64(f.header[2:])
	default:
		return uint64(n)
	}
}

// closeFrame is a close frame of a server.
func closeFrame(code uint16, text string) []byte {
	b := []byte{0x88, byte(2 + len(text)), byte(code >> 8), byte(code)}
	return append(b, text...)
}
