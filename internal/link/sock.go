package link

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adit-dev/adit/internal/buffer"
)

const keepAlive = 15 * time.Second

// sockConn lies between TLS and TCP. It takes a read buffer only when there is data, and gathers
// the records of one write into one system call.
type sockConn struct {
	net.Conn // what was wrapped: addresses and Close
	tcp      *net.TCPConn
	sent     atomic.Int64 // bytes the kernel took

	rmu  sync.Mutex
	head []byte // read from the socket before it was wrapped
	in   *buffer.Socket
	loan buffer.Loan // bytes r to w of it were read and not taken
	r, w int
	// hdr is the header of a TLS record as far as hdrN, content what is left of one.
	hdr     [5]byte
	hdrN    int
	content int

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
	s := &sockConn{Conn: c, tcp: t, in: buffer.NewSocket(t)}
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
		n := copy(p, c.record(c.head))
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	if !canWaitReadable || len(p) == 0 {
		return c.tcp.Read(p)
	}
	if c.r == c.w {
		n, err := c.in.ReadLoan(&c.loan)
		if n == 0 {
			return 0, err
		}
		c.r, c.w = 0, n
	}
	n := copy(p, c.record(c.loan.Bytes()[c.r:c.w]))
	if c.r += n; c.r == c.w {
		c.loan.Return()
	}
	return n, nil
}

// record is what of b belongs to the TLS record that is being read, its header and its content
// apart. TLS keeps a buffer that holds the most it was ever given at once: a record and a piece of
// the next would be twice a record.
func (c *sockConn) record(b []byte) []byte {
	if c.content == 0 {
		n := copy(c.hdr[c.hdrN:], b)
		if c.hdrN += n; c.hdrN == len(c.hdr) {
			c.content, c.hdrN = int(binary.BigEndian.Uint16(c.hdr[3:])), 0
		}
		return b[:n]
	}
	b = b[:min(len(b), c.content)]
	c.content -= len(b)
	return b
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
