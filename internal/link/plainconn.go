package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/splice"
	"github.com/adit-dev/adit/internal/wire"
)

// plainConn is the connection of a raw lane: TCP after its preamble. Header and answer travel on
// the session; at the edge the answer is what is read first.
type plainConn struct {
	*net.TCPConn
	// idle is closed once nobody watches the idle socket any more.
	idle   chan struct{}
	answer *answerBox // nil at the agent
	// watched is the error that the watch took from the socket; valid once idle is closed.
	watched error
	ended   atomic.Bool    // this side's bytes
	lent    *buffer.Socket // made by the first readLoan
}

func newRawLane(id uint64, t *net.TCPConn, answer *answerBox) *lane {
	setKeepAlive(t, keepAlive)
	if rc, err := t.SyscallConn(); err == nil {
		tuneSocket(rc)
	}
	c := &plainConn{TCPConn: t, idle: make(chan struct{}), answer: answer}
	return &lane{id: id, conn: c, plain: c, raw: c, since: time.Now()}
}

// NetConn is the TCP connection.
func (c *plainConn) NetConn() net.Conn { return c.TCPConn }

// watch waits until the other side sends something (true), ends or breaks, and reads nothing.
func (c *plainConn) watch() (data bool, err error) {
	defer func() {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			c.watched = err
		}
		close(c.idle)
	}()
	rc, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var perr error
	err = rc.Read(func(fd uintptr) bool {
		var again bool
		data, again, perr = peek(fd)
		return !again
	})
	if err == nil {
		err = perr
	}
	return data, err
}

// ready waits for the answer's last byte to be read, and for the watch to end.
func (c *plainConn) ready() bool {
	if c.answer != nil && !c.answer.over() {
		return false
	}
	<-c.idle
	return c.watched == nil
}

func (c *plainConn) Read(p []byte) (int, error) {
	if c.answer != nil {
		if n, err := c.answer.read(p); n > 0 || err != nil {
			return n, err
		}
	}
	<-c.idle
	if c.watched != nil {
		return 0, c.watched
	}
	n, err := c.TCPConn.Read(p)
	return n, c.end(err)
}

// readLoan is Read that waits without a buffer once the answer was read.
func (c *plainConn) readLoan(b *buffer.Loan) (int, error) {
	if c.answer != nil && !c.answer.over() {
		return buffer.Read(c, b)
	}
	<-c.idle
	if c.watched != nil {
		return 0, c.watched
	}
	if c.lent == nil {
		c.lent = buffer.NewSocket(c.TCPConn)
	}
	n, err := c.lent.ReadLoan(b)
	return n, c.end(err)
}

// end tells a reset from an end: the kernel reports a reset once, and a write may have got the
// news.
func (c *plainConn) end(err error) error {
	if !errors.Is(err, io.EOF) || c.ended.Load() {
		return err
	}
	rc, rerr := c.SyscallConn()
	if rerr == nil && closedByPeer(rc) {
		return os.NewSyscallError("read", syscall.ECONNRESET)
	}
	return err
}

// writeFrame writes p, or ends this side's bytes where there is none.
func (c *plainConn) writeFrame(p []byte) error {
	if len(p) == 0 {
		c.ended.Store(true)
		return c.CloseWrite()
	}
	_, err := c.Write(p)
	return err
}

func (c *plainConn) Close() error {
	if c.answer != nil {
		c.answer.close()
	}
	return c.TCPConn.Close()
}

func (c *plainConn) SetReadDeadline(t time.Time) error {
	if c.answer != nil {
		c.answer.setDeadline(t)
	}
	return c.TCPConn.SetReadDeadline(t)
}

func (c *plainConn) SetDeadline(t time.Time) error {
	if c.answer != nil {
		c.answer.setDeadline(t)
	}
	return c.TCPConn.SetDeadline(t)
}

// answerBox makes an answer that came on the session the first bytes of its stream.
type answerBox struct {
	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	come   bool
	closed bool
	by     time.Time
	timer  *time.Timer
	// onCome runs once, when the answer came or the lane was closed.
	onCome func()
}

func newAnswerBox() *answerBox {
	b := &answerBox{}
	b.cond = sync.NewCond(&b.mu)
	return b
}

// deliver takes the answer; only the first counts.
func (b *answerBox) deliver(a *wirev1.StreamAnswer) error {
	buf, err := wire.AppendFrame(nil, a, wire.MaxHeader)
	if err != nil {
		return err
	}
	b.mu.Lock()
	if b.come || b.closed {
		b.mu.Unlock()
		return nil
	}
	b.buf, b.come = buf, true
	b.settle()
	return nil
}

