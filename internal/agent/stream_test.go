package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func TestOriginHealth(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	addr := refusedPort(t)
	a := runAgent(t, Config{Token: token, Services: tcpServices(tcpEntry("late", addr, 2222))})
	r := edge.Replica(t)
	if first := receive(t, hub.reports, "no first report"); first.GetTunnels()[0].GetState() != "ok" || !slices.Contains(first.GetCapabilities(), "preflight") {
		t.Errorf("reported first %v", first)
	}
	out := visit(t, r, 2222)
	if _, err := out.Answer(t.Context()); !reason.Is(err, reason.OriginRefused) {
		t.Fatalf("got %v", err)
	}
	_ = out.Close()
	bad := receive(t, hub.reports, "no report").GetTunnels()[0]
	if bad.GetState() != "problem" || bad.GetReason() != "origin_refused" || bad.GetTunnelId() != tcpID(2222) || !strings.Contains(bad.GetDetail(), addr) {
		t.Errorf("reported %v", bad)
	}
	if p := a.Status().Services[0].Problem; !strings.Contains(p, "origin_refused") {
		t.Errorf("status says %q", p)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	out = visit(t, r, 2222)
	defer func() { _ = out.Close() }()
	if _, err := out.Answer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if good := receive(t, hub.reports, "no second report").GetTunnels()[0]; good.GetState() != "ok" {
		t.Errorf("reported %v", good)
	}
}

func TestThousandRefusingOrigins(t *testing.T) {
	t.Run("T18 1,000 services whose origins refuse leave the session and the others alone", func(t *testing.T) {
		hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
		token, _ := hub.token(edge)
		dead := refusedPort(t)
		entries := []string{tcpEntry("live", tcpOrigin(t, echo), 20000)}
		for i := range 1000 {
			entries = append(entries, tcpEntry(fmt.Sprintf("dead-%d", i), dead, 10000+i))
		}
		a := runAgent(t, Config{Token: token, Services: tcpServices(entries...)})
		r := edge.Replica(t)
		eventually(t, "the session", func() bool { return a.Status().Ready })
		before := a.Status().Sessions[0].Since
		var wg sync.WaitGroup
		work := make(chan int)
		for range 50 {
			wg.Go(func() {
				for i := range work {
					out, err := r.Open(t.Context(), &wirev1.StreamHeader{TunnelId: tcpID(uint32(10000 + i)), Kind: wirev1.Kind_KIND_TCP}, 0, nil)
					if err == nil {
						_, err = out.Answer(t.Context())
						_ = out.Close()
					}
					var e *reason.Error
					if !errors.As(err, &e) || e.Code != reason.OriginRefused || !e.Untouched {
						t.Errorf("service %d: %v, want origin_refused", i, err)
					}
				}
			})
		}
		for i := range 1000 {
			work <- i
			if i%100 == 0 {
				if got := say(t, visit(t, r, 20000), "still"); got != "still" {
					t.Errorf("the live one: %q", got)
				}
			}
		}
		close(work)
		wg.Wait()
		s := a.Status()
		if len(s.Sessions) != 1 || !s.Sessions[0].Since.Equal(before) {
			t.Errorf("the session was replaced: %+v", s.Sessions)
		}
		if n := strings.Count(a.log.String(), "could not be served"); n > 1100 {
			t.Errorf("%d log lines", n)
		}
	})
}

func TestCarry(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	answer := strings.Repeat("a", 16<<10)
	a := runAgent(t, Config{Token: token, Services: tcpServices(
		tcpEntry("early", tcpOrigin(t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_, _ = io.WriteString(c, answer)
			// Closing with unread bytes is a reset.
		}), 1001),
		tcpEntry("after-eof", tcpOrigin(t, func(c *net.TCPConn) {
			b, _ := io.ReadAll(c)
			_, _ = c.Write(bytes.Repeat(b, 100))
		}), 1002),
		tcpEntry("reset", tcpOrigin(t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		}), 1003),
		tcpEntry("seen", tcpOrigin(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("x"))
			_, err := c.Read(make([]byte, 1))
			seen <- err
		}), 1004),
		tcpEntry("full", tcpOrigin(t, func(c *net.TCPConn) {
			var err error
			for err == nil {
				_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
				_, err = c.Write(make([]byte, 1<<20))
			}
			_ = c.SetLinger(0)
			_ = c.Close()
			full <- err
		}), 1005),
	)})
	r := edge.Replica(t)
	_ = a
	t.Run("H23 an origin that answers early and closes is heard to the end", func(t *testing.T) {
		out := visit(t, r, 1001)
		defer func() { _ = out.Close() }()
		go func() {
			buf := make([]byte, 32<<10)
			for {
				if _, err := out.Write(buf); err != nil {
					return
				}
			}
		}()
		got := make([]byte, len(answer))
		if n, err := io.ReadFull(out, got); err != nil {
			t.Errorf("got %d of %d bytes, %v", n, len(answer), err)
		}
		if _, err := out.Read(got); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("then %v, want the reset", err)
		}
	})
	t.Run("D01 bytes go on after the visitor's end", func(t *testing.T) {
		if got := say(t, visit(t, r, 1002), strings.Repeat("b", 10<<10)); len(got) != 1000<<10 {
			t.Errorf("got %d bytes", len(got))
		}
	})
	t.Run("D01 an origin's reset is no end", func(t *testing.T) {
		out := visit(t, r, 1003)
		defer func() { _ = out.Close() }()
		_, _ = out.Write([]byte("xy"))
		if _, err := io.ReadAll(out); err == nil {
			t.Error("read to a clean end")
		}
	})
	t.Run("D01 a visitor's abort reaches the origin as a reset", func(t *testing.T) {
		out := visit(t, r, 1004)
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		out.Abort()
		if err := receive(t, seen, "the origin saw nothing"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the origin saw %v", err)
		}
	})
	t.Run("D01 an origin's reset ends a visitor that does not read", func(t *testing.T) {
		out := visit(t, r, 1005)
		defer func() { _ = out.Close() }()
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		receive(t, full, "the origin could write for ever")
		lost := out.(interface{ Aborted() bool })
		eventually(t, "the abort", lost.Aborted)
	})
	t.Run("nothing is left running", func(t *testing.T) {
		eventually(t, "no streams", func() bool { return a.handler.running.Load() == 0 })
	})
}

var (
	seen = make(chan error, 1)
	full = make(chan error, 1)
)
