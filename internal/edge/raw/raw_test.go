package raw

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a TCP connection over loopback.
func pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// stream is a link stream over TCP: its aborts are resets.
type stream struct {
	*net.TCPConn
	link.NoSocket
}

func (s stream) ReadLoan(l *buffer.Loan) (int, error) {
	return buffer.NewSocket(s.TCPConn).ReadLoan(l)
}

func (s stream) Abort() { _ = s.SetLinger(0); _ = s.Close() }

func (s stream) Aborted() (yes bool) {
	rc, err := s.SyscallConn()
	if err != nil {
		return true
	}
	_ = rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, _ = unix.Poll(p, 0)
		yes = p[0].Revents&unix.POLLERR != 0
	})
	return yes
}

func (stream) Answer(context.Context) (*wirev1.StreamAnswer, error) {
	return &wirev1.StreamAnswer{}, nil
}

// agent is a replica whose origin is in the test.
type agent struct {
	t       testing.TB
	origins chan *net.TCPConn
	headers chan *wirev1.StreamHeader
	refuse  *reason.Error
	gone    atomic.Bool
}

func newAgent(t testing.TB) *agent {
	return &agent{t: t, origins: make(chan *net.TCPConn, 1), headers: make(chan *wirev1.StreamHeader, 1)}
}

func (a *agent) Replicas(string) []dial.Replica {
	if a.gone.Load() {
		return nil
	}
	return []dial.Replica{a}
}
func (a *agent) ID() string    { return "replica" }
func (a *agent) Active() int64 { return 0 }
func (a *agent) Suspect() bool { return false }
func (a *agent) OpenFlow(*wirev1.StreamHeader, func([]byte)) (link.Flow, error) {
	return nil, errors.ErrUnsupported
}

func (a *agent) Open(_ context.Context, h *wirev1.StreamHeader, _ hubv1.CarrierPolicy, first []byte) (link.Outgoing, error) {
	if a.refuse != nil {
		return nil, a.refuse
	}
	edge, origin := pair(a.t)
	if _, err := edge.Write(first); err != nil {
		return nil, err
	}
	a.origins <- origin
	a.headers <- h
	return stream{TCPConn: edge}, nil
}

func tunnel(change func(*hubv1.Tunnel)) *route.Entry {
	t := &hubv1.Tunnel{
		Id: "t1", Name: "ssh", Kind: wirev1.Kind_KIND_TCP, Port: 2222,
		Access:  &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC},
		Origins: []*hubv1.Origin{{Url: "tcp://127.0.0.1:22"}},
		Rules:   []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 0, Weight: 1}}}},
	}
	if change != nil {
		change(t)
	}
	return route.NewEntry(t)
}

type rig struct {
	*Server
	*agent
	count  *prometheus.CounterVec
	cancel context.CancelFunc
	ctx    context.Context
}

func newRig(t testing.TB, cfg Config) *rig {
	r := &rig{agent: newAgent(t), count: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c"}, []string{"kind", "result"})}
	cfg.Dialer, cfg.Connections = dial.New(r.agent), r.count
	r.Server = New(cfg)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	t.Cleanup(r.cancel)
	return r
}

// visit connects a visitor; done is closed when the server let go of it.
func (r *rig) visit(t testing.TB, e *route.Entry) (visitor *net.TCPConn, done chan struct{}) {
	t.Helper()
	v, server := pair(t)
	c, err := front.Resolve(server, nil)
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan struct{})
	go func() { defer close(done); r.Serve(r.ctx, c, e) }()
	t.Cleanup(func() {
		_ = v.Close()
		r.cancel()
		<-done
	})
	return v, done
}

func wait(t testing.TB, done chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the connection is still carried")
	}
}

