// Package splice copies between two TCP sockets inside the kernel where it can.
//
// What the standard library does for two TCP connections takes a pipe before there is data and
// keeps it while idle: thousands of idle connections use up what a user may hold in pipes. Here a
// pipe is taken from a small pool once data is there and given back when it is drained.
package splice

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// Progress tells how a copy goes; its fields may be nil.
type Progress struct {
	// Moved is called with the bytes that dst took.
	Moved func(n int)
	// Writing is true while bytes wait for dst to take them.
	Writing *atomic.Bool
}

func (p Progress) writing(on bool) {
	if p.Writing != nil {
		p.Writing.Store(on)
	}
}

func (p Progress) moved(n int) {
	if p.Moved != nil && n > 0 {
		p.Moved(n)
	}
}

// Copy copies from src to dst until the end of src, which it does not pass on. Both errors are
// nil then. Deadlines of the sockets hold. An idle copy holds neither buffer nor pipe.
func Copy(dst, src *net.TCPConn, p Progress) (readErr, writeErr error) {
	c, err := newCopier(dst, src, p)
	if err != nil {
		return err, nil
	}
	defer c.end()
	for {
		readErr, writeErr = c.round()
		switch {
		case errors.Is(readErr, io.EOF):
			return nil, writeErr
		case readErr != nil || writeErr != nil:
			return readErr, writeErr
		}
	}
}

const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// write sends b to dst.
func write(dst *net.TCPConn, b []byte, p Progress) error {
	p.writing(true)
	n, err := dst.Write(b)
	p.writing(false)
	p.moved(n)
	return err
}

func sysError(call string, err error) error {
	if err == nil {
		return nil
	}
	return os.NewSyscallError(call, err)
}
