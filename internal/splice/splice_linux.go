package splice

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// largePipe is the size of the first largePipes pipes, smallPipe of the rest: an unprivileged
	// user may hold 64 MiB in pipes, and those beyond shrink to a page, where copying is cheaper.
	largePipe  = 1 << 20
	smallPipe  = 256 << 10
	largePipes = 24
	// maxPipes is how many there may be at once, idlePipes how many wait for the next use.
	maxPipes  = 128
	idlePipes = 24
)

type pipe struct{ r, w, size int }

var (
	pool  = make(chan *pipe, idlePipes)
	alive atomic.Int64
)

// takePipe returns an empty pipe, or nil when none of use can be had.
func takePipe() *pipe {
	select {
	case p := <-pool:
		return p
	default:
	}
	n := alive.Add(1)
	if n > maxPipes {
		alive.Add(-1)
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		alive.Add(-1)
		return nil
	}
	p := &pipe{r: fds[0], w: fds[1]}
	want := smallPipe
	if n <= largePipes {
		want = largePipe
	}
	for ; want >= smallPipe && p.size == 0; want /= 2 {
		p.size, _ = unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, want)
	}
	if p.size < smallPipe {
		p.close()
		return nil
	}
	return p
}

// give puts an empty pipe back.
func (p *pipe) give() {
	select {
	case pool <- p:
	default:
		p.close()
	}
}

func (p *pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
	alive.Add(-1)
}

// copier is one direction of two sockets.
type copier struct {
	dst      *net.TCPConn
	from, to syscall.RawConn
	progress Progress
	// plain: the kernel cannot splice these two.
	plain bool

	// pipe is held while there is data, left is how much of it is in the pipe.
	pipe *pipe
	left int
	// buf is used instead where there is no pipe.
	buf *[]byte

	n   int
	err error
	// filling and draining are fill and drain, bound once.
	filling, draining func(fd uintptr) bool
}

func newCopier(dst, src *net.TCPConn, p Progress) (*copier, error) {
	from, err := src.SyscallConn()
	if err != nil {
		return nil, err
	}
	to, err := dst.SyscallConn()
	if err != nil {
		return nil, err
	}
	bound(from, unix.SO_RCVBUF)
	bound(to, unix.SO_SNDBUF)
	c := &copier{dst: dst, from: from, to: to, progress: p}
	c.filling, c.draining = c.fill, c.drain
	return c, nil
}

const (
	// nearRTT is up to which round trip, in microseconds, a socket's buffer is bounded: nearBuffer bytes,
	// which the kernel doubles, still fill 10 Gbit/s there.
	nearRTT    = 500
	nearBuffer = 512 << 10
)

// bound keeps a socket whose peer is near from buffering megabytes. The kernel lets the buffers of a
// fast connection grow to its limit; what lies in them has left the processor's caches when the
// next hop copies it, which costs more than splicing saves.
func bound(c syscall.RawConn, option int) {
	_ = c.Control(func(fd uintptr) {
		i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && i.Rtt > 0 && i.Rtt <= nearRTT {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, nearBuffer)
		}
	})
}

// end lets go of what a failure left.
func (c *copier) end() {
	if c.pipe != nil {
		c.pipe.close()
		c.pipe = nil
	}
}

// round waits for data and moves what is there.
func (c *copier) round() (readErr, writeErr error) {
	err := c.from.Read(c.filling)
	switch {
	case err != nil:
		return err, nil
	case c.err != nil:
		return sysError("splice", c.err), nil
	case c.n == 0:
		return io.EOF, nil
	case c.buf != nil:
		b := c.buf
		c.buf = nil
		err := write(c.dst, (*b)[:c.n], c.progress)
		buffers.Put(b)
		return nil, err
	}
	c.left = c.n
	c.progress.writing(true)
	for err == nil && c.left > 0 {
		c.n = 0 // drain does not run where the socket is closed or its deadline has passed
		if err = c.to.Write(c.draining); err == nil {
			err = sysError("splice", c.err)
		}
		c.progress.moved(c.n)
		c.left -= c.n
	}
	c.progress.writing(false)
	if c.left == 0 { // else end closes it: what is in it must not reach another connection
		c.pipe.give()
		c.pipe = nil
	}
	return nil, err
}

// fill takes what the source has; false means there is nothing yet, and then nothing is held.
func (c *copier) fill(fd uintptr) bool {
	if !c.plain {
		c.pipe = takePipe()
	}
	if c.pipe == nil {
		return c.read(fd)
	}
	for {
		n, err := unix.Splice(int(fd), nil, c.pipe.w, nil, c.pipe.size, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		switch err {
		case unix.EINTR:
			continue
		case nil:
			c.n, c.err = int(n), nil
			if n == 0 {
				c.pipe.give()
				c.pipe = nil
			}
			return true
		}
		c.pipe.give()
		c.pipe = nil
		switch err {
		case unix.EAGAIN:
			return false
		case unix.EINVAL, unix.ENOSYS, unix.EPERM:
			c.plain = true
			return c.read(fd)
		}
		c.n, c.err = 0, err
		return true
	}
}

// read is fill by copying.
func (c *copier) read(fd uintptr) bool {
	b := buffers.Get().(*[]byte)
	for {
		n, err := unix.Read(int(fd), *b)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n > 0:
			c.n, c.err, c.buf = n, nil, b
			return true
		}
		buffers.Put(b)
		if err == unix.EAGAIN {
			return false
		}
		c.n, c.err = 0, err
		return true
	}
}

// drain hands the pipe's content to the destination; false means it takes nothing now.
func (c *copier) drain(fd uintptr) bool {
	for {
		n, err := unix.Splice(c.pipe.r, nil, int(fd), nil, c.left, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		}
		c.n, c.err = max(0, int(n)), err
		return true
	}
}
