//go:build unix

package agent

import (
	"net"
	"sync"
	"syscall"
)

// datagramBuffers hold a datagram of any size. A flow takes one only while there is something to
// read: an idle flow holds none.
var datagramBuffers = sync.Pool{New: func() any { return new([1 << 16]byte) }}

// datagramReader reads a connected UDP socket.
type datagramReader struct{ raw syscall.RawConn }

func newDatagramReader(c *net.UDPConn) (*datagramReader, error) {
	raw, err := c.SyscallConn()
	return &datagramReader{raw}, err
}

// read waits for one datagram and hands it to use.
func (r *datagramReader) read(use func(b []byte)) error {
	var buf *[1 << 16]byte
	var n int
	var failed error
	err := r.raw.Read(func(fd uintptr) bool {
		buf = datagramBuffers.Get().(*[1 << 16]byte)
		for {
			n, failed = syscall.Read(int(fd), buf[:])
			if failed != syscall.EINTR {
				break
			}
		}
		if failed == syscall.EAGAIN {
			datagramBuffers.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	if buf != nil {
		defer datagramBuffers.Put(buf)
	}
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	use(buf[:n])
	return nil
}
