package link

import (
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// On a stream each encoded datagram follows its length in two bytes.

// onStream sends a queued datagram on the flow's stream.
func (f *flow) onStream(c flowCarrier, sequence uint16, buf []byte) error {
	f.releaseStream(c)
	st, err := f.set.stream(f)
	if err != nil {
		return err
	}
	encoded := encodeInPlace(buf, f.id.Load(), sequence)
	start := len(buf) - len(encoded) - 2
	binary.BigEndian.PutUint16(buf[start:], uint16(len(encoded)))
	f.writeMu.Lock()
	_, err = st.Write(buf[start:])
	f.writeMu.Unlock()
	if err != nil {
		f.forgetStream(st)
		st.Abort()
		return errStreamLost
	}
	return nil
}

// carriedBy is the flow's stream; nil if it has none.
func (f *flow) carriedBy() Stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.carried
}

// setStream makes st, opened on c (nil at the agent), the flow's stream and ends the one before;
// false if the flow has ended.
func (f *flow) setStream(st Stream, c flowCarrier) bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	old := f.carried
	f.carried, f.carriedOn = st, c
	f.mu.Unlock()
	f.endStream(old)
	select {
	case f.streamReady <- struct{}{}:
	default:
	}
	return true
}

func (f *flow) forgetStream(st Stream) {
	f.mu.Lock()
	if f.carried == st {
		f.carried, f.carriedOn = nil, nil
	}
	f.mu.Unlock()
}

// releaseStream gives back a stream of an older session than c, now that c carries the flow: a
// stream that was needed only for want of datagrams, or one that keeps its session alive. A lane
// outlives its session and goes on while c has no datagrams either.
func (f *flow) releaseStream(c flowCarrier) {
	f.mu.Lock()
	on := f.carriedOn
	if f.carried == nil || on == nil || on == c || !on.datagrams() && !c.datagrams() {
		f.mu.Unlock()
		return
	}
	st := f.carried
	f.carried, f.carriedOn = nil, nil
	f.mu.Unlock()
	f.endStream(st)
}

// endStream ends this side of st; its reader closes it once the other side has ended too.
func (f *flow) endStream(st Stream) {
	if st == nil {
		return
	}
	f.set.goFunc(func() {
		// A write that is stuck gives way before it holds up the end.
		_ = st.SetWriteDeadline(time.Now().Add(time.Second))
		_ = st.SetReadDeadline(time.Now().Add(flowStreamEnd))
		f.writeMu.Lock()
		defer f.writeMu.Unlock()
		if st.CloseWrite() != nil {
			st.Abort()
		}
	})
}

// readStream delivers what arrives on st until its end, and closes it.
func (f *flow) readStream(st Stream) {
	err := f.readDatagrams(st)
	f.forgetStream(st)
	if errors.Is(err, io.EOF) {
		f.writeMu.Lock()
		_ = st.CloseWrite()
		f.writeMu.Unlock()
	}
	_ = st.Close()
	var refusal *reason.Error
	if errors.As(err, &refusal) && refusal.Err == nil {
		f.end(refusal)
	}
}

func (f *flow) readDatagrams(st Stream) error {
	var length [2]byte
	for {
		if _, err := io.ReadFull(st, length[:]); err != nil {
			return err
		}
		buf := getDatagram(int(binary.BigEndian.Uint16(length[:])))
		if _, err := io.ReadFull(st, buf); err != nil {
			putDatagram(buf)
			return io.ErrUnexpectedEOF
		}
		if d, err := wire.ParseDatagram(buf); err != nil || d.Type != wire.DatagramData {
			f.set.drop(dropMalformed, 1)
		} else {
			f.deliver(d.Sequence, d.Payload)
			f.batchEnd()
		}
		putDatagram(buf)
	}
}
