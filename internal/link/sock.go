package link

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	keepAlive = 15 * time.Second
	// readAhead is how much one read takes from the kernel at once: several TLS records.
	readAhead = 64 << 10
)

var readBuffers = sync.Pool{New: func() any { b := make([]byte, readAhead); return &b }}

// sockConn lies between TLS and TCP. It takes a read buffer only when there is data, and gathers
// the records of one write into one system call.
type sockConn struct {
	net.Conn // what was wrapped: addresses and Close
	tcp      *net.TCPConn
	rc       syscall.RawConn
	sent     atomic.Int64 // bytes the kernel took

	rmu  sync.Mutex
	head []byte // read from the socket before it was wrapped
	rbuf *[]byte
	r, w int

	wmu  sync.Mutex
	held bool
	out  []byte
}

// WrapTCP prepares an accepted TCP connection for adit/1; it goes below TLS. A connection that
// wraps another says so with NetConn, and gives up the bytes it would replay with Take. What has
// no TCP connection below is returned as it is.
func WrapTCP(c net.Conn) net.Conn {
	t := tcpConn(c)
	if t == nil {
		return c
	}
	rc, err := t.SyscallConn()
	if err != nil {
		return c
	}
	s := &sockConn{Conn: c, tcp: t, rc: rc}
	if r, ok := c.(interface{ Take() []byte }); ok {
		s.head = r.Take()
	} else if c != net.Conn(t) {
		return c // it may change bytes
	}
	setKeepAlive(t, keepAlive)
	tuneSocket(rc)
	return s
}

// NetConn is the connection that was wrapped.
func (c *sockConn) NetConn() net.Conn { return c.Conn }

// tcpConn finds the TCP connection below c, nil if there is none.
func tcpConn(c net.Conn) *net.TCPConn {
	for range 8 {
		switch v := c.(type) {
		case *net.TCPConn:
			return v
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return nil
		}
	}
	return nil
}

func (c *sockConn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(c.head) > 0 {
		n := copy(p, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	if !canWaitReadable || len(p) == 0 {
		return c.tcp.Read(p)
	}
	if c.r == c.w {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, (*c.rbuf)[c.r:c.w])
	if c.r += n; c.r == c.w {
		readBuffers.Put(c.rbuf)
		c.rbuf, c.r, c.w = nil, 0, 0
	}
	return n, nil
}

// fill waits without a buffer and reads with one from the pool.
func (c *sockConn) fill() error {
	var n int
	var rerr error
	var buf *[]byte
	err := c.rc.Read(func(fd uintptr) bool {
		buf = readBuffers.Get().(*[]byte)
		var again bool
		if n, again, rerr = readAvailable(fd, *buf); again {
			readBuffers.Put(buf)
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return err
	case rerr != nil:
		readBuffers.Put(buf)
		return &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: rerr}
	case n == 0:
		readBuffers.Put(buf)
		return io.EOF
	}
	c.rbuf, c.r, c.w = buf, 0, n
	return nil
}

func (c *sockConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.held {
		c.out = append(c.out, p...)
		return len(p), nil
	}
	return c.write(p)
}

func (c *sockConn) write(p []byte) (int, error) {
	n, err := c.tcp.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

var writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, maxFrame+8<<10); return &b }}

// hold gathers writes until flush.
func (c *sockConn) hold() {
	c.wmu.Lock()
	c.held = true
	c.out = (*writeBuffers.Get().(*[]byte))[:0]
	c.wmu.Unlock()
}

// flush hands what was gathered to the kernel and goes on gathering.
func (c *sockConn) flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.write(c.out)
	c.out = c.out[:0]
	return err
}

// release ends gathering; flush came before, unless a write failed.
func (c *sockConn) release() {
	c.wmu.Lock()
	c.held = false
	if len(c.out) > 0 {
		_, _ = c.write(c.out)
	}
	b := c.out[:0]
	c.out = nil
	writeBuffers.Put(&b)
	c.wmu.Unlock()
}
