package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

func TestExchange(t *testing.T) {
	r := &replica{id: "A"}
	b := start(t, nil, r)
	port := uint32(freeport.Run(t, 1))
	b.mustSet(t, testTunnel("t1", port, 1))
	c := visit(t, "127.0.0.1", port)
	for _, n := range []int{0, 1, 1200, 1472, 8000, 65506} {
		if got := ask(t, c, strings.Repeat("x", n), soon); len(got) != n+1 {
			t.Fatalf("%d bytes were answered by %d", n, len(got))
		}
	}
	if r.live() != 1 || b.Flows() != 1 {
		t.Errorf("%d flows at the replica, %d here", r.live(), b.Flows())
	}
	h := r.opened()[0].header
	if h.VisitorAddress != c.LocalAddr().String() || h.EdgeAddress != c.RemoteAddr().String() || h.TunnelId != "t1" {
		t.Errorf("header %v", h)
	}
	other := visit(t, "127.0.0.1", port)
	ask(t, other, "x", soon)
	if r.live() != 2 {
		t.Errorf("two visitors have %d flows", r.live())
	}
	t.Run("D09 the socket lives as long as its tunnel, not the call that made it", func(t *testing.T) {
		tun := testTunnel("t2", uint32(freeport.Run(t, 1)), 1)
		done := make(chan error)
		go func() { done <- b.Set(tun) }()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		c := visit(t, "127.0.0.1", tun.Port)
		if got := ask(t, c, "x", soon); got != "Ax" {
			t.Errorf("%q", got)
		}
		b.Remove("t2")
		l, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", tun.Port))
		if err != nil {
			t.Fatalf("the port is still held: %v", err)
		}
		_ = l.Close()
		b.mustSet(t, tun)
	})
}

func TestRange(t *testing.T) {
	r := &replica{id: "A"}
	b := start(t, nil, r)
	port := uint32(freeport.Run(t, 5))
	b.mustSet(t, testTunnel("t1", port, 5))
	for _, at := range []uint32{port, port + 2, port + 4} {
		c := visit(t, "127.0.0.1", at)
		if got := ask(t, c, "x", soon); got != "Ax" {
			t.Errorf("port %d: %q", at, got)
		}
		fs := r.opened()
		if want := fmt.Sprintf("127.0.0.1:%d", at); fs[len(fs)-1].header.EdgeAddress != want {
			t.Errorf("the agent is told %s, not %s", fs[len(fs)-1].header.EdgeAddress, want)
		}
	}
	if got := ask(t, visit(t, "127.0.0.1", port+5), "x", 50*time.Millisecond); got != "" {
		t.Errorf("the port after the range answers %q", got)
	}
}

func TestReplySource(t *testing.T) {
	r := &replica{id: "A"}
	b := start(t, func(c *Config) { c.Address = netip.Addr{} }, r)
	port := uint32(freeport.Run(t, 1))
	b.mustSet(t, testTunnel("t1", port, 1))
	hosts := []string{"127.0.0.1", "127.0.0.2", "127.77.1.9"}
	if c, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		_ = c.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		// A connected socket hears only the address it sends to.
		if got := ask(t, visit(t, host, port), "x", soon); got != "Ax" {
			t.Errorf("%s: %q", host, got)
		}
	}
	// One visitor socket, two of our addresses: each answers for itself.
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, host := range hosts[:3] {
		to := netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port))
		if _, err := c.WriteToUDPAddrPort([]byte("y"), to); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(soon))
		_, from, err := c.ReadFromUDPAddrPort(make([]byte, 10))
		if err != nil || from != to {
			t.Errorf("asked %s, answered by %s, %v", to, from, err)
		}
	}
}

func TestIdle(t *testing.T) {
	r := &replica{id: "A"}
	b := start(t, nil, r)
	port := uint32(freeport.Run(t, 2))
	b.mustSet(t, testTunnel("t1", port, 1))
	short := testTunnel("dns", port+1, 1)
	short.Origins[0].IdleTimeoutSeconds = 5
	b.mustSet(t, short)
	pass := func(d time.Duration) { b.clock.Add(int64(d)); b.sweep() }

	c := visit(t, "127.0.0.1", port)
	ask(t, c, "x", soon)
	f := r.opened()[0]
	t.Run("D11 idle for 119 s, then a reply of the origin", func(t *testing.T) {
		pass(119 * time.Second)
		f.receive([]byte("late"))
		if got := hear(t, c, soon); got != "late" {
			t.Errorf("%q", got)
		}
		pass(119 * time.Second) // The reply counts as use.
		if b.Flows() != 1 {
			t.Error("the flow ended too early")
		}
		pass(2 * time.Second)
		if b.Flows() != 0 || r.live() != 0 {
			t.Errorf("%d flows after 121 s, %d at the replica", b.Flows(), r.live())
		}
	})
	t.Run("D11 a tunnel may ask for less", func(t *testing.T) {
		ask(t, visit(t, "127.0.0.1", port+1), "x", soon)
		pass(4 * time.Second)
		if b.Flows() != 1 {
			t.Error("ended too early")
		}
		pass(2 * time.Second)
		if b.Flows() != 0 {
			t.Error("still there after 6 s")
		}
	})
}

