package edge

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/splice"
)

type metrics struct {
	connected, revision, tunnels prometheus.Gauge
	streams                      *prometheus.GaugeVec
	connections, bytes           *prometheus.CounterVec
	kinds                        map[wirev1.Kind]*kindMetrics
}

// kindMetrics are those of one kind of tunnel, looked up once.
type kindMetrics struct {
	in, out prometheus.Counter
	streams prometheus.Gauge
}

var kindNames = map[wirev1.Kind]string{
	wirev1.Kind_KIND_HTTP: "http", wirev1.Kind_KIND_TLS: "tls", wirev1.Kind_KIND_TCP: "tcp", wirev1.Kind_KIND_UDP: "udp",
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "adit_edge_connected_to_hub", Help: "1 while the hub is heard.",
		}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "adit_edge_revision", Help: "Revision of the hub's feed that is applied.",
		}),
		tunnels: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "adit_edge_tunnels", Help: "Tunnels this edge answers for.",
		}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "adit_edge_streams", Help: "Streams open to agents now, by kind of tunnel; for udp see adit_edge_udp_flows.",
		}, []string{"kind"}),
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "adit_edge_connections_total", Help: "Visitor connections by kind of tunnel and result: ok, or the reason code.",
		}, []string{"kind", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "adit_edge_bytes_total", Help: "Bytes to (in) and from (out) origins, by kind of tunnel.",
		}, []string{"kind", "direction"}),
		kinds: map[wirev1.Kind]*kindMetrics{},
	}
	for k, name := range kindNames {
		m.kinds[k] = &kindMetrics{
			in: m.bytes.WithLabelValues(name, "in"), out: m.bytes.WithLabelValues(name, "out"),
			streams: m.streams.WithLabelValues(name),
		}
	}
	if r != nil {
		r.MustRegister(m.connected, m.revision, m.tunnels, m.streams, m.connections, m.bytes)
	}
	return m
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metered is a replica whose streams and bytes are counted.
type metered struct {
	*link.Replica
	metrics *metrics
	traffic *traffic
}

func (r *metered) Open(ctx context.Context, h *wirev1.StreamHeader, policy hubv1.CarrierPolicy, first []byte) (link.Outgoing, error) {
	out, err := r.Replica.Open(ctx, h, policy, first)
	k := r.metrics.kinds[h.GetKind()]
	if err != nil || k == nil {
		return out, err
	}
	k.in.Add(float64(len(first)))
	k.streams.Inc()
	c := r.traffic.of(h.GetTunnelId())
	c.in.Add(uint64(len(first)))
	return &meteredStream{Outgoing: out, kind: k, tunnel: c}, nil
}

// meteredStream counts a stream while it is open, and its bytes.
type meteredStream struct {
	link.Outgoing
	kind   *kindMetrics
	tunnel *counters
	ended  sync.Once
}

func (s *meteredStream) Close() error {
	s.ended.Do(s.kind.streams.Dec)
	return s.Outgoing.Close()
}

func (s *meteredStream) Abort() {
	s.ended.Do(s.kind.streams.Dec)
	s.Outgoing.Abort()
}

func (s *meteredStream) Read(b []byte) (int, error) {
	n, err := s.Outgoing.Read(b)
	s.kind.out.Add(float64(n))
	s.tunnel.out.Add(uint64(n))
	return n, err
}

func (s *meteredStream) ReadLoan(l *buffer.Loan) (int, error) {
	n, err := s.Outgoing.ReadLoan(l)
	s.kind.out.Add(float64(n))
	s.tunnel.out.Add(uint64(n))
	return n, err
}

func (s *meteredStream) Write(b []byte) (int, error) {
	n, err := s.Outgoing.Write(b)
	s.kind.in.Add(float64(n))
	s.tunnel.in.Add(uint64(n))
	return n, err
}

// counting is p, counting in bytes too.
func counting(p splice.Progress, bytes prometheus.Counter, tunnel *atomic.Uint64) splice.Progress {
	moved := p.Moved
	p.Moved = func(n int) {
		bytes.Add(float64(n))
		tunnel.Add(uint64(n))
		if moved != nil {
			moved(n)
		}
	}
	return p
}

func (s *meteredStream) SpliceTo(dst *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	return s.Outgoing.SpliceTo(dst, counting(p, s.kind.out, &s.tunnel.out))
}

func (s *meteredStream) SpliceFrom(src *net.TCPConn, p splice.Progress) (ok bool, readErr, writeErr error) {
	return s.Outgoing.SpliceFrom(src, counting(p, s.kind.in, &s.tunnel.in))
}

// OpenFlow counts the bytes of a flow like those of a stream.
func (r *metered) OpenFlow(h *wirev1.StreamHeader, receive func(b []byte)) (link.Flow, error) {
	k, c := r.metrics.kinds[wirev1.Kind_KIND_UDP], r.traffic.of(h.GetTunnelId())
	c.connections.Add(1)
	f, err := r.Replica.OpenFlow(h, func(b []byte) {
		k.out.Add(float64(len(b)))
		c.out.Add(uint64(len(b)))
		receive(b)
	})
	if err != nil {
		return nil, err
	}
	return &meteredFlow{Flow: f, kind: k, tunnel: c}, nil
}

// meteredFlow counts the bytes of a flow.
type meteredFlow struct {
	link.Flow
	kind   *kindMetrics
	tunnel *counters
}

func (f *meteredFlow) Send(b []byte) error {
	f.kind.in.Add(float64(len(b)))
	f.tunnel.in.Add(uint64(len(b)))
	return f.Flow.Send(b)
}

func (f *meteredFlow) Queue(b []byte) error {
	f.kind.in.Add(float64(len(b)))
	f.tunnel.in.Add(uint64(len(b)))
	return f.Flow.Queue(b)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
