// Package buffer lends buffers to those who copy: a connection that waits for bytes holds none.
package buffer

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// Size is the length of a buffer in bytes.
const Size = 64 << 10

var pool = sync.Pool{New: func() any { return new([Size]byte) }}

// Loan is a buffer of the process, or none yet. The zero value is ready for use.
type Loan struct{ b *[Size]byte }

// Bytes is the buffer; it is taken if none is held.
func (l *Loan) Bytes() []byte {
	if l.b == nil {
		l.b = pool.Get().(*[Size]byte)
	}
	return l.b[:]
}

// Return gives the buffer back; what was in it is lost.
func (l *Loan) Return() {
	if l.b != nil {
		pool.Put(l.b)
		l.b = nil
	}
}

// Reader is a source that waits for bytes without a buffer.
type Reader interface {
	// ReadLoan waits until there is something to read, and then takes a buffer and reads into it:
	// the first n of l.Bytes(). No buffer is held when n is 0. Otherwise it is like Read of
	// io.Reader, and l must hold nothing when it is called.
	ReadLoan(l *Loan) (n int, err error)
}

// Read is ReadLoan of what cannot wait: it holds the buffer meanwhile.
func Read(r io.Reader, l *Loan) (int, error) {
	n, err := r.Read(l.Bytes())
	if n == 0 {
		l.Return()
	}
	return n, err
}

// Socket reads from a socket. One goroutine may read at a time.
type Socket struct {
	c    net.Conn
	raw  syscall.RawConn // nil where the system cannot wait
	try  func(fd uintptr) bool
	loan *Loan
	n    int
	err  error
}

// NewSocket returns a reader of c.
func NewSocket(c net.Conn) *Socket {
	s := &Socket{c: c}
	if sc, ok := c.(syscall.Conn); ok && canWait {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw, s.try = raw, s.attempt
		}
	}
	return s
}

// ReadLoan implements Reader. Deadlines of the connection hold.
func (s *Socket) ReadLoan(l *Loan) (int, error) {
	if s.raw == nil {
		return Read(s.c, l)
	}
	s.loan = l
	err := s.raw.Read(s.try)
	s.loan = nil
	switch {
	case err != nil:
		return 0, err
	case s.err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: s.c.LocalAddr(), Addr: s.c.RemoteAddr(), Err: s.err}
	case s.n == 0:
		return 0, io.EOF
	}
	return s.n, nil
}
