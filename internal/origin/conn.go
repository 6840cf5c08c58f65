package origin

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/adit-dev/adit/internal/buffer"
)

// headedConn is a TCP connection whose PROXY header goes in one segment with what is written
// first: payload, or a ClientHello.
type headedConn struct {
	tcp  *net.TCPConn
	mu   sync.Mutex
	head []byte
	// ended is set once this side's bytes have ended; failed is how a write failed.
	ended  atomic.Bool
	failed atomic.Int32
	// in and hasty are the reader's own: the socket, and whether reads must not wait.
	in    *buffer.Socket
	hasty bool
}

const (
	failedReset = iota + 1
	failedOther
)

func (c *headedConn) flush() error {
	_, err := c.Write(nil)
	return err
}

func (c *headedConn) Write(b []byte) (int, error) {
	n, err := c.write(b)
	if err != nil {
		c.noteFailure(err)
	}
	return n, err
}

func (c *headedConn) noteFailure(err error) {
	how := int32(failedOther)
	if errors.Is(err, syscall.ECONNRESET) {
		how = failedReset
	}
	c.failed.CompareAndSwap(0, how)
}

// Read tells a reset from an end also where a write got the news first: the kernel reports a reset
// once, to whichever call comes first, and the other one would see a clean end.
func (c *headedConn) Read(b []byte) (int, error) {
	if c.hasty {
		return 0, errHasty
	}
	n, err := c.tcp.Read(b)
	return n, c.end(err)
}

// ReadLoan implements buffer.Reader.
func (c *headedConn) ReadLoan(l *buffer.Loan) (int, error) {
	if c.in == nil {
		c.in = buffer.NewSocket(c.tcp)
	}
	n, err := c.in.ReadLoan(l)
	return n, c.end(err)
}

func (c *headedConn) end(err error) error {
	if errors.Is(err, io.EOF) && !c.ended.Load() && closedByPeer(c.tcp) {
		for range 25 {
			if c.failed.Load() != 0 {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if c.failed.Load() == failedReset {
			return &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: syscall.ECONNRESET}
		}
	}
	return err
}

// Aborted reports whether the origin reset the connection, for those who do not read it now. What
// it sent before may still be unread.
func (c *Conn) Aborted() bool {
	return c.raw.failed.Load() == failedReset || resetPending(c.raw.tcp)
}

// ReadLoan implements buffer.Reader. TLS can wait only with a buffer in hand: it gets a byte, and
// then what it has without waiting.
func (c *Conn) ReadLoan(l *buffer.Loan) (int, error) {
	if c.Conn == net.Conn(c.raw) {
		return c.raw.ReadLoan(l)
	}
	var first [1]byte
	n, err := c.Conn.Read(first[:])
	if n == 0 {
		return 0, err
	}
	b := l.Bytes()
	b[0] = first[0]
	c.raw.hasty = true
	n, err = c.Conn.Read(b[1:])
	c.raw.hasty = false
	if errors.Is(err, errHasty) {
		err = nil
	}
	return 1 + n, err
}

// errHasty is temporary: TLS asks again.
var errHasty net.Error = hasty{}

type hasty struct{}

func (hasty) Error() string   { return "nothing to read now" }
func (hasty) Timeout() bool   { return true }
func (hasty) Temporary() bool { return true }

func (c *headedConn) write(b []byte) (int, error) {
	c.mu.Lock()
	head := c.head
	c.head = nil
	if head == nil {
		c.mu.Unlock()
		if len(b) == 0 {
			return 0, nil
		}
		return c.tcp.Write(b)
	}
	defer c.mu.Unlock()
	bufs := net.Buffers{head, b}
	n, err := bufs.WriteTo(c.tcp)
	return max(0, int(n)-len(head)), err
}

// CloseWrite ends this side's bytes; a header that waited for them goes first.
func (c *headedConn) CloseWrite() error {
	if err := c.flush(); err != nil {
		return err
	}
	c.ended.Store(true)
	return c.tcp.CloseWrite()
}

func (c *headedConn) Close() error                       { return c.tcp.Close() }
func (c *headedConn) LocalAddr() net.Addr                { return c.tcp.LocalAddr() }
func (c *headedConn) RemoteAddr() net.Addr               { return c.tcp.RemoteAddr() }
func (c *headedConn) SetDeadline(t time.Time) error      { return c.tcp.SetDeadline(t) }
func (c *headedConn) SetReadDeadline(t time.Time) error  { return c.tcp.SetReadDeadline(t) }
func (c *headedConn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
