package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
)

// Codes of wirev1.Abort.
const (
	abortBoth = 0
	abortRead = 1
)

// laneStream is one use of a lane. It leaves the lane when both directions ended, cleanly or by
// kill, and never touches it afterwards: the lane may carry another stream by then.
type laneStream struct {
	pair *pair
	lane *lane
	id   uint64
	free func(l *lane, clean bool) // gets the lane back; unless clean it is closed already
	done chan struct{}
	// answer sends the agent's answer where it does not go in the stream; else nil.
	answer func(*wirev1.StreamAnswer) error

	rmu, wmu sync.Mutex // one reader, one writer
	sent     int64      // by the writer
	got      int64      // by the reader

	mu       sync.Mutex
	readEnd  bool
	writeEnd bool
	writeErr error // the peer reads no more
	gone     bool  // off the lane
	clean    bool
	err      error // why, unless clean
	onAbort  map[*func()]struct{}
}

func newLaneStream(p *pair, l *lane, free func(l *lane, clean bool)) *laneStream {
	p.active.Add(1)
	return &laneStream{pair: p, lane: l, free: free, done: make(chan struct{}), onAbort: map[*func()]struct{}{}}
}

// register makes the stream known by its id, for aborts; false if the pair is closed.
func (s *laneStream) register(id uint64) bool {
	s.id = id
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	if s.pair.closed {
		return false
	}
	s.pair.streams[id] = s
	return true
}

// state is the error for a read or write, nil to go on.
func (s *laneStream) state(write bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case write && s.writeErr != nil:
		return s.writeErr
	case s.err != nil && (write || !s.readEnd):
		return s.err
	case write && s.writeEnd:
		return net.ErrClosed
	case !write && s.readEnd:
		return io.EOF
	}
	return nil
}

func (s *laneStream) Read(p []byte) (int, error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	if err := s.state(false); err != nil {
		return 0, err
	}
	return s.took(s.lane.read(p))
}

// ReadLoan implements buffer.Reader.
func (s *laneStream) ReadLoan(b *buffer.Loan) (int, error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	if err := s.state(false); err != nil {
		return 0, err
	}
	l := s.lane
	var n int
	var end bool
	var err error
	if l.plain != nil {
		n, err = l.plain.readLoan(b)
		if end = errors.Is(err, io.EOF); end {
			err = nil
		}
	} else if err = l.await(); err == nil {
		n, end, err = l.read(b.Bytes())
		if n == 0 {
			b.Return()
		}
	}
	return s.took(n, end, err)
}

// took accounts for what was read off the lane.
func (s *laneStream) took(n int, end bool, err error) (int, error) {
	l := s.lane
	if end {
		s.ended(false)
		return 0, io.EOF
	}
	s.got += int64(n)
	l.bytes.Add(int64(n))
	if s.got > bulkAfter {
		l.bulk.Store(true)
	}
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, s.failed(err)
}

// failed turns a read error of the lane into the stream's. A deadline harms nothing.
func (s *laneStream) failed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	s.broke(err)
	return s.state(false)
}

// broke ends a stream whose lane ended beneath it. The peer may be gone altogether, so its
// sessions are asked for a sign of life.
func (s *laneStream) broke(err error) {
	if !s.isGone() {
		s.pair.probe(nil)
	}
	s.kill(laneError(err))
}

func (s *laneStream) Write(p []byte) (int, error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	n := 0
	for n < len(p) {
		if err := s.state(true); err != nil {
			return n, err
		}
		m := min(maxFrame, len(p)-n)
		if err := s.lane.writeFrame(p[n:n+m], s.sent); err != nil {
			return n, s.writeFailed(err)
		}
		n += m
		s.sent += int64(m)
	}
	return n, nil
}

// writeFailed: a TLS connection is of no use after a write that failed, a deadline's too; yet
// if the peer only stopped reading, what it wrote can still be read.
func (s *laneStream) writeFailed(err error) error {
	s.mu.Lock()
	stopped := s.writeErr
	s.mu.Unlock()
	if stopped != nil {
		return stopped
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.kill(ErrLost)
		return err
	}
	s.broke(err)
	return s.state(true)
}

func (s *laneStream) CloseWrite() error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if err := s.state(true); err != nil {
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
	if err := s.lane.writeFrame(nil, s.sent); err != nil {
		return s.writeFailed(err)
	}
	s.ended(true)
	return nil
}

