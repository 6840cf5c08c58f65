package datagram

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// queueLen and queueBytes bound what waits for Flush.
	queueLen   = 32
	queueBytes = 60 << 10
	// maxJoined bounds what one packet joins of equal datagrams; the kernel takes 64.
	maxJoined = queueLen
	// maxSegment is the largest datagram that is joined with others: what fits a packet of any
	// network card. Larger ones are cut up by IP, which the kernel does one by one only.
	maxSegment = 1472
)

// sender sends datagrams in batches: one system call for many (sendmmsg), and one packet for
// those of one size to one address (UDP_SEGMENT), which the kernel cuts up as late as it can.
type sender struct {
	mu sync.Mutex
	// six: the socket is of IPv6, so that IPv4 addresses are written as mapped ones.
	six bool
	// single: the network card cannot cut up packets; datagrams go one by one.
	single bool
	lost   Lost
	q      *outgoing
	// write is writeNow, bound once: it would be allocated for each call.
	write func(fd uintptr)
	sent  int
	errno unix.Errno
}

// outgoing is a batch that fills. Sockets share them: one that has sent holds none.
type outgoing struct {
	data []byte
	size [queueLen]int
	to   [queueLen]netip.AddrPort
	from [queueLen][]byte
	n    int

	headers [queueLen]mmsghdr
	vectors [queueLen]unix.Iovec
	names   [queueLen]unix.RawSockaddrInet6
	oob     [queueLen][oobSize]byte
	// first is the first datagram of each packet.
	first [queueLen + 1]int
	// packets is how many there are, done how many of them are dealt with.
	packets, done int
}

var outgoingPool = sync.Pool{New: func() any { return &outgoing{data: make([]byte, 0, queueBytes)} }}

func (s *sender) open(fd int) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	s.six = err == nil && domain == unix.AF_INET6
	s.write = s.writeNow
	_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	s.single = err != nil
}

// Queue appends a copy of b to what Flush sends, to a peer (the zero value on a connected socket)
// with the control message that ReplyFrom made. When the batch is full it is sent at once.
func (s *Socket) Queue(b, from []byte, to netip.AddrPort) {
	s.send.mu.Lock()
	defer s.send.mu.Unlock()
	q := s.send.q
	if q != nil && (q.n == queueLen || len(q.data)+len(b) > queueBytes) {
		s.flush()
		q = nil
	}
	if q == nil {
		q = outgoingPool.Get().(*outgoing)
		s.send.q = q
	}
	q.data = append(q.data, b...)
	q.size[q.n], q.to[q.n], q.from[q.n] = len(b), to, from
	q.n++
}

// Flush sends what is queued and never waits: what the kernel has no room for is lost. It returns
// what was lost since the last call.
func (s *Socket) Flush() Lost {
	s.send.mu.Lock()
	defer s.send.mu.Unlock()
	if s.send.q != nil {
		s.flush()
	}
	lost := s.send.lost
	s.send.lost = Lost{}
	return lost
}

// flush sends the batch. The caller holds mu.
func (s *Socket) flush() {
	x := &s.send
	q := x.q
	q.join(x.six, x.single)
	for again := false; q.done < q.packets; {
		if s.raw.Control(x.write) != nil { // closed
			x.lost.Failed += q.n - q.first[q.done]
			break
		}
		if x.errno == 0 {
			q.done += x.sent
			again = false
			continue
		}
		if again = x.failed(x.errno, again); !again {
			q.done++
		}
	}
	q.data, q.n = q.data[:0], 0
	clear(q.from[:])
	outgoingPool.Put(q)
	x.q = nil
}

// writeNow sends the packets that are left.
func (s *sender) writeNow(fd uintptr) {
	q := s.q
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&q.headers[q.done])), uintptr(q.packets-q.done), unix.MSG_DONTWAIT, 0, 0)
	s.sent, s.errno = int(n), errno
}

// failed deals with the packet that could not be sent, and reports whether to try it once more.
func (s *sender) failed(errno unix.Errno, again bool) bool {
	q := s.q
	first, end := q.first[q.done], q.first[q.done+1]
	switch {
	case errno == unix.EINTR:
		return true
	case errno == unix.ECONNREFUSED:
		// Tells of an earlier datagram; this one was not sent yet.
		s.lost.Refused++
		return !again
	case end-first > 1 && errno != unix.EAGAIN && errno != unix.ENOBUFS:
		// The path cannot take it cut up: these datagrams, or with this network card (EIO) any.
		s.single = s.single || errno == unix.EIO
		q.separate(s.six)
		return true
	}
	s.lost.Failed += end - first
	return false
}

// join makes packets of the datagrams: one of those that follow each other with one size, one
// peer and one source.
func (q *outgoing) join(six, single bool) {
	q.packets, q.done = 0, 0
	at := 0
	for i := 0; i < q.n; {
		end, size := i+1, q.size[i]
		total := size
		for !single && end < q.n && size > 0 && size <= maxSegment && end-i < maxJoined &&
			q.size[end] > 0 && q.size[end] <= size && q.to[end] == q.to[i] && same(q.from[end], q.from[i]) {
			total += q.size[end]
			end++
			if q.size[end-1] < size {
				break // A shorter one can only be the last.
			}
		}
		q.packet(i, end, at, total, six)
		at += total
		i = end
	}
	q.first[q.packets] = q.n
}

// separate makes packets of one datagram each of what is left.
func (q *outgoing) separate(six bool) {
	first := q.first[q.done]
	at := 0
	for i := range first {
		at += q.size[i]
	}
	q.packets, q.done = 0, 0
	for i := first; i < q.n; i++ {
		q.packet(i, i+1, at, q.size[i], six)
		at += q.size[i]
	}
	q.first[q.packets] = q.n
}

// packet adds a packet of the datagrams i to end, whose bytes begin at at.
func (q *outgoing) packet(i, end, at, total int, six bool) {
	k := q.packets
	q.packets++
	q.first[k] = i
	h := &q.headers[k].Msghdr
	*h = unix.Msghdr{Iov: &q.vectors[k]}
	h.SetIovlen(1)
	q.vectors[k] = unix.Iovec{}
	if total > 0 {
		q.vectors[k].Base = &q.data[at]
		q.vectors[k].SetLen(total)
	}
	if q.to[i].IsValid() {
		h.Name = (*byte)(unsafe.Pointer(&q.names[k]))
		h.Namelen = writeAddr(&q.names[k], q.to[i], six)
	}
	oob := append(q.oob[k][:0], q.from[i]...)
	if end-i > 1 {
		oob = appendSegment(oob, q.size[i])
	}
	if len(oob) > 0 {
		h.Control = &q.oob[k][0]
		h.SetControllen(len(oob))
	}
}

func same(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// appendSegment appends the control message that tells the size of the datagrams in a packet.
func appendSegment(b []byte, size int) []byte {
	start := len(b)
	b = append(b, make([]byte, unix.CmsgSpace(2))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[start]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[start+unix.CmsgLen(0):], uint16(size))
	return b
}

// writeAddr writes to as the socket's family needs it and returns its length.
func writeAddr(name *unix.RawSockaddrInet6, to netip.AddrPort, six bool) uint32 {
	if !six {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(name)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: ntohs(to.Port()), Addr: to.Addr().Unmap().As4()}
		return unix.SizeofSockaddrInet4
	}
	*name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: ntohs(to.Port()), Addr: to.Addr().As16()}
	if z := to.Addr().Zone(); z != "" {
		name.Scope_id = zoneID(z)
	}
	return unix.SizeofSockaddrInet6
}
