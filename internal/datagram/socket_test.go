package datagram

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type received struct {
	from  netip.AddrPort
	local netip.Addr
	b     string
}

// take reads until n datagrams came and returns them with the number lost.
func take(t *testing.T, s *Socket, n int) (all []received, lost int) {
	t.Helper()
	_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
	for len(all) < n {
		l, err := s.ReadBatch(func(from netip.AddrPort, local netip.Addr, b []byte) {
			all = append(all, received{from, local, string(b)})
		})
		lost += l
		if err != nil {
			t.Fatalf("%v after %d of %d", err, len(all), n)
		}
	}
	return all, lost
}

func listen(t *testing.T, addr string) *Socket {
	t.Helper()
	var a netip.Addr
	if addr != "" {
		a = netip.MustParseAddr(addr)
	}
	s, err := Listen(a, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func port(s *Socket) uint16 { return s.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func dial(t *testing.T, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestReadBatch(t *testing.T) {
	s := listen(t, "127.0.0.1")
	c := dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(s)))
	for i := range 100 {
		if _, err := c.Write(make([]byte, i)); err != nil {
			t.Fatal(err)
		}
	}
	all, lost := take(t, s, 100)
	for i, r := range all {
		if len(r.b) != i || r.from != c.LocalAddr().(*net.UDPAddr).AddrPort() || r.local.String() != "127.0.0.1" {
			t.Fatalf("number %d: %+v", i, r)
		}
	}
	if lost != 0 {
		t.Errorf("%d lost", lost)
	}
}

// A caller that answers after each batch, and a peer that waits for the answers, must not wait for
// each other, however many datagrams there are.
func TestReadBatchReturns(t *testing.T) {
	s := listen(t, "127.0.0.1")
	c := dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(s)))
	for n := 1; n <= 64; n++ {
		for range n {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		take(t, s, n)
	}
}

func TestLocalAddress(t *testing.T) {
	s := listen(t, "")
	hosts := []string{"127.0.0.1", "127.3.2.1"}
	if c, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		_ = c.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		c := dial(t, netip.AddrPortFrom(netip.MustParseAddr(host), port(s)))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		all, _ := take(t, s, 1)
		if all[0].local.String() != host {
			t.Errorf("sent to %s, told %s", host, all[0].local)
		}
		s.Queue([]byte("y"), s.ReplyFrom(all[0].local), all[0].from)
		if lost := s.Flush(); lost != (Lost{}) {
			t.Fatalf("%+v", lost)
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 2)); err != nil {
			t.Errorf("no reply from %s: %v", host, err)
		}
	}
}

func TestKernelDropsAreCounted(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // Only Linux tells.
	}
	s := listen(t, "127.0.0.1")
	if err := s.SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	c := dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(s)))
	for range 500 {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	got, lost := 0, 0
	_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
	for got+lost < 501 {
		// The kernel tells with the next datagram that it keeps.
		if got > 0 && lost == 0 {
			if _, err := c.Write([]byte("tell")); err != nil {
				t.Fatal(err)
			}
		}
		l, err := s.ReadBatch(func(netip.AddrPort, netip.Addr, []byte) { got++ })
		if err != nil {
			t.Fatalf("%v after %d, %d lost", err, got, lost)
		}
		lost += l
	}
	if lost < 100 || got+lost != 501 {
		t.Errorf("%d arrived, %d lost", got, lost)
	}
}

func TestConnected(t *testing.T) {
	origin := listen(t, "127.0.0.1")
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(origin))
	s, err := Connected(dial(t, to))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	asked, _ := take(t, origin, 1)
	origin.Queue([]byte("y"), origin.ReplyFrom(asked[0].local), asked[0].from)
	if lost := origin.Flush(); lost != (Lost{}) {
		t.Fatalf("%+v", lost)
	}
	if all, _ := take(t, s, 1); all[0].b != "y" || all[0].from != to {
		t.Errorf("%+v", all[0])
	}
	t.Run("a refusal is an error that does not end the socket", func(t *testing.T) {
		_ = origin.Close()
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.ReadBatch(func(netip.AddrPort, netip.Addr, []byte) {}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v", err)
		}
		again, err := Listen(to.Addr(), to.Port())
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if _, err := s.Write([]byte("z")); err != nil {
			t.Fatal(err)
		}
		if all, _ := take(t, again, 1); all[0].b != "z" {
			t.Errorf("%+v", all[0])
		}
	})
}

func TestCloseEndsRead(t *testing.T) {
	s := listen(t, "127.0.0.1")
	done := make(chan error)
	go func() {
		_, err := s.ReadBatch(func(netip.AddrPort, netip.Addr, []byte) {})
		done <- err
	}()
	_ = s.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestListenBusy(t *testing.T) {
	s := listen(t, "127.0.0.1")
	if other, err := Listen(netip.MustParseAddr("127.0.0.1"), port(s)); err == nil {
		_ = other.Close()
		t.Error("a port was bound twice")
	}
}
