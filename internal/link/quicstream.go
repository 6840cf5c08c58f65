package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/adit-dev/adit/internal/buffer"
)

// rawStream is a stream below its header: a QUIC stream or one use of a lane.
type rawStream interface {
	Stream
	// onPeerAbort calls f (once, in a goroutine of its own) when the peer aborted the stream or
	// the connection was lost, even while nobody reads. stop undoes it.
	onPeerAbort(f func()) (stop func())
	// aborted reports what onPeerAbort would tell.
	aborted() bool
	// refused ends a stream whose answer was a refusal: both sides are done with it.
	refused()
}

// quicStream is a stream of a QUIC session.
type quicStream struct {
	qs   *quic.Stream
	sess *session

	readEnd, writeEnd atomic.Bool // the direction ended cleanly
	closed            atomic.Bool

	bulk bulkMeter // of who writes

	blocked atomic.Int64 // since when a Write is under way, steadyNow in UnixNano; 0 = none
	written atomic.Int64
}

func (s *quicStream) Read(p []byte) (int, error) {
	n, err := s.qs.Read(p)
	if errors.Is(err, io.EOF) {
		s.readEnd.Store(true)
		return n, io.EOF
	}
	return n, quicStreamError(err)
}

// ReadLoan implements buffer.Reader.
func (s *quicStream) ReadLoan(l *buffer.Loan) (int, error) {
	var first [1]byte
	_, _ = s.qs.Peek(first[:]) // Read tells why it failed
	return buffer.Read(s, l)
}

func (s *quicStream) Write(p []byte) (int, error) {
	now := steadyNow()
	s.blocked.Store(now.UnixNano())
	s.giveWay(len(p), now)
	n, err := s.qs.Write(p)
	s.blocked.Store(0)
	s.written.Add(int64(n))
	return n, quicStreamError(err)
}

// Streams of a session share its congestion window: one that writes more than bulkRate a second is
// sent after the others. RFC 9218 names the urgencies.
const (
	bulkRate     = 64 << 10
	urgencyBulk  = 5
	urgencyOther = 3
)

// giveWay notes that n bytes are about to be written.
func (s *quicStream) giveWay(n int, now time.Time) {
	if !s.bulk.wrote(n, now) {
		return
	}
	if s.bulk.is {
		s.qs.SetPriority(urgencyBulk, true)
	} else {
		s.qs.SetPriority(urgencyOther, true)
	}
}

// bulkMeter tells bulk from the rest.
type bulkMeter struct {
	is    bool
	since time.Time
	bytes int
}

// wrote counts n bytes and reports whether that changed what the stream is. It is bulk from the
// moment it exceeds the rate until a second in which it did not.
func (m *bulkMeter) wrote(n int, now time.Time) (changed bool) {
	is := m.is
	if now.Sub(m.since) >= time.Second {
		is = m.bytes > bulkRate && now.Sub(m.since) < 2*time.Second
		m.since, m.bytes = now, 0
	}
	m.bytes += n
	is = is || m.bytes > bulkRate
	changed = is != m.is
	m.is = is
	return changed
}

func (s *quicStream) CloseWrite() error {
	if s.writeEnd.Swap(true) {
		return nil
	}
	return quicStreamError(s.qs.Close())
}

func (s *quicStream) Abort() {
	s.qs.CancelRead(quicStreamAborted)
	s.qs.CancelWrite(quicStreamAborted)
	s.finish()
}

// Close ends what has not ended yet; bytes before a CloseWrite still arrive.
func (s *quicStream) Close() error {
	if !s.readEnd.Load() {
		s.qs.CancelRead(quicStreamAborted)
	}
	if !s.writeEnd.Load() {
		s.qs.CancelWrite(quicStreamAborted)
	}
	s.finish()
	return nil
}

func (s *quicStream) refused() { _ = s.Close() }

func (s *quicStream) finish() {
	if !s.closed.Swap(true) {
		s.sess.release(s)
	}
}

// peerGone is called after the connection was lost.
func (s *quicStream) peerGone() { s.finish() }

func (s *quicStream) onPeerAbort(f func()) func() {
	ctx := s.qs.Context()
	stop := context.AfterFunc(ctx, func() {
		// Our own end of the write side ends this context too.
		if !errors.Is(context.Cause(ctx), quic.ErrStreamClosed) {
			f()
		}
	})
	stopSession := context.AfterFunc(s.sess.ctx, f)
	return func() { stop(); stopSession() }
}

func (s *quicStream) aborted() bool {
	ctx := s.qs.Context()
	return s.sess.ctx.Err() != nil || ctx.Err() != nil && !errors.Is(context.Cause(ctx), quic.ErrStreamClosed)
}

func (s *quicStream) LocalAddr() net.Addr                { return s.sess.local }
func (s *quicStream) RemoteAddr() net.Addr               { return s.sess.remote }
func (s *quicStream) SetDeadline(t time.Time) error      { return s.qs.SetDeadline(t) }
func (s *quicStream) SetReadDeadline(t time.Time) error  { return s.qs.SetReadDeadline(t) }
func (s *quicStream) SetWriteDeadline(t time.Time) error { return s.qs.SetWriteDeadline(t) }
