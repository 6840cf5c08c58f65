package udp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica answers every datagram with its id and what it got.
type replica struct {
	id      string
	refusal *reason.Error
	broken  bool

	mu    sync.Mutex
	flows []*flow
}

type flow struct {
	r       *replica
	header  *wirev1.StreamHeader
	receive func([]byte)
	after   func()
	done    chan struct{}
	once    sync.Once
	refusal *reason.Error
	got     atomic.Int64
}

func (r *replica) ID() string    { return r.id }
func (r *replica) Active() int64 { return int64(r.live()) }
func (r *replica) Suspect() bool { return false }

func (r *replica) Open(context.Context, *wirev1.StreamHeader, hubv1.CarrierPolicy, []byte) (link.Outgoing, error) {
	return nil, errors.New("a flow needs no stream")
}

func (r *replica) OpenFlow(h *wirev1.StreamHeader, receive func([]byte)) (link.Flow, error) {
	if r.broken {
		return nil, reason.New(reason.NoAgent, reason.HopAgent, "no session").Safe()
	}
	f := &flow{r: r, header: h, done: make(chan struct{})}
	f.receive = func(b []byte) { receive(b); f.after() }
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows = append(r.flows, f)
	return f, nil
}

func (r *replica) live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, f := range r.flows {
		if !closed(f.done) {
			n++
		}
	}
	return n
}

func (r *replica) opened() []*flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*flow{}, r.flows...)
}

func (f *flow) Send(b []byte) error {
	if closed(f.done) {
		return net.ErrClosed
	}
	f.got.Add(1)
	if f.r.refusal != nil {
		f.refusal = f.r.refusal
		return f.Close()
	}
	f.receive(append([]byte(f.r.id), b...))
	return nil
}

func (f *flow) Queue(b []byte) error   { return f.Send(b) }
func (f *flow) Flush()                 {}
func (f *flow) AfterBatch(done func()) { f.after = done }
func (f *flow) Close() error           { f.once.Do(func() { close(f.done) }); return nil }
func (f *flow) Done() <-chan struct{}  { return f.done }
func (f *flow) Refusal() *reason.Error { return f.refusal }

// source lists replicas; all serve every tunnel.
type source struct {
	list atomic.Pointer[[]dial.Replica]
}

func (s *source) Replicas(string) []dial.Replica {
	if l := s.list.Load(); l != nil {
		return *l
	}
	return nil
}

func (s *source) set(rs ...dial.Replica) { s.list.Store(&rs) }

// bench is a server with its source and clock.
type bench struct {
	*Server
	source *source
	clock  atomic.Int64
	reg    *prometheus.Registry
	log    *bytes.Buffer
}

func start(t *testing.T, change func(*Config), rs ...dial.Replica) *bench {
	t.Helper()
	b := &bench{source: &source{}, reg: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	b.source.set(rs...)
	b.clock.Store(time.Now().UnixNano())
	cfg := Config{Source: b.source, Registry: b.reg, Address: netip.MustParseAddr("127.0.0.1"),
		Now: func() time.Time { return time.Unix(0, b.clock.Load()) }, Log: slog.New(slog.NewTextHandler(b.log, nil))}
	if change != nil {
		change(&cfg)
	}
	b.Server = New(cfg)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := testutil.ToFloat64(b.metrics.flows); n != 0 {
			t.Errorf("the gauge says %v flows after Close", n)
		}
	})
	return b
}

func (b *bench) drops(why string) float64 {
	return testutil.ToFloat64(b.metrics.dropped.WithLabelValues(why))
}

func testTunnel(id string, first uint32, n int) *hubv1.Tunnel {
	t := &hubv1.Tunnel{
		Id: id, Name: id, Kind: wirev1.Kind_KIND_UDP, Port: first,
		Origins: []*hubv1.Origin{{Url: "udp://127.0.0.1:9"}},
		Rules:   []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 0, Weight: 1}}}},
		Access:  &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC},
	}
	if n > 1 {
		t.PortLast = first + uint32(n) - 1
	}
	return t
}

func (b *bench) mustSet(t *testing.T, tun *hubv1.Tunnel) {
	t.Helper()
	if err := b.Set(tun); err != nil {
		t.Fatal(err)
	}
}

// visit returns a connected visitor socket.
func visit(t *testing.T, host string, port uint32) *net.UDPConn {
	t.Helper()
	c, err := net.Dial("udp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UDPConn)
}

// ask sends b and returns the answer; "" when there is none in time.
func ask(t *testing.T, c *net.UDPConn, b string, wait time.Duration) string {
	t.Helper()
	if _, err := c.Write([]byte(b)); err != nil {
		t.Fatal(err)
	}
	return hear(t, c, wait)
}

func hear(t *testing.T, c *net.UDPConn, wait time.Duration) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

const soon = 5 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}
