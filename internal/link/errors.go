package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/quic-go/quic-go"
)

var (
	// ErrAborted is what reads and writes of a stream fail with after the other side aborted it.
	ErrAborted = errors.New("stream aborted by the other side")
	// ErrLost is what they fail with after the connection below them was lost.
	ErrLost = errors.New("connection lost")
)

// QUIC application error codes of adit/1.
const (
	quicCodeClosed  quic.ApplicationErrorCode = 0
	quicCodeRefused quic.ApplicationErrorCode = 1
	quicCodeDead    quic.ApplicationErrorCode = 2

	quicStreamAborted quic.StreamErrorCode = 1
)

// streamError gives an error of a QUIC stream its meaning on any carrier.
func quicStreamError(err error) error {
	var se *quic.StreamError
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.As(err, &se):
		if se.Remote {
			return ErrAborted
		}
		return net.ErrClosed
	case errors.Is(err, quic.ErrStreamClosed):
		return net.ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// laneError does the same for the connection of a lane.
func laneError(err error) error {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		// A peer ends a stream with an empty frame; a connection that just ends is an abort.
		return fmt.Errorf("%w (%w)", ErrAborted, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errWrongPin: the peer is not the edge that was meant.
var errWrongPin = errors.New("another identity than the pinned one answered")