func wantReset(t testing.TB, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestHalfClose(t *testing.T) {
	t.Run("D01 the answer comes whole after the visitor's end", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		go func() {
			req, _ := io.ReadAll(origin) // only an end makes this return
			_, _ = origin.Write(bytes.Repeat(req, 10<<20/len(req)))
			_ = origin.Close()
		}()
		_, _ = v.Write([]byte("request!"))
		_ = v.CloseWrite()
		n, err := io.Copy(io.Discard, v)
		if n != 10<<20 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		wait(t, done)
		if got := testutil.ToFloat64(r.count.WithLabelValues("tcp", "ok")); got != 1 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("D01 the origin's end reaches the visitor, who may go on", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_, _ = origin.Write([]byte("bye"))
		_ = origin.CloseWrite()
		if b, err := io.ReadAll(v); string(b) != "bye" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		_, _ = v.Write([]byte("still here"))
		_ = v.CloseWrite()
		if b, err := io.ReadAll(origin); string(b) != "still here" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		wait(t, done)
	})
	t.Run("D01 a peer that never closes is reaped by the half-closed limit", func(t *testing.T) {
		r := newRig(t, Config{HalfClosed: 100 * time.Millisecond})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = v.CloseWrite()
		wait(t, done)
		wantReset(t, v)
		if _, err := origin.Write([]byte("late")); err == nil {
			t.Error("the origin's side is still open")
		}
		if got := testutil.ToFloat64(r.count.WithLabelValues("tcp", "visitor_timeout")); got != 1 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("D01 a peer that does not read is reaped too", func(t *testing.T) {
		r := newRig(t, Config{HalfClosed: 200 * time.Millisecond})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = v.CloseWrite()
		go func() { _, _ = origin.Write(make([]byte, 64<<20)) }()
		wait(t, done)
		_ = v.Close()
	})
	t.Run("D01 a half-closed connection that moves is left alone", func(t *testing.T) {
		r := newRig(t, Config{HalfClosed: 300 * time.Millisecond})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = v.CloseWrite()
		go func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for range 8 {
				<-tick.C
				_, _ = origin.Write([]byte("."))
			}
			_ = origin.Close()
		}()
		if b, err := io.ReadAll(v); len(b) != 8 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		wait(t, done)
	})
}

func TestAborts(t *testing.T) {
	t.Run("D01 a visitor's reset is one at the origin", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = v.SetLinger(0)
		_ = v.Close()
		wantReset(t, origin)
		wait(t, done)
	})
	t.Run("D01 the origin's reset is one at the visitor", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = origin.SetLinger(0)
		_ = origin.Close()
		wantReset(t, v)
		wait(t, done)
	})
	t.Run("no agent resets and counts", func(t *testing.T) {
		r := newRig(t, Config{})
		r.gone.Store(true)
		v, done := r.visit(t, tunnel(nil))
		wantReset(t, v)
		wait(t, done)
		if got := testutil.ToFloat64(r.count.WithLabelValues("tcp", "no_agent")); got != 1 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("D03 a refusal resets and counts its reason", func(t *testing.T) {
		r := newRig(t, Config{})
		r.refuse = reason.New(reason.OriginTimeout, reason.HopAgent, "no answer within 5s").Safe()
		v, done := r.visit(t, tunnel(nil))
		wantReset(t, v)
		wait(t, done)
		if got := testutil.ToFloat64(r.count.WithLabelValues("tcp", "origin_timeout")); got != 1 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("a removed tunnel's connections are reset, others are not touched", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		<-r.origins
		<-r.headers
		other, _ := r.visit(t, tunnel(func(t *hubv1.Tunnel) { t.Id = "t2" }))
		origin := <-r.origins
		r.CloseTunnel("t1")
		wantReset(t, v)
		wait(t, done)
		if _, err := origin.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
			t.Errorf("another tunnel's connection: %v", err)
		}
	})
	t.Run("the end of the drain resets", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		<-r.origins
		r.cancel()
		wantReset(t, v)
		wait(t, done)
	})
}

func TestAccessAndCaps(t *testing.T) {
	for _, kind := range []wirev1.Kind{wirev1.Kind_KIND_TCP, wirev1.Kind_KIND_TLS} {
		for _, mode := range []hubv1.Access_Mode{hubv1.Access_MODE_PROTECTED, hubv1.Access_MODE_UNSPECIFIED} {
			t.Run("protected denies all: "+kind.String()+" "+mode.String(), func(t *testing.T) {
				r := newRig(t, Config{})
				v, done := r.visit(t, tunnel(func(t *hubv1.Tunnel) { t.Kind, t.Access.Mode = kind, mode }))
				wantReset(t, v)
				wait(t, done)
				if len(r.origins) != 0 {
					t.Error("the origin was dialled")
				}
			})
		}
	}
	t.Run("connections of one tunnel are capped", func(t *testing.T) {
		r := newRig(t, Config{MaxPerTunnel: 1})
		first, done := r.visit(t, tunnel(nil))
		<-r.origins
		<-r.headers
		second, refused := r.visit(t, tunnel(nil))
		wantReset(t, second)
		wait(t, refused)
		_ = first.SetLinger(0)
		_ = first.Close()
		wait(t, done)
		_, _ = r.visit(t, tunnel(nil))
		<-r.origins
	})
	t.Run("a tunnel without origin refuses", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(func(t *hubv1.Tunnel) { t.Rules = nil }))
		wantReset(t, v)
		wait(t, done)
	})
}