// ended marks a direction as cleanly ended and frees the lane after the second.
func (s *laneStream) ended(write bool) {
	s.mu.Lock()
	if write {
		s.writeEnd = true
	} else {
		s.readEnd = true
	}
	if s.gone || !s.readEnd || !s.writeEnd && s.writeErr == nil {
		s.mu.Unlock()
		return
	}
	s.clean = s.writeErr == nil
	s.leave()
	s.mu.Unlock()
	if s.clean {
		_ = s.lane.conn.SetDeadline(time.Time{})
	} else {
		s.lane.destroy(false)
	}
	s.free(s.lane, s.clean)
}

// leave takes the stream off the lane. The caller holds mu.
func (s *laneStream) leave() {
	s.gone = true
	s.pair.mu.Lock()
	if s.pair.streams[s.id] == s {
		delete(s.pair.streams, s.id)
	}
	s.pair.mu.Unlock()
	s.pair.active.Add(-1)
	close(s.done)
}

// kill ends both directions with err and closes the lane at once.
func (s *laneStream) kill(err error) {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return
	}
	s.err = err
	s.leave()
	var fs []func()
	if !errors.Is(err, net.ErrClosed) {
		for f := range s.onAbort {
			fs = append(fs, *f)
		}
		s.onAbort = nil
	}
	s.mu.Unlock()
	s.lane.destroy(true)
	s.free(s.lane, false)
	for _, f := range fs {
		go f()
	}
}

func (s *laneStream) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// Abort implements Stream.
func (s *laneStream) Abort() {
	if s.isGone() {
		return
	}
	s.kill(net.ErrClosed)
	s.pair.abort(s.id, abortBoth)
}

// Close implements Stream: what was written before CloseWrite still arrives.
func (s *laneStream) Close() error {
	s.mu.Lock()
	gone, linger := s.gone, s.writeEnd && !s.readEnd
	s.mu.Unlock()
	switch {
	case gone:
	case linger:
		s.pair.abort(s.id, abortRead)
		s.drain(s.pair.timing.linger)
	default:
		s.Abort()
	}
	return nil
}

// refused ends a stream whose answer was a refusal. Neither side has more to say, so the lane
// is free as soon as both ends of stream have passed.
func (s *laneStream) refused() {
	if s.CloseWrite() != nil {
		_ = s.Close()
	} else if !s.isGone() {
		s.drain(s.pair.timing.probe)
	}
}

// drain reads to the end of the stream in the background and kills it after d.
func (s *laneStream) drain(d time.Duration) {
	_ = s.SetReadDeadline(time.Now().Add(d))
	s.pair.goFunc(func() {
		var buf [4 << 10]byte
		for {
			if _, err := s.Read(buf[:]); err != nil {
				s.kill(net.ErrClosed)
				return
			}
		}
	})
}

// abortedByPeer handles the peer's Abort.
func (s *laneStream) abortedByPeer(code uint64) {
	if code != abortRead {
		s.kill(ErrAborted)
		return
	}
	s.mu.Lock()
	if s.gone || s.writeEnd || s.writeErr != nil {
		s.mu.Unlock()
		return
	}
	s.writeErr = ErrAborted
	_ = s.lane.conn.SetWriteDeadline(time.Unix(1, 0))
	over := s.readEnd
	s.mu.Unlock()
	if over {
		s.kill(ErrAborted)
	}
}

func (s *laneStream) aborted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone && s.err != nil && !errors.Is(s.err, net.ErrClosed)
}

func (s *laneStream) onPeerAbort(f func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		if s.err != nil {
			go f()
		}
		return func() {}
	}
	key := &f
	s.onAbort[key] = struct{}{}
	return func() {
		s.mu.Lock()
		delete(s.onAbort, key)
		s.mu.Unlock()
	}
}

// deadline sets one on the lane while it is ours.
func (s *laneStream) deadline(set func(net.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	return set(s.lane.conn)
}

func (s *laneStream) LocalAddr() net.Addr  { return s.lane.conn.LocalAddr() }
func (s *laneStream) RemoteAddr() net.Addr { return s.lane.conn.RemoteAddr() }

func (s *laneStream) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}

func (s *laneStream) SetReadDeadline(t time.Time) error {
	return s.deadline(func(c net.Conn) error { return c.SetReadDeadline(t) })
}

func (s *laneStream) SetWriteDeadline(t time.Time) error {
	return s.deadline(func(c net.Conn) error {
		if s.writeErr == nil {
			return c.SetWriteDeadline(t)
		}
		return nil // the one that ended the writes stays
	})
}
