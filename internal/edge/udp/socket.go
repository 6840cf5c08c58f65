package udp

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// socketBuffer is what the kernel is asked to keep of datagrams that come faster than they are
// read; it may grant less (net.core.rmem_max).
const socketBuffer = 4 << 20

// socket is a bound UDP socket that knows to which local address each datagram came.
type socket struct {
	conn *net.UDPConn
	// bound is the local address if it is not the wildcard.
	bound netip.Addr
	batch
}

// bind binds number at addr; the zero address means all, of both families where there are both.
func bind(addr netip.Addr, number uint16) (*socket, error) {
	var local net.UDPAddr
	if addr.IsValid() {
		local = *net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, number))
	} else {
		local.Port = int(number)
	}
	conn, err := net.ListenUDP("udp", &local)
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, bound: addr}
	growBuffers(conn)
	if !addr.IsValid() {
		// A dual-stack socket tells IPv4 addresses by the IPv6 option; a host without IPv6 has an
		// IPv4 socket, where only the other one works.
		err6 := ipv6.NewPacketConn(conn).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
		err4 := ipv4.NewPacketConn(conn).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
		if err6 != nil && err4 != nil {
			_ = conn.Close()
			return nil, err6
		}
	}
	if s.batch, err = newBatch(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() { _ = s.conn.Close() }

// write sends b to the visitor with the control message that replyFrom made.
func (s *socket) write(b, from []byte, to netip.AddrPort) error {
	_, _, err := s.conn.WriteMsgUDPAddrPort(b, from, to)
	return err
}

// replyFrom is the control message that makes a datagram leave from local; nil where the socket
// has that address only.
func (s *socket) replyFrom(local netip.Addr) []byte {
	switch {
	case s.bound.IsValid() || !local.IsValid():
		return nil
	case local.Is4():
		return (&ipv4.ControlMessage{Src: local.AsSlice()}).Marshal()
	}
	return (&ipv6.ControlMessage{Src: local.AsSlice()}).Marshal()
}