func TestHeaderSaysWhoVisits(t *testing.T) {
	t.Run("I07 the resolved visitor and what it dialled go to the agent", func(t *testing.T) {
		r := newRig(t, Config{})
		v, _ := r.visit(t, tunnel(nil))
		<-r.origins
		h := <-r.headers
		if h.VisitorAddress != v.LocalAddr().String() || h.EdgeAddress != v.RemoteAddr().String() || h.TunnelId != "t1" || h.Kind != wirev1.Kind_KIND_TCP {
			t.Errorf("%v", h)
		}
	})
}

func TestChecksums(t *testing.T) {
	size := 100 << 20
	if testing.Short() {
		size = 8 << 20
	}
	for _, first := range []string{"visitor", "origin"} {
		t.Run("D02 100 MB both ways, the "+first+" closes first", func(t *testing.T) {
			r := newRig(t, Config{})
			v, done := r.visit(t, tunnel(nil))
			origin := <-r.origins
			sums := make(chan [2][32]byte, 2)
			// side sends and receives, and closes when it has sent (early) or has also seen the
			// other's end (late).
			side := func(c *net.TCPConn, seed byte, early bool) {
				sent, got := sha256.New(), sha256.New()
				received := make(chan error, 1)
				go func() {
					_, err := io.Copy(got, c)
					received <- err
				}()
				_, err := io.Copy(io.MultiWriter(c, sent), io.LimitReader(rand.NewChaCha8([32]byte{seed}), int64(size)))
				if err != nil {
					t.Errorf("send: %v", err)
				}
				if early {
					_ = c.CloseWrite()
				}
				if err := <-received; err != nil {
					t.Errorf("receive: %v", err)
				}
				if !early {
					_ = c.CloseWrite()
				}
				sums <- [2][32]byte{[32]byte(sent.Sum(nil)), [32]byte(got.Sum(nil))}
			}
			go side(v, 1, first == "visitor")
			go side(origin, 2, first == "origin")
			a, b := <-sums, <-sums
			if a[0] != b[1] || a[1] != b[0] {
				t.Error("what came is not what was sent")
			}
			wait(t, done)
		})
	}
}

func TestIdleMemory(t *testing.T) {
	r := newRig(t, Config{})
	const n = 200
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := heap()
	for range n {
		v, _ := r.visit(t, tunnel(nil))
		origin := <-r.origins
		<-r.headers
		// Some traffic, then silence.
		_, _ = v.Write(make([]byte, 32<<10))
		_, _ = io.ReadFull(origin, make([]byte, 32<<10))
		_, _ = origin.Write(make([]byte, 32<<10))
		_, _ = io.ReadFull(v, make([]byte, 32<<10))
	}
	time.Sleep(2*sweepEvery + 100*time.Millisecond) // the time in which buffers may be held
	per := (int64(heap()) - int64(before)) / n
	t.Logf("%d bytes per idle connection, both ends and the test included", per)
	if per > 48<<10 {
		t.Errorf("an idle connection holds %d bytes", per)
	}
}

func TestBlockedWriter(t *testing.T) {
	t.Run("an abort of the visitor frees a writer that the origin holds up", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = v.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := v.Write(make([]byte, 64<<20)); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("the origin does not read, but took everything: %v", err)
		}
		_ = v.SetLinger(0)
		_ = v.Close()
		wait(t, done)
		wantReset(t, origin)
	})
	t.Run("D01 an abort of the origin ends a visitor that does not read", func(t *testing.T) {
		r := newRig(t, Config{})
		v, done := r.visit(t, tunnel(nil))
		origin := <-r.origins
		_ = origin.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := origin.Write(make([]byte, 64<<20)); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("the visitor does not read, but took everything: %v", err)
		}
		_ = origin.SetLinger(0)
		_ = origin.Close()
		wait(t, done)
		if _, err := io.Copy(io.Discard, v); err == nil {
			t.Error("the visitor saw a clean end")
		}
	})
}
