package datagram

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize is how many packets one system call takes; with GRO each may hold several datagrams.
const batchSize = 16

// oobSize holds the local address, the size of what the kernel joined, ECN marks and the count of
// datagrams that the kernel dropped.
const oobSize = 128

// mmsghdr is one entry of recvmmsg and sendmmsg.
type mmsghdr struct {
	unix.Msghdr
	n uint32
}

// buffers is room for a batch of packets. Sockets share them: one without traffic holds none.
type buffers struct {
	headers [batchSize]mmsghdr
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6
	oob     [batchSize][oobSize]byte
	data    [batchSize][]byte
}

var bufferPool = sync.Pool{New: func() any {
	b := &buffers{}
	for i := range b.data {
		b.data[i] = make([]byte, 1<<16)
		b.vectors[i].Base = &b.data[i][0]
		b.vectors[i].SetLen(len(b.data[i]))
		h := &b.headers[i].Msghdr
		h.Iov = &b.vectors[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Control = &b.oob[i][0]
	}
	return b
}}

// packet is what one entry of a batch brought: a datagram, or several of one size that the kernel
// joined, the last perhaps shorter.
type packet struct {
	from  netip.AddrPort
	local netip.Addr
	oob   []byte
	data  []byte
	size  int
}

// next takes the first datagram off.
func (p *packet) next() []byte {
	b := p.data
	if p.size > 0 && p.size < len(b) {
		b = b[:p.size:p.size]
	}
	p.data = p.data[len(b):]
	return b
}

// batch reads several datagrams at a time. All of it belongs to the goroutine that reads.
type batch struct {
	raw syscall.RawConn
	// overflow is the kernel's count of dropped datagrams when last told.
	overflow uint32

	room *buffers
	n    int
	err  error
	// read is readNow, bound once: it would be allocated for each call.
	read func(fd uintptr) bool

	send sender
}

func (s *Socket) open() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	s.raw, s.read = raw, s.readNow
	return raw.Control(func(fd uintptr) {
		// Where the kernel has it, equal datagrams that came together are read as one packet.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1)
		s.send.open(int(fd))
	})
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

// ReadBatch waits for datagrams, hands a batch of those that are there to use (b is valid during
// the call only) and returns, with the number that the kernel dropped. It never waits with a batch
// in hand: what the caller makes of it is often still to be flushed.
func (s *Socket) ReadBatch(use func(from netip.AddrPort, local netip.Addr, b []byte)) (lost int, err error) {
	n, err := s.fill()
	if err != nil {
		return 0, err
	}
	for i := range n {
		p := s.packet(i, &lost)
		for more := p.from.IsValid(); more; more = len(p.data) > 0 {
			use(p.from, p.local, p.next())
		}
	}
	s.release()
	return lost, nil
}

// fill waits for packets and reads a batch of them; release gives the room back.
func (s *Socket) fill() (n int, err error) {
	if err := s.raw.Read(s.read); err != nil {
		return 0, err
	}
	return s.n, s.err
}

// readNow reads what there is; false when that is nothing. It takes room only then: who waits
// holds none.
func (s *Socket) readNow(fd uintptr) bool {
	r := bufferPool.Get().(*buffers)
	for i := range r.headers {
		h := &r.headers[i].Msghdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(oobSize)
		h.Flags = 0
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.headers)), batchSize, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		bufferPool.Put(r)
		s.n, s.err = 0, errno
		return errno != unix.EAGAIN && errno != unix.EINTR
	}
	s.room, s.n, s.err = r, int(n), nil
	return true
}

func (s *Socket) release() {
	bufferPool.Put(s.room)
	s.room = nil
}

// packet is entry i of the batch; lost grows by what the kernel dropped before it.
func (s *Socket) packet(i int, lost *int) packet {
	h := &s.room.headers[i]
	p := packet{
		from: readAddr(&s.room.names[i], h.Namelen), local: s.bound,
		oob: s.room.oob[i][:h.Controllen], data: s.room.data[i][:h.n],
	}
	for oob := p.oob; len(oob) > 0; {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		oob = rest
		switch {
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			p.local = netip.AddrFrom4([4]byte(data[8:12]))
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			if a := netip.AddrFrom16([16]byte(data[:16])).Unmap(); !p.local.Is4() || a.Is4() {
				p.local = a
			}
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			p.size = int(binary.NativeEndian.Uint32(data))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			overflow := binary.NativeEndian.Uint32(data)
			*lost += int(overflow - s.overflow)
			s.overflow = overflow
		}
	}
	return p
}

// readAddr is the address that the kernel wrote; the zero value if it is not one of IP.
func readAddr(name *unix.RawSockaddrInet6, n uint32) netip.AddrPort {
	switch {
	case name.Family == unix.AF_INET && n >= unix.SizeofSockaddrInet4:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), ntohs(a.Port))
	case name.Family == unix.AF_INET6 && n >= unix.SizeofSockaddrInet6:
		a := netip.AddrFrom16(name.Addr).Unmap()
		if name.Scope_id != 0 && a.Is6() {
			a = a.WithZone(zoneName(name.Scope_id))
		}
		return netip.AddrPortFrom(a, ntohs(name.Port))
	}
	return netip.AddrPort{}
}

// ntohs turns a number of the network's order, which is kept as it lies in memory.
func ntohs(n uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return binary.BigEndian.Uint16(b[:])
}

// Zones are few, and looking one up asks the kernel.
var zones sync.Map

func zoneName(id uint32) string {
	if name, ok := zones.Load(id); ok {
		return name.(string)
	}
	ifi, err := net.InterfaceByIndex(int(id))
	if err != nil {
		return ""
	}
	zones.Store(id, ifi.Name)
	return ifi.Name
}

func zoneID(name string) uint32 {
	var id uint32
	zones.Range(func(k, v any) bool {
		if v.(string) == name {
			id = k.(uint32)
		}
		return id == 0
	})
	return id
}
