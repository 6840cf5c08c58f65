package datagram

import (
	"bytes"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// pattern is a datagram that tells its number and size.
func pattern(number, size int) []byte {
	b := bytes.Repeat([]byte{byte(number)}, size)
	if size > 1 {
		b[1] = byte(size)
	}
	return b
}

func TestQueue(t *testing.T) {
	sizes := map[string]func(i int) int{
		"equal":             func(int) int { return 1200 },
		"equal, last short": func(i int) int { return 1200 - i/49*700 },
		"growing":           func(i int) int { return i },
		"shrinking":         func(i int) int { return 1400 - i },
		"empty ones":        func(i int) int { return i % 2 * 100 },
		"large":             func(i int) int { return 60000 + i },
		"above a packet":    func(int) int { return 5000 },
	}
	for _, bind := range []string{"127.0.0.1", ""} {
		for name, size := range sizes {
			t.Run(name+" from "+bind, func(t *testing.T) {
				s, to := listen(t, bind), listen(t, "127.0.0.1")
				addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(to))
				for i := range 50 {
					s.Queue(pattern(i, size(i)), nil, addr)
				}
				if lost := s.Flush(); lost != (Lost{}) {
					t.Fatalf("%+v", lost)
				}
				all, _ := take(t, to, 50)
				for i, r := range all {
					if r.b != string(pattern(i, size(i))) || r.from.Port() != port(s) {
						t.Fatalf("number %d of %d bytes came as %d bytes from %v", i, size(i), len(r.b), r.from)
					}
				}
			})
		}
	}
	t.Run("peers and sources stay apart", func(t *testing.T) {
		s, a, b := listen(t, ""), listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
		to := func(s *Socket) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(s))
		}
		from := s.ReplyFrom(netip.MustParseAddr("127.0.0.9"))
		for i := range 10 {
			s.Queue(pattern(i, 500), nil, to(a))
			s.Queue(pattern(i, 500), from, to(b))
			s.Queue(pattern(i, 500), from, to(b))
		}
		_ = s.Flush()
		first, _ := take(t, a, 10)
		second, _ := take(t, b, 20)
		for i, r := range first {
			if r.b != string(pattern(i, 500)) || r.from.Addr().String() != "127.0.0.1" {
				t.Errorf("number %d came from %v", i, r.from)
			}
		}
		for i, r := range second {
			if r.b != string(pattern(i/2, 500)) || r.from.Addr().String() != "127.0.0.9" {
				t.Errorf("number %d came from %v", i, r.from)
			}
		}
	})
	t.Run("what cannot be sent is counted, the rest goes", func(t *testing.T) {
		s, to := listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
		good := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(to))
		bad := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)
		for i := range 3 {
			s.Queue(pattern(i, 10), nil, good)
			s.Queue(pattern(i, 10), nil, bad)
			s.Queue(pattern(i, 10), nil, bad)
		}
		if lost := s.Flush(); lost.Failed != 6 || lost.Refused != 0 {
			t.Errorf("%+v", lost)
		}
		if all, _ := take(t, to, 3); all[2].b != string(pattern(2, 10)) {
			t.Errorf("%q", all[2].b)
		}
	})
	t.Run("refusals are news of earlier datagrams", func(t *testing.T) {
		gone := listen(t, "127.0.0.1")
		s, err := Connected(dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(gone))))
		if err != nil {
			t.Fatal(err)
		}
		_ = gone.Close()
		var lost Lost
		for i := range 5 {
			s.Queue(pattern(i, 10), nil, netip.AddrPort{})
			l := s.Flush()
			lost.Refused += l.Refused
			lost.Failed += l.Failed
		}
		if lost.Refused < 4 || lost.Failed != 0 {
			t.Errorf("%+v", lost)
		}
	})
	t.Run("a closed socket loses all", func(t *testing.T) {
		s := listen(t, "127.0.0.1")
		_ = s.Close()
		s.Queue([]byte("x"), nil, netip.MustParseAddrPort("127.0.0.1:9"))
		if lost := s.Flush(); lost.Failed != 1 {
			t.Errorf("%+v", lost)
		}
	})
}

// A network card may be unable to cut packets up, which only sending tells.
func TestQueueWithoutOffload(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // Only Linux joins datagrams.
	}
	s, to := listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(to))
	cannotJoin(s)
	for i := range 40 {
		s.Queue(pattern(i, 1000), nil, addr)
	}
	if lost := s.Flush(); lost != (Lost{}) {
		t.Fatalf("%+v", lost)
	}
	all, _ := take(t, to, 40)
	for i, r := range all {
		if r.b != string(pattern(i, 1000)) {
			t.Fatalf("number %d came as %d bytes", i, len(r.b))
		}
	}
}

func TestQueueAllocates(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	s, to := listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(to))
	b := make([]byte, 1200)
	got := 0
	use := func(netip.AddrPort, netip.Addr, []byte) { got++ }
	n := testing.AllocsPerRun(200, func() {
		for range 8 {
			s.Queue(b, nil, addr)
		}
		_ = s.Flush()
		_ = to.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := to.ReadBatch(use); err != nil {
			t.Fatal(err)
		}
	})
	if n >= 8 { // 2 or less without the race detector, which empties pools at random
		t.Errorf("%v allocations for 8 datagrams", n)
	}
	if got < 8*200 {
		t.Errorf("%d datagrams", got)
	}
}

var _ net.Conn = (*Socket)(nil)
