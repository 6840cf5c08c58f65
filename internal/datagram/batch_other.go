//go:build !linux

package datagram

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// batch reads one datagram at a time: only Linux reads more.
type batch struct {
	buf, oob []byte
}

func newBatch(*net.UDPConn) (batch, error) {
	return batch{buf: make([]byte, 1<<16), oob: make([]byte, 128)}, nil
}

func growBuffers(conn *net.UDPConn) {
	_ = conn.SetReadBuffer(bufferSize)
	_ = conn.SetWriteBuffer(bufferSize)
}

// ReadBatch waits for a datagram and hands it to use (b is valid during the call only).
func (s *Socket) ReadBatch(use func(from netip.AddrPort, local netip.Addr, b []byte)) (lost int, err error) {
	n, nn, _, from, err := s.ReadMsgUDPAddrPort(s.buf, s.oob)
	if err != nil {
		return 0, err
	}
	local := s.bound
	var m4 ipv4.ControlMessage
	var m6 ipv6.ControlMessage
	if m6.Parse(s.oob[:nn]) == nil && m6.Dst != nil {
		local, _ = netip.AddrFromSlice(m6.Dst)
	} else if m4.Parse(s.oob[:nn]) == nil && m4.Dst != nil {
		local, _ = netip.AddrFromSlice(m4.Dst)
	}
	use(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), local.Unmap(), s.buf[:n])
	return 0, nil
}
