//go:build !unix

package agent

import "net"

// datagramReader reads a connected UDP socket.
type datagramReader struct {
	c   *net.UDPConn
	buf []byte
}

func newDatagramReader(c *net.UDPConn) (*datagramReader, error) {
	return &datagramReader{c, make([]byte, 1<<16)}, nil
}

// read waits for one datagram and hands it to use.
func (r *datagramReader) read(use func(b []byte)) error {
	n, err := r.c.Read(r.buf)
	if err != nil {
		return err
	}
	use(r.buf[:n])
	return nil
}
