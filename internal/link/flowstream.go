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

// onStream sends a queued datagram on the flow's stream; spare says that the carrier has no
// datagrams, so that the stream is given back when one that has takes over.
func (f *flow) onStream(sequence uint16, buf []byte, spare bool) error {
	st, err := f.set.stream(f)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.spare = spare
	f.mu.Unlock()
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

// setStream makes st the flow's stream and ends the one before; false if the flow has ended.
func (f *flow) setStream(st Stream) bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	old := f.carried
	f.carried = st
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
		f.carried = nil
	}
	f.mu.Unlock()
}

// releaseSpare ends a stream that was needed only while the carrier had no datagrams.
func (f *flow) releaseSpare() {
	f.mu.Lock()
	if !f.spare {
		f.mu.Unlock()
		return
	}
	st := f.carried
	f.carried, f.spare = nil, false
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
		}
		putDatagram(buf)
	}
}