func (b *answerBox) close() {
	b.mu.Lock()
	b.closed = true
	b.settle()
}

// settle wakes the reader. It is called with mu held and lets go of it.
func (b *answerBox) settle() {
	f := b.onCome
	b.onCome = nil
	b.cond.Broadcast()
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	if f != nil {
		f()
	}
}

// then has f run when the answer came or the lane was closed, now if that was.
func (b *answerBox) then(f func()) {
	b.mu.Lock()
	over := b.come || b.closed
	if !over {
		b.onCome = f
	}
	b.mu.Unlock()
	if over {
		f()
	}
}

// over reports whether the answer was read.
func (b *answerBox) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.come && len(b.buf) == 0
}

// read waits for the answer and reads of it; 0, nil once it was read.
func (b *answerBox) read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.come {
		switch {
		case b.closed:
			return 0, net.ErrClosed
		case !b.by.IsZero() && !time.Now().Before(b.by):
			return 0, os.ErrDeadlineExceeded
		}
		b.cond.Wait()
	}
	n := copy(p, b.buf)
	b.buf = b.buf[n:]
	return n, nil
}

func (b *answerBox) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.come || b.closed {
		return
	}
	b.by = t
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if d := time.Until(t); !t.IsZero() && d > 0 {
		b.timer = time.AfterFunc(d, b.cond.Broadcast)
	}
	b.cond.Broadcast()
}

// Splicer is a stream that may have a TCP socket of its own, for copying within the kernel. ok is
// false, and nothing was done, where it has none.
type Splicer interface {
	// HasSocket reports whether it has one, and may be read and written like that now.
	HasSocket() bool
	// SpliceTo copies what is read from the stream to dst until the stream's end; SpliceFrom copies
	// src into it until the end of src, which is not passed on.
	SpliceTo(dst *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error)
	SpliceFrom(src *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error)
}

// NoSocket is the Splicer of streams that never have a socket.
type NoSocket struct{}

// HasSocket implements Splicer.
func (NoSocket) HasSocket() bool { return false }

// SpliceTo implements Splicer.
func (NoSocket) SpliceTo(*net.TCPConn, splice.Progress) (ok bool, readErr, writeErr error) {
	return false, nil, nil
}

// SpliceFrom implements Splicer.
func (NoSocket) SpliceFrom(*net.TCPConn, splice.Progress) (ok bool, readErr, writeErr error) {
	return false, nil, nil
}

// HasSocket implements Splicer.
func (s *laneStream) HasSocket() bool { return s.lane.plain != nil }

// SpliceTo implements Splicer.
func (s *laneStream) SpliceTo(dst *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	c := s.lane.plain
	if c == nil {
		return false, nil, nil
	}
	s.rmu.Lock()
	defer s.rmu.Unlock()
	if err := s.state(false); err != nil || !c.ready() {
		return false, nil, nil // Read tells
	}
	if readErr, writeErr = splice.Copy(dst, c.TCPConn, p); readErr == nil && writeErr == nil {
		if err := c.end(io.EOF); !errors.Is(err, io.EOF) {
			readErr = err
		}
	}
	switch {
	case readErr != nil:
		readErr = s.failed(readErr)
	case writeErr == nil:
		s.ended(false)
	}
	return true, readErr, writeErr
}

// SpliceFrom implements Splicer.
func (s *laneStream) SpliceFrom(src *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	c := s.lane.plain
	if c == nil {
		return false, nil, nil
	}
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if err := s.state(true); err != nil {
		return false, nil, nil // Write tells
	}
	readErr, writeErr = splice.Copy(c.TCPConn, src, p)
	if writeErr != nil {
		writeErr = s.writeFailed(writeErr)
	}
	return true, readErr, writeErr
}

// HasSocket implements Splicer.
func (o *outgoing) HasSocket() bool {
	sp, ok := o.rawStream.(Splicer)
	return ok && o.answered.Load() && o.err == nil && sp.HasSocket()
}

// SpliceTo implements Splicer.
func (o *outgoing) SpliceTo(dst *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	if !o.HasSocket() {
		return false, nil, nil
	}
	return o.rawStream.(Splicer).SpliceTo(dst, p)
}

// SpliceFrom implements Splicer.
func (o *outgoing) SpliceFrom(src *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	if !o.HasSocket() {
		return false, nil, nil
	}
	return o.rawStream.(Splicer).SpliceFrom(src, p)
}