func TestCaps(t *testing.T) {
	r := &replica{id: "A"}
	b := start(t, func(c *Config) { c.MaxFlows, c.MaxPerSource = 5, 3 }, r)
	port := uint32(freeport.Run(t, 1))
	b.mustSet(t, testTunnel("t1", port, 1))
	from := func(ip string) *net.UDPConn {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)}, &net.UDPAddr{IP: net.ParseIP("127.0.0.1"), Port: int(port)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var first *net.UDPConn
	for i := range 3 {
		c := from("127.0.0.1")
		if ask(t, c, "x", soon) == "" {
			t.Fatal("no answer")
		}
		if i == 0 {
			first = c
		}
	}
	if _, err := from("127.0.0.1").Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cap of a source counted", func() bool { return b.drops(dropMaxPerSource) == 1 })
	ask(t, from("127.0.0.2"), "x", soon)
	ask(t, from("127.0.0.2"), "x", soon)
	if _, err := from("127.0.0.3").Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cap of the port counted", func() bool { return b.drops(dropMaxFlows) == 1 })
	if got := ask(t, first, "y", soon); got != "Ay" {
		t.Errorf("an existing flow beside the caps: %q", got)
	}
	b.clock.Add(int64(time.Hour))
	b.sweep()
	if got := ask(t, from("127.0.0.1"), "z", soon); got != "Az" {
		t.Errorf("after the flows ended: %q", got)
	}
	if n := testutil.ToFloat64(b.metrics.flows); n != 1 {
		t.Errorf("the gauge says %v flows", n)
	}
}

func TestSourceOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := sourceOf(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("%s counts as %s, want %s", in, got, want)
		}
	}
}

