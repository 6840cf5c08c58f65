package udp

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/link"
)

// Reasons for which the public side drops datagrams; those of package link join them.
const (
	dropNoAgent      = "no_agent"
	dropDenied       = "access_denied"
	dropUnresolved   = "origin_unresolved"
	dropRefused      = "agent_refused"  // the agent refused the flow a moment ago
	dropMaxFlows     = "listener_flows" // the port has its maximum of flows
	dropMaxPerSource = "source_flows"   // the visitor has its maximum of flows
	dropSocketFull   = "socket_full"    // the kernel's queue of the socket was full
	dropReadFailed   = "read_failed"
	dropWriteFailed  = "write_failed"
)

type metrics struct {
	dropped *prometheus.CounterVec
	in, out prometheus.Counter
	opened  prometheus.Counter
	flows   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) metrics {
	datagrams := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "adit_edge_udp_datagrams_total",
		Help: "Datagrams of udp tunnels on the public side; in is from visitors.",
	}, []string{"direction"}))
	return metrics{
		dropped: link.DatagramsDropped(reg, "edge"),
		in:      datagrams.WithLabelValues("in"), out: datagrams.WithLabelValues("out"),
		opened: register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "adit_edge_udp_flows_opened_total", Help: "Flows of udp tunnels opened.",
		})),
		flows: register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "adit_edge_udp_flows", Help: "Flows of udp tunnels open now.",
		})),
	}
}

func (m *metrics) drop(why string, n int) {
	if n > 0 {
		m.dropped.WithLabelValues(why).Add(float64(n))
	}
}

// register returns c, or what is registered under its name already.
func register[T prometheus.Collector](r prometheus.Registerer, c T) T {
	if r == nil {
		return c
	}
	var have prometheus.AlreadyRegisteredError
	if err := r.Register(c); errors.As(err, &have) {
		if old, ok := have.ExistingCollector.(T); ok {
			return old
		}
	}
	return c
}
