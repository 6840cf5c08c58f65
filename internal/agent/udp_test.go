package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// udpTestFlow is what comes back from the agent.
type udpTestFlow struct {
	got    chan string
	done   chan struct{}
	closed atomic.Bool
	after  func()
}

func newUDPTestFlow() *udpTestFlow {
	return &udpTestFlow{got: make(chan string, 2000), done: make(chan struct{})}
}

func (f *udpTestFlow) Send(b []byte) error {
	if f.closed.Load() {
		return net.ErrClosed
	}
	f.got <- string(b)
	return nil
}

func (f *udpTestFlow) Queue(b []byte) error { return f.Send(b) }

func (f *udpTestFlow) Flush() {}

func (f *udpTestFlow) AfterBatch(done func()) { f.after = done }

func (f *udpTestFlow) Close() error {
	if f.closed.CompareAndSwap(false, true) {
		close(f.done)
	}
	return nil
}

func (f *udpTestFlow) Done() <-chan struct{} { return f.done }

func (f *udpTestFlow) Refusal() *reason.Error { return nil }

func (f *udpTestFlow) next(t *testing.T) string {
	t.Helper()
	select {
	case b := <-f.got:
		return b
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came back")
		return ""
	}
}

// udpBench is a flow server over real sockets with a clock of its own.
type udpBench struct {
	*flowServer
	clock   atomic.Int64
	targets func(h *wirev1.StreamHeader) (udpTarget, *reason.Error)
}

// plainUDPDialer dials without a guard.
type plainUDPDialer struct{ dials atomic.Int64 }

