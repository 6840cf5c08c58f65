package datagram

import (
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/ipv4"
)

// Share makes a socket one that QUIC and marked packets share; transport is what to give to QUIC.
func Share(conn *net.UDPConn) (transport net.PacketConn, c *Carrier) {
	c = &Carrier{Socket: &Socket{UDPConn: conn}}
	if a := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); !a.IsUnspecified() {
		c.bound = a
	}
	if err := c.open(); err != nil {
		return conn, nil
	}
	return c, c
}

// reading is the state of a Carrier's reader, of which there is one.
type reading struct {
	// current is entry at of the count that were read together.
	current   packet
	at, count int
	// touched are the receivers of what was read together.
	touched []Receiver
	// from is the address of the last packet of QUIC, addr the same as QUIC wants it.
	from netip.AddrPort
	addr *net.UDPAddr
}

// ReadBatch reads packets of QUIC, for its transport, and hands marked ones to their receivers.
func (c *Carrier) ReadBatch(ms []ipv4.Message, _ int) (n int, err error) {
	for {
		b := c.nextDatagram()
		if b == nil {
			c.batchEnd()
			if n > 0 {
				return n, nil
			}
			if err := c.refill(); err != nil {
				return 0, err
			}
			continue
		}
		if r, marked := c.receiver(b); marked {
			if r != nil {
				if !slices.Contains(c.touched, r) {
					c.touched = append(c.touched, r)
				}
				r.Packet(b)
			}
			continue
		}
		m := &ms[n]
		m.N, m.NN = copy(m.Buffers[0], b), copy(m.OOB, c.current.oob)
		m.Flags, m.Addr = 0, c.peer()
		if n++; n == len(ms) {
			c.batchEnd()
			return n, nil
		}
	}
}

// nextDatagram takes the next of those that were read; nil when all are taken.
func (c *Carrier) nextDatagram() []byte {
	for len(c.current.data) == 0 {
		if c.room == nil {
			return nil
		}
		if c.at++; c.at >= c.count {
			c.release()
			return nil
		}
		c.current = c.Socket.packet(c.at, new(int))
	}
	return c.current.next()
}

func (c *Carrier) refill() error {
	n, err := c.fill()
	c.at, c.count = -1, n
	return err
}

func (c *Carrier) batchEnd() {
	for i, r := range c.touched {
		r.BatchEnd()
		c.touched[i] = nil
	}
	c.touched = c.touched[:0]
}

// peer is where the packet comes from. QUIC's packets come from few addresses, in trains.
func (c *Carrier) peer() *net.UDPAddr {
	if c.addr == nil || c.from != c.current.from {
		c.from, c.addr = c.current.from, net.UDPAddrFromAddrPort(c.current.from)
	}
	return c.addr
}