func TestReplicas(t *testing.T) {
	t.Run("none is counted, and found when it comes", func(t *testing.T) {
		b := start(t, nil)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		_, _ = c.Write([]byte("x"))
		eventually(t, "counted", func() bool { return b.drops(dropNoAgent) == 1 })
		b.source.set(&replica{id: "A"})
		if got := ask(t, c, "y", soon); got != "Ay" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a flow moves when its replica leaves", func(t *testing.T) {
		a, z := &replica{id: "A"}, &replica{id: "Z"}
		b := start(t, nil, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		ask(t, c, "x", soon)
		b.source.set(a, z)
		b.ReplicasChanged()
		if got := ask(t, c, "x", soon); got != "Ax" {
			t.Errorf("moved without need: %q", got)
		}
		b.source.set(z)
		b.ReplicasChanged()
		if got := ask(t, c, "x", soon); got != "Zx" {
			t.Errorf("%q", got)
		}
		a.opened()[0].receive([]byte("late"))
		if got := hear(t, c, soon); got != "late" {
			t.Errorf("a reply on its way: %q", got)
		}
		b.clock.Add(int64(lateReplies))
		b.sweep()
		if a.live() != 0 {
			t.Error("the old flow goes on")
		}
		b.source.set() // Alone, it may come back: the flow waits.
		b.ReplicasChanged()
		if z.live() != 1 {
			t.Error("ended although there is nowhere to go")
		}
	})
	t.Run("D08 the agent ends a flow and the next datagram opens another", func(t *testing.T) {
		a := &replica{id: "A"}
		b := start(t, nil, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		ask(t, c, "x", soon)
		_ = a.opened()[0].Close()
		if got := ask(t, c, "y", soon); got != "Ay" || len(a.opened()) != 2 {
			t.Errorf("%q over %d flows", got, len(a.opened()))
		}
	})
	t.Run("the least loaded replica is taken, a broken one passed over", func(t *testing.T) {
		broken, a := &replica{id: "B", broken: true}, &replica{id: "A"}
		b := start(t, nil, broken, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		for range 8 {
			if got := ask(t, visit(t, "127.0.0.1", port), "x", soon); got != "Ax" {
				t.Errorf("%q", got)
			}
		}
	})
	t.Run("after a refusal another replica is asked", func(t *testing.T) {
		a, z := &replica{id: "A", refusal: reason.New(reason.RateLimited, reason.HopAgent, "full")}, &replica{id: "Z"}
		b := start(t, nil, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		_, _ = c.Write([]byte("x"))
		eventually(t, "asked", func() bool { return len(a.opened()) == 1 })
		b.source.set(a, z)
		if got := ask(t, c, "y", soon); got != "Zy" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a refusal is not asked for again at once", func(t *testing.T) {
		a := &replica{id: "A", refusal: reason.New(reason.OriginDenied, reason.HopAgent, "not that target")}
		b := start(t, nil, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		for range 10 {
			_, _ = c.Write([]byte("x"))
		}
		eventually(t, "counted", func() bool { return b.drops(dropRefused) >= 9 })
		if n := len(a.opened()); n > 1 {
			t.Errorf("%d flows opened", n)
		}
		b.clock.Add(int64(2 * holdOff))
		_, _ = c.Write([]byte("x"))
		eventually(t, "asked again", func() bool { return len(a.opened()) == 2 })
		_ = b.Close()
		if !strings.Contains(b.log.String(), "not that target") {
			t.Errorf("the log does not say why: %s", b.log)
		}
	})
}

func TestSet(t *testing.T) {
	a := &replica{id: "A"}
	b := start(t, nil, a)
	port := uint32(freeport.Run(t, 4))
	b.mustSet(t, testTunnel("other", port+3, 1))
	b.mustSet(t, testTunnel("t1", port, 1))
	c := visit(t, "127.0.0.1", port)
	other := visit(t, "127.0.0.1", port+3)
	ask(t, c, "x", soon)
	ask(t, other, "x", soon)

	same := func(t *testing.T, what string) {
		t.Helper()
		if got := ask(t, c, "x", soon); got != "Ax" {
			t.Errorf("%s: %q", what, got)
		}
		if ask(t, other, "x", soon); len(a.opened()) != 2 {
			t.Errorf("%s: %d flows opened", what, len(a.opened()))
		}
	}
	t.Run("growing to a range keeps the port and its flows", func(t *testing.T) {
		b.mustSet(t, testTunnel("t1", port, 2))
		same(t, "a wider range")
	})
	t.Run("a busy port leaves all as it was", func(t *testing.T) {
		busy, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port + 2)})
		if err != nil {
			t.Fatal(err)
		}
		err = b.Set(testTunnel("t1", port, 3))
		if !reason.Is(err, reason.PortUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(port+2)) {
			t.Errorf("error %v", err)
		}
		same(t, "a busy port")
		_ = busy.Close()
		b.mustSet(t, testTunnel("t1", port, 3))
		same(t, "free again")
	})
	t.Run("a new name changes nothing", func(t *testing.T) {
		tun := testTunnel("t1", port, 1)
		tun.Name = "renamed"
		b.mustSet(t, tun)
		same(t, "a new name")
		l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port + 1)})
		if err != nil {
			t.Fatalf("a port that left the range is still held: %v", err)
		}
		_ = l.Close()
	})
	t.Run("another origin ends its flows", func(t *testing.T) {
		tun := testTunnel("t1", port, 1)
		tun.Origins[0].Url = "udp://127.0.0.1:10"
		b.mustSet(t, tun)
		if got := ask(t, c, "x", soon); got != "Ax" || len(a.opened()) != 3 {
			t.Errorf("%q, %d flows opened", got, len(a.opened()))
		}
	})
	t.Run("what is not public is denied, running flows too", func(t *testing.T) {
		tun := testTunnel("t1", port, 1)
		tun.Access = nil
		b.mustSet(t, tun)
		if a.live() != 1 {
			t.Errorf("%d flows live", a.live())
		}
		_, _ = c.Write([]byte("x"))
		eventually(t, "counted", func() bool { return b.drops(dropDenied) == 1 })
	})
	t.Run("refused settings", func(t *testing.T) {
		for what, change := range map[string]func(*hubv1.Tunnel){
			"kind":    func(t *hubv1.Tunnel) { t.Kind = wirev1.Kind_KIND_TCP },
			"port":    func(t *hubv1.Tunnel) { t.Port = 0 },
			"range":   func(t *hubv1.Tunnel) { t.PortLast = t.Port - 1 },
			"number":  func(t *hubv1.Tunnel) { t.PortLast = 70000 },
			"address": func(t *hubv1.Tunnel) { t.Address = "here" },
		} {
			tun := testTunnel("bad", port, 1)
			change(tun)
			if err := b.Set(tun); !reason.Is(err, reason.Invalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("after Close", func(t *testing.T) {
		_ = b.Close()
		if err := b.Set(testTunnel("late", port, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

func TestBurst(t *testing.T) {
	t.Run("D07 burst of 500 datagrams at the public port", func(t *testing.T) {
		a := &replica{id: "A"}
		b := start(t, nil, a)
		port := uint32(freeport.Run(t, 1))
		b.mustSet(t, testTunnel("t1", port, 1))
		c := visit(t, "127.0.0.1", port)
		for range 500 {
			if _, err := c.Write(make([]byte, 1200)); err != nil {
				t.Fatal(err)
			}
		}
		// All arrive, or the kernel's drops are counted once the next datagram tells of them.
		eventually(t, "all accounted for", func() bool {
			var got int64
			for _, f := range a.opened() {
				got += f.got.Load()
			}
			if float64(got)+b.drops(dropSocketFull) >= 500 {
				return true
			}
			_, _ = c.Write([]byte("x"))
			return false
		})
	})
}
