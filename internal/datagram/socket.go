// Package datagram holds UDP sockets as tunnels need them: room for bursts, reads and writes in
// batches, the local address of every datagram, a count of what the kernel dropped.
package datagram

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// bufferSize is what the kernel is asked to keep of datagrams that come faster than they are
// read; it may grant less (net.core.rmem_max).
const bufferSize = 4 << 20

// Socket is a UDP socket. One goroutine reads; any may write.
type Socket struct {
	*net.UDPConn
	// bound is the local address if it is not the wildcard.
	bound netip.Addr
	batch
}

// Listen binds port at addr; the zero address means all, of both families where there are both.
func Listen(addr netip.Addr, port uint16) (*Socket, error) {
	local := net.UDPAddr{Port: int(port)}
	if addr.IsValid() {
		local = *net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port))
	}
	conn, err := net.ListenUDP("udp", &local)
	if err != nil {
		return nil, err
	}
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
	return open(conn, addr)
}

// Connected takes over a socket that is connected to one peer.
func Connected(conn *net.UDPConn) (*Socket, error) {
	return open(conn, conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap())
}

func open(conn *net.UDPConn, bound netip.Addr) (*Socket, error) {
	growBuffers(conn)
	s := &Socket{UDPConn: conn, bound: bound}
	if err := s.open(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

// Lost counts datagrams that were queued and not sent.
type Lost struct {
	// Refused: the peer's host answered "port unreachable" to an earlier one.
	Refused int
	// Failed: whatever else, such as no room in the kernel's queue.
	Failed int
}

// ReplyFrom is the control message that makes a datagram leave from local; nil where the socket
// has that address only.
func (s *Socket) ReplyFrom(local netip.Addr) []byte {
	switch {
	case s.bound.IsValid() || !local.IsValid() || local.IsUnspecified():
		return nil
	case local.Is4():
		return (&ipv4.ControlMessage{Src: local.AsSlice()}).Marshal()
	}
	return (&ipv6.ControlMessage{Src: local.AsSlice()}).Marshal()
}
