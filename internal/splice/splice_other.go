//go:build !linux

package splice

import "net"

type copier struct {
	dst, src *net.TCPConn
	progress Progress
}

func newCopier(dst, src *net.TCPConn, p Progress) (*copier, error) {
	return &copier{dst: dst, src: src, progress: p}, nil
}

func (c *copier) end() {}

func (c *copier) round() (readErr, writeErr error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	n, err := c.src.Read(*b)
	if n > 0 {
		writeErr = write(c.dst, (*b)[:n], c.progress)
	}
	return err, writeErr
}
