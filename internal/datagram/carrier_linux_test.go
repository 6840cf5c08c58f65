package datagram

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// cannotJoin makes the kernel refuse joined datagrams: without checksums it cannot cut them up.
func cannotJoin(s *Socket) {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
}

type collect struct {
	got  []string
	ends int
}

func (c *collect) Packet(b []byte) { c.got = append(c.got, string(b)); clear(b) }
func (c *collect) BatchEnd()       { c.ends++ }

func TestCarrier(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	transport, c := Share(conn)
	if c == nil {
		t.Fatal("no carrier on Linux")
	}
	mine, other := &collect{}, &collect{}
	c.Register(7, mine)
	c.Register(8, other)
	c.Forget(8)

	peer := listen(t, "127.0.0.1")
	to := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	var marked, quic []string
	for i := range 60 {
		head := AppendHead(nil, byte(i%4), 7)
		switch i % 5 {
		case 0:
			b := append([]byte{0x40}, pattern(i, 800)...)
			quic = append(quic, string(b))
			peer.Queue(b, nil, to)
		case 1:
			peer.Queue(AppendHead(nil, 0, 8), nil, to) // of nobody, any more
			peer.Queue([]byte{Mark, 1, 2}, nil, to)    // too short
			peer.Queue(nil, nil, to)                   // empty
		default:
			b := append(head, pattern(i, 800)...)
			marked = append(marked, string(b))
			peer.Queue(b, nil, to)
		}
	}
	if lost := peer.Flush(); lost != (Lost{}) {
		t.Fatalf("%+v", lost)
	}
	ms := make([]ipv4.Message, 4)
	for i := range ms {
		ms[i] = ipv4.Message{Buffers: [][]byte{make([]byte, 1452)}, OOB: make([]byte, 128)}
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	read := transport.(interface {
		ReadBatch([]ipv4.Message, int) (int, error)
	})
	var got []string
	for len(got) < len(quic) {
		n, err := read.ReadBatch(ms, 0)
		if err != nil {
			t.Fatalf("%v after %d of %d", err, len(got), len(quic))
		}
		for _, m := range ms[:n] {
			got = append(got, string(bytes.Clone(m.Buffers[0][:m.N])))
			if m.Addr.String() != (&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port(peer))}).String() {
				t.Errorf("from %v", m.Addr)
			}
		}
	}
	// What is marked may follow the last packet of QUIC.
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = read.ReadBatch(ms, 0)
	if !slices.Equal(got, quic) {
		t.Errorf("%d packets of QUIC, %d sent", len(got), len(quic))
	}
	if !slices.Equal(mine.got, marked) || mine.ends == 0 || mine.ends > len(marked) {
		t.Errorf("%d marked packets in %d batches, %d sent", len(mine.got), mine.ends, len(marked))
	}
	if len(other.got) != 0 {
		t.Error("a forgotten receiver got packets")
	}
	if a := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(peer)); c.from != a {
		t.Errorf("from %v", c.from)
	}
}