func (d *plainUDPDialer) DialUDP(ctx context.Context, s *origin.Spec, port uint16) (*net.UDPConn, error) {
	d.dials.Add(1)
	if s.Port != 0 {
		port = s.Port
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(s.Host, fmt.Sprint(port)))
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

func newUDPBench(t *testing.T, dialer udpDialer, target udpTarget) *udpBench {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	b := &udpBench{targets: func(*wirev1.StreamHeader) (udpTarget, *reason.Error) { return target, nil }}
	b.clock.Store(time.Now().UnixNano())
	b.flowServer = newFlowServer(func(h *wirev1.StreamHeader) (udpTarget, *reason.Error) { return b.targets(h) },
		dialer, newMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	b.now = func() time.Time { return time.Unix(0, b.clock.Load()) }
	t.Cleanup(func() {
		b.close()
		if n := testutil.ToFloat64(b.m.streams); n != 0 {
			t.Errorf("the gauge says %v streams", n)
		}
		goleak.VerifyNone(t, ignore)
	})
	return b
}

func (b *udpBench) open(t *testing.T) (*udpTestFlow, func([]byte)) {
	t.Helper()
	f := newUDPTestFlow()
	receive, e := b.ServeFlow(f, &wirev1.StreamHeader{TunnelId: "t1", VisitorAddress: "192.0.2.7:1234", EdgeAddress: "198.51.100.1:3478"})
	if e != nil {
		t.Fatal(e)
	}
	return f, func(b []byte) { receive(b); f.after() }
}

func (b *udpBench) pass(d time.Duration) { b.clock.Add(int64(d)); b.sweep() }

func (b *udpBench) drops(why string) float64 {
	return testutil.ToFloat64(b.m.dropped.WithLabelValues(why))
}

// udpEcho answers "<source port> <datagram>" until the test ends.
func udpEcho(t *testing.T, port int) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return c
}

func udpTargetOf(c *net.UDPConn) udpTarget {
	return udpTarget{spec: &origin.Spec{Scheme: "udp", Host: "127.0.0.1", Port: uint16(c.LocalAddr().(*net.UDPAddr).Port)}}
}

func udpEventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func TestUDPExchange(t *testing.T) {
	b := newUDPBench(t, &plainUDPDialer{}, udpTargetOf(udpEcho(t, 0)))
	f, receive := b.open(t)
	for _, n := range []int{0, 1, 1200, 1472, 8000, 65507} {
		t.Run(fmt.Sprintf("D10 %d bytes", n), func(t *testing.T) {
			receive(bytes.Repeat([]byte("x"), n))
			if got := f.next(t); len(got) != n {
				t.Errorf("%d bytes came back", len(got))
			}
		})
	}
	t.Run("a flow is busy for a moment only", func(t *testing.T) {
		if b.busy() != 1 {
			t.Error("not busy right after its datagrams")
		}
		b.clock.Add(int64(time.Second))
		if b.busy() != 0 || b.active() != 1 {
			t.Error("still busy after a second of silence")
		}
	})
	t.Run("a visitor's end ends the socket", func(t *testing.T) {
		_ = f.Close()
		udpEventually(t, "flow gone", func() bool { b.sweep(); return b.active() == 0 })
	})
}

func TestUDPBurst(t *testing.T) {
	t.Run("D07 a burst waits for the origin to be dialled", func(t *testing.T) {
		slow := &slowUDPDialer{udpDialer: &plainUDPDialer{}, held: make(chan struct{})}
		b := newUDPBench(t, slow, udpTargetOf(udpEcho(t, 0)))
		f, receive := b.open(t)
		for i := range 500 {
			receive(fmt.Appendf(nil, "%04d%s", i, strings.Repeat("x", 1100)))
		}
		close(slow.held)
		for i := range 500 {
			if got := f.next(t); got[:4] != fmt.Sprintf("%04d", i) {
				t.Fatalf("number %d is %s", i, got[:4])
			}
		}
	})
	t.Run("what waits is bounded and counted", func(t *testing.T) {
		slow := &slowUDPDialer{udpDialer: &plainUDPDialer{}, held: make(chan struct{})}
		b := newUDPBench(t, slow, udpTargetOf(udpEcho(t, 0)))
		_, receive := b.open(t)
		for range udpPending + 7 {
			receive([]byte("x"))
		}
		if n := b.drops(dropOriginUnreachable); n != 7 {
			t.Errorf("%v dropped", n)
		}
	})
}

// slowUDPDialer dials once it is let.
type slowUDPDialer struct {
	udpDialer
	held chan struct{}
}

func (d *slowUDPDialer) DialUDP(ctx context.Context, s *origin.Spec, port uint16) (*net.UDPConn, error) {
	select {
	case <-d.held:
		return d.udpDialer.DialUDP(ctx, s, port)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestUDPIdle(t *testing.T) {
	echo := udpEcho(t, 0)
	t.Run("D11 idle for 119 s, then a reply of the origin", func(t *testing.T) {
		dialer := &plainUDPDialer{}
		b := newUDPBench(t, dialer, udpTargetOf(echo))
		f, receive := b.open(t)
		receive([]byte("a"))
		f.next(t)
		b.pass(119 * time.Second)
		receive([]byte("b"))
		if f.next(t) != "b" || b.active() != 1 {
			t.Error("the flow ended too early")
		}
		b.pass(119 * time.Second)
		if b.active() != 1 {
			t.Error("the reply did not count as use")
		}
		b.pass(2 * time.Second)
		udpEventually(t, "flow gone", func() bool { return b.active() == 0 })
		<-f.Done() // The edge is told.
		if n := dialer.dials.Load(); n != 1 {
			t.Errorf("%d sockets", n)
		}
	})
	t.Run("D11 a service may ask for less", func(t *testing.T) {
		target := udpTargetOf(echo)
		target.idle = 5 * time.Second
		b := newUDPBench(t, &plainUDPDialer{}, target)
		f, receive := b.open(t)
		receive([]byte("a"))
		f.next(t)
		b.pass(4 * time.Second)
		if b.active() != 1 {
			t.Error("ended too early")
		}
		b.pass(2 * time.Second)
		udpEventually(t, "flow gone", func() bool { return b.active() == 0 })
	})
}

func TestUDPOriginAway(t *testing.T) {
	t.Run("D08 an origin that restarts is found again over the same socket", func(t *testing.T) {
		echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		target := udpTargetOf(echo)
		_ = echo.Close()
		dialer := &plainUDPDialer{}
		b := newUDPBench(t, dialer, target)
		f, receive := b.open(t)
		for range 5 { // "Port unreachable" comes back for each.
			receive([]byte("x"))
			udpEventually(t, "dialled", func() bool { return dialer.dials.Load() == 1 })
		}
		udpEventually(t, "refusals counted", func() bool {
			receive([]byte("x"))
			return b.drops(dropOriginRefused) > 0
		})
		udpEcho(t, int(target.spec.Port))
		udpEventually(t, "an answer", func() bool {
			receive([]byte("y"))
			select {
			case got := <-f.got:
				return got == "y"
			case <-time.After(20 * time.Millisecond):
				return false
			}
		})
		if b.active() != 1 || dialer.dials.Load() != 1 {
			t.Errorf("%d flows, %d sockets", b.active(), dialer.dials.Load())
		}
	})
	t.Run("an origin that stays away is looked up again", func(t *testing.T) {
		gone, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		dialer := &movingUDPDialer{}
		dialer.to.Store(gone.LocalAddr().(*net.UDPAddr))
		_ = gone.Close()
		b := newUDPBench(t, dialer, udpTarget{spec: &origin.Spec{Scheme: "udp", Host: "moving", Port: 1}})
		f, receive := b.open(t)
		receive([]byte("x"))
		udpEventually(t, "refused", func() bool { receive([]byte("x")); return b.drops(dropOriginRefused) > 0 })
		dialer.to.Store(udpEcho(t, 0).LocalAddr().(*net.UDPAddr))
		b.clock.Add(int64(10 * time.Second))
		udpEventually(t, "an answer from the new address", func() bool {
			receive([]byte("y"))
			select {
			case <-f.got:
				return true
			case <-time.After(20 * time.Millisecond):
				return false
			}
		})
	})
	t.Run("a dial that fails is repeated, the flow stays", func(t *testing.T) {
		dialer := &movingUDPDialer{}
		b := newUDPBench(t, dialer, udpTarget{spec: &origin.Spec{Scheme: "udp", Host: "nowhere", Port: 1}})
		f, receive := b.open(t)
		receive([]byte("kept"))
		udpEventually(t, "tried", func() bool { return dialer.dials.Load() > 0 })
		dialer.to.Store(udpEcho(t, 0).LocalAddr().(*net.UDPAddr))
		if got := f.next(t); got != "kept" {
			t.Errorf("%q", got)
		}
	})
}

// movingUDPDialer dials where to says now.
type movingUDPDialer struct {
	to    atomic.Pointer[net.UDPAddr]
	dials atomic.Int64
}

func (d *movingUDPDialer) DialUDP(context.Context, *origin.Spec, uint16) (*net.UDPConn, error) {
	d.dials.Add(1)
	to := d.to.Load()
	if to == nil {
		return nil, reason.New(reason.OriginUnresolved, reason.HopAgent, "no such host")
	}
	return net.DialUDP("udp", nil, to)
}

func TestUDPRefusals(t *testing.T) {
	b := newUDPBench(t, &plainUDPDialer{}, udpTarget{})
	try := func(target udpTarget, e *reason.Error) *reason.Error {
		b.targets = func(*wirev1.StreamHeader) (udpTarget, *reason.Error) { return target, e }
		_, refusal := b.ServeFlow(newUDPTestFlow(), &wirev1.StreamHeader{VisitorAddress: "192.0.2.7:1234", EdgeAddress: "198.51.100.1:1"})
		return refusal
	}
	if e := try(udpTarget{}, reason.New(reason.OriginDenied, reason.HopAgent, "no")); e == nil || e.Code != reason.OriginDenied {
		t.Errorf("not served: %v", e)
	}
	if e := try(udpTarget{spec: &origin.Spec{Proxy: 1}}, nil); e == nil || e.Code != reason.Invalid {
		t.Errorf("PROXY v1: %v", e)
	}
	b.limit = 1
	if e := try(udpTargetOf(udpEcho(t, 0)), nil); e != nil {
		t.Errorf("the first flow: %v", e)
	}
	if e := try(udpTargetOf(udpEcho(t, 0)), nil); e == nil || e.Code != reason.RateLimited {
		t.Errorf("above the limit: %v", e)
	}
	b.close()
	if e := try(udpTarget{spec: &origin.Spec{}}, nil); e == nil || e.Code != reason.AgentDraining {
		t.Errorf("after close: %v", e)
	}
}

func TestUDPProxyHeader(t *testing.T) {
	t.Run("I08 PROXY header on the first datagram of a flow only", func(t *testing.T) {
		target := udpTargetOf(udpEcho(t, 0))
		target.spec.Proxy = 2
		b := newUDPBench(t, &plainUDPDialer{}, target)
		for range 2 {
			f, receive := b.open(t)
			for i := range 10 {
				sent := fmt.Sprintf("payload %d", i)
				receive([]byte(sent))
				got := f.next(t)
				if i > 0 {
					if got != sent {
						t.Errorf("datagram %d arrived as %q", i, got)
					}
					continue
				}
				r := bufio.NewReader(strings.NewReader(got))
				h, err := proxyproto.Read(r)
				if err != nil {
					t.Fatalf("%v in %q", err, got)
				}
				rest := make([]byte, len(sent))
				if n, _ := r.Read(rest); string(rest[:n]) != sent || r.Buffered() != 0 {
					t.Errorf("behind the header: %q", rest[:n])
				}
				src, dst := h.SourceAddr.String(), h.DestinationAddr.String()
				if h.Version != 2 || h.TransportProtocol != proxyproto.UDPv4 || src != "192.0.2.7:1234" || dst != "198.51.100.1:3478" {
					t.Errorf("header %+v", h)
				}
			}
		}
	})
	for name, c := range map[string]struct{ visitor, edge, src string }{
		"both IPv6": {"[2001:db8::1]:5", "[2001:db8::2]:6", "[2001:db8::1]:5"},
		"mixed":     {"192.0.2.1:5", "[2001:db8::2]:6", "192.0.2.1:5"},
	} {
		t.Run(name, func(t *testing.T) {
			b, e := udpProxyHeader(&origin.Spec{Proxy: 2}, &wirev1.StreamHeader{VisitorAddress: c.visitor, EdgeAddress: c.edge})
			if e != nil {
				t.Fatal(e)
			}
			h, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
			if err != nil {
				t.Fatal(err)
			}
			got := h.SourceAddr.(*net.UDPAddr).AddrPort()
			if netip.AddrPortFrom(got.Addr().Unmap(), got.Port()).String() != c.src || h.TransportProtocol != proxyproto.UDPv6 {
				t.Errorf("%+v", h)
			}
		})
	}
}

func TestUDPTargets(t *testing.T) {
	dialer, err := origin.New(origin.Config{Deny: []string{"127.0.0.2"}})
	if err != nil {
		t.Fatal(err)
	}
	echo := udpEcho(t, 0)
	port := uint16(echo.LocalAddr().(*net.UDPAddr).Port)
	t.Run("a range goes to the port the visitor used", func(t *testing.T) {
		b := newUDPBench(t, dialer, udpTarget{spec: &origin.Spec{Scheme: "udp", Host: "localhost"}, port: port})
		f, receive := b.open(t)
		receive([]byte("x"))
		if got := f.next(t); got != "x" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a denied target gets nothing", func(t *testing.T) {
		b := newUDPBench(t, dialer, udpTarget{spec: &origin.Spec{Scheme: "udp", Host: "127.0.0.2", Port: port}})
		_, receive := b.open(t)
		receive([]byte("x"))
		udpEventually(t, "refusal counted", func() bool {
			return testutil.ToFloat64(b.m.errors.WithLabelValues(string(reason.OriginDenied))) >= 1
		})
	})
}
