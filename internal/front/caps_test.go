package front

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

func TestCaps(t *testing.T) {
	r := start(t, Config{MaxConns: 3, MaxConnsPerAddress: 2}, nil)
	hold := func() *tls.Conn {
		c, err := tls.Dial("tcp", r.addr, r.client("q.test"))
		if err != nil {
			return nil
		}
		return c
	}
	a, b := hold(), hold()
	if a == nil || b == nil {
		t.Fatal("refused below the cap")
	}
	if hold() != nil {
		t.Error("the cap per address does not hold over TCP")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if c, err := quic.DialAddr(ctx, r.addr, r.client("q.test", "h3"), nil); err == nil {
		<-c.Context().Done()
	}
	_ = a.Close()
	for ctx.Err() == nil {
		if c := hold(); c != nil {
			_ = c.Close()
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("the place of a closed connection was not given back")
	}
	_ = b.Close()
}

func TestCapPerTunnel(t *testing.T) {
	var entered, left atomic.Int64
	r := start(t, Config{}, func(_ *rig, roles *Roles) {
		roles.Tunnel = func(netip.AddrPort, string) *Tunnel {
			return &Tunnel{Enter: func() (func(), bool) {
				if entered.Load() == 2 {
					return nil, false
				}
				entered.Add(1)
				return func() { left.Add(1) }, true
			}}
		}
	})
	a, err := tls.Dial("tcp", r.addr, r.client("q.test", "h2"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := quic.DialAddr(t.Context(), r.addr, r.client("q.test", "h3"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); entered.Load() < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if c, err := tls.Dial("tcp", r.addr, r.client("q.test", "h2")); err == nil {
		_ = c.Close()
		t.Error("the cap does not hold over TCP")
	}
	c, err := quic.DialAddr(t.Context(), r.addr, r.client("q.test", "h3"), nil)
	if err == nil {
		<-c.Context().Done()
	}
	_ = a.Close()
	_ = b.CloseWithError(0, "")
	for end := time.Now().Add(10 * time.Second); left.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("places were not given back")
		}
	}
}

func TestSlowHeadersAreClosed(t *testing.T) {
	r := start(t, Config{HeaderTimeout: 300 * time.Millisecond, ListenHTTP: "127.0.0.1:0"}, nil)
	c, err := tls.Dial("tcp", r.addr, r.client("q.test", "http/1.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: q")
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("H20 still open: %q, %v", b, err)
	}
}

func TestTakenPort(t *testing.T) {
	t.Run("D14 one clear error and nothing stays bound", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Listen(Config{ListenHTTPS: l.Addr().String()}); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("%v", err)
		}
		free, err := Listen(Config{ListenHTTPS: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		addr := free.HTTPSAddr().String()
		_ = free.Close()
		if _, err := Listen(Config{ListenHTTPS: addr, ListenHTTP: l.Addr().String()}); err == nil {
			t.Fatal("bound a taken port")
		}
		again, err := Listen(Config{ListenHTTPS: addr})
		if err != nil {
			t.Fatalf("D12 a port stays held after a failed start: %v", err)
		}
		_ = again.Close()
	})
}

func TestRetryAboveARate(t *testing.T) {
	r := start(t, Config{}, nil)
	asked := false
	for range 2 * retryBurst {
		asked = asked || r.udp.transport.VerifySourceAddress(&net.UDPAddr{})
	}
	if !asked {
		t.Error("no stranger has to show its address however many come")
	}
	c, err := quic.DialAddr(t.Context(), r.addr, r.client("q.test", "h3"), nil)
	if err != nil {
		t.Fatalf("a visitor that shows its address is not served: %v", err)
	}
	_ = c.CloseWithError(0, "")
}
