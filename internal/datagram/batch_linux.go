package datagram

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// batchSize is how many datagrams one system call takes.
const batchSize = 16

// oobSize holds the local address and the count of datagrams that the kernel dropped.
const oobSize = 128

// buffers is room for a batch. Sockets share them: one without traffic holds none.
type buffers struct {
	messages []ipv6.Message
}

var bufferPool = sync.Pool{New: func() any {
	b := &buffers{messages: make([]ipv6.Message, batchSize)}
	for i := range b.messages {
		b.messages[i].Buffers = [][]byte{make([]byte, 1<<16)}
		b.messages[i].OOB = make([]byte, oobSize)
	}
	return b
}}

// batch reads several datagrams at a time.
type batch struct {
	packets *ipv6.PacketConn
	raw     syscall.RawConn
	// overflow is the kernel's count of dropped datagrams when last told.
	overflow uint32
}

func newBatch(conn *net.UDPConn) (batch, error) {
	raw, err := conn.SyscallConn()
	return batch{packets: ipv6.NewPacketConn(conn), raw: raw}, err
}

// growBuffers asks for room for bursts, beyond the system's limit where the process may.
func growBuffers(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o[0], bufferSize) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o[1], bufferSize)
			}
		}
		// Makes the kernel tell how many it dropped.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	})
}

// ReadBatch waits for datagrams, hands each to use (b is valid during the call only) and returns when
// none is left, with the number that the kernel dropped.
func (s *Socket) ReadBatch(use func(from netip.AddrPort, local netip.Addr, b []byte)) (lost int, err error) {
	if err := s.wait(); err != nil {
		return 0, err
	}
	room := bufferPool.Get().(*buffers)
	defer bufferPool.Put(room)
	for {
		for i := range room.messages {
			m := &room.messages[i]
			m.OOB, m.NN, m.Addr, m.Flags = m.OOB[:oobSize], 0, nil, 0
		}
		n, err := s.packets.ReadBatch(room.messages, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return lost, nil
		}
		if err != nil {
			return lost, err
		}
		for i := range room.messages[:n] {
			m := &room.messages[i]
			from, ok := m.Addr.(*net.UDPAddr)
			if !ok {
				continue
			}
			local, overflow := s.control(m.OOB[:m.NN])
			lost += int(overflow - s.overflow)
			s.overflow = overflow
			ap := from.AddrPort()
			use(netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), local, m.Buffers[0][:m.N])
		}
		if n < len(room.messages) {
			return lost, nil
		}
	}
}

// wait returns when there is something to read.
func (s *Socket) wait() error {
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		_, _, failed = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err != nil {
		return err
	}
	return failed
}

// control reads the local address and the kernel's count of dropped datagrams.
func (s *Socket) control(oob []byte) (local netip.Addr, overflow uint32) {
	local, overflow = s.bound, s.overflow
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		oob = rest
		switch {
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			local = netip.AddrFrom4([4]byte(data[8:12]))
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			if a := netip.AddrFrom16([16]byte(data[:16])).Unmap(); !local.Is4() || a.Is4() {
				local = a
			}
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			overflow = binary.NativeEndian.Uint32(data)
		}
	}
	return local, overflow
}
