// Package wire holds the framing of everything that is not the hub API: length-prefixed
// protobuf frames, stream headers and datagrams.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Limits of frames in bytes.
const (
	// MaxOpening bounds an opening and its reply: nothing larger is read before authentication.
	MaxOpening = 16 << 10
	// MaxHeader bounds a stream header and its answer.
	MaxHeader = 4 << 10
	// MaxControl bounds a control frame.
	MaxControl = 1 << 20
)

// HeaderVersion is the first byte of every stream.
const HeaderVersion = 1

// Protocol versions of a session that this build speaks.
const (
	MinVersion = 1
	MaxVersion = 1
)

// ErrTooLarge is returned for a frame over its limit.
var ErrTooLarge = errors.New("frame is larger than its limit")

// AppendFrame appends m with its 4-byte big-endian length.
func AppendFrame(b []byte, m proto.Message, limit int) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return b[:start], fmt.Errorf("encode %T: %w", m, err)
	}
	n := len(b) - start - 4
	if n > limit {
		return b[:start], fmt.Errorf("encode %T of %d bytes, limit %d: %w", m, n, limit, ErrTooLarge)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n))
	return b, nil
}

// WriteFrame writes m with its length in one call.
func WriteFrame(w io.Writer, m proto.Message, limit int) error {
	b, err := AppendFrame(nil, m, limit)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// ReadFrame reads one frame into m. It never reads past the frame.
func ReadFrame(r io.Reader, m proto.Message, limit int) error {
	var l [4]byte
	if _, err := io.ReadFull(r, l[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(l[:])
	if n > uint32(limit) {
		return fmt.Errorf("%T of %d bytes, limit %d: %w", m, n, limit, ErrTooLarge)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := proto.Unmarshal(buf, m); err != nil {
		return fmt.Errorf("decode %T: %w", m, err)
	}
	return nil
}

// AppendHeader appends the version byte and the header frame of a stream.
func AppendHeader(b []byte, h *wirev1.StreamHeader) ([]byte, error) {
	return AppendFrame(append(b, HeaderVersion), h, MaxHeader)
}

// ReadHeader reads what AppendHeader wrote.
func ReadHeader(r io.Reader) (*wirev1.StreamHeader, error) {
	var v [1]byte
	if _, err := io.ReadFull(r, v[:]); err != nil {
		return nil, err
	}
	if v[0] != HeaderVersion {
		return nil, fmt.Errorf("stream header version %d is not known", v[0])
	}
	h := &wirev1.StreamHeader{}
	if err := ReadFrame(r, h, MaxHeader); err != nil {
		return nil, err
	}
	return h, nil
}
