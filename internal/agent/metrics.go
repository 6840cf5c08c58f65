package agent

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// metrics of an agent beside those of its sessions, which package link keeps.
type metrics struct {
	streams  prometheus.Gauge
	errors   *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	services *prometheus.GaugeVec
	reloads  *prometheus.CounterVec
	// toOrigin and toVisitor are the children of bytes.
	toOrigin, toVisitor prometheus.Counter
	// dropped counts datagrams of udp flows, here and in package link.
	dropped *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		streams:  register(r, prometheus.NewGauge(prometheus.GaugeOpts{Name: "adit_agent_streams", Help: "Streams running now."})),
		errors:   register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "adit_agent_stream_errors_total", Help: "Streams that were refused, by reason."}, []string{"reason"})),
		bytes:    register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "adit_agent_bytes_total", Help: "Bytes carried, by direction."}, []string{"direction"})),
		services: register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "adit_agent_services", Help: "Declared services, by the hub's verdict."}, []string{"verdict"})),
		reloads:  register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "adit_agent_reloads_total", Help: "Times a changed file was read again, by result."}, []string{"file", "result"})),
	}
	m.dropped = link.DatagramsDropped(r, "agent")
	m.toOrigin, m.toVisitor = m.bytes.WithLabelValues("to_origin"), m.bytes.WithLabelValues("to_visitor")
	return m
}

// register returns c, or what is there under its name already: agents of one process may share a
// registry.
func register[T prometheus.Collector](r prometheus.Registerer, c T) T {
	if err := r.Register(c); err != nil {
		var are prometheus.AlreadyRegisteredError
		if errors.As(err, &are) {
			if old, ok := are.ExistingCollector.(T); ok {
				return old
			}
		}
		panic(err)
	}
	return c
}

func (m *metrics) refused(e *reason.Error) {
	m.errors.WithLabelValues(string(e.Code)).Inc()
}
