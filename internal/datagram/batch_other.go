//go:build !linux

package datagram

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// batch reads and sends one datagram at a time: only Linux does more.
type batch struct {
	buf, oob []byte

	mu   sync.Mutex
	lost Lost
}

func (s *Socket) open() error {
	s.buf, s.oob = make([]byte, 1<<16), make([]byte, 128)
	return nil
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

// Queue sends b to a peer (the zero value on a connected socket) with the control message that
// ReplyFrom made.
func (s *Socket) Queue(b, from []byte, to netip.AddrPort) {
	send := func() error {
		if !to.IsValid() {
			_, err := s.Write(b)
			return err
		}
		_, _, err := s.WriteMsgUDPAddrPort(b, from, to)
		return err
	}
	err := send()
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, syscall.ECONNREFUSED) {
		// Tells of an earlier datagram; this one was not sent yet.
		s.lost.Refused++
		if err = send(); errors.Is(err, syscall.ECONNREFUSED) {
			s.lost.Refused++
			return
		}
	}
	if err != nil {
		s.lost.Failed++
	}
}

// Flush returns what was lost since the last call.
func (s *Socket) Flush() Lost {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.lost
	s.lost = Lost{}
	return lost
}
