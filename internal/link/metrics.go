package link

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one half. What carries no label of the other half is nil there.
type metrics struct {
	sessions   *prometheus.GaugeVec
	lanes      *prometheus.GaugeVec // by kind: tls, raw
	stalled    prometheus.Counter
	reconnects prometheus.Counter
	refused    *prometheus.CounterVec
	dropped    *prometheus.CounterVec
	labels     []string // leading label values of sessions
}

// register returns c, or what is registered under its name already: several connectors of one
// process share a registry.
func register[T prometheus.Collector](r prometheus.Registerer, c T) T {
	if r == nil {
		return c
	}
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

func edgeMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		dropped: DatagramsDropped(r, "edge"),
		sessions: register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "adit_edge_sessions", Help: "Sessions of agents, by carrier and path.",
		}, []string{"carrier", "path"})),
		stalled: register(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "adit_edge_streams_reset_stalled_total", Help: "Streams reset because stalled ones held too much memory.",
		})),
		lanes: laneGauge(r, "adit_edge_lanes", "Lanes of agents, idle and busy, by kind."),
		refused: register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "adit_edge_openings_refused_total", Help: "Openings of sessions and lanes that were refused, by reason.",
		}, []string{"reason"})),
	}
}

func agentMetrics(r prometheus.Registerer, edge string) *metrics {
	return &metrics{
		dropped: DatagramsDropped(r, "agent"),
		sessions: register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "adit_agent_sessions", Help: "Sessions with edges, by edge, carrier and path.",
		}, []string{"edge", "carrier", "path"})),
		lanes: laneGauge(r, "adit_agent_lanes", "Lanes to edges, idle and busy, by kind."),
		stalled: register(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "adit_agent_streams_reset_stalled_total", Help: "Streams reset because stalled ones held too much memory.",
		})),
		reconnects: register(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "adit_agent_session_reconnects_total", Help: "Sessions opened after one was lost.",
		})),
		labels: []string{edge},
	}
}

// Kinds of lanes.
const (
	laneTLS = "tls"
	laneRaw = "raw"
)

func laneGauge(r prometheus.Registerer, name, help string) *prometheus.GaugeVec {
	g := register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"kind"}))
	g.WithLabelValues(laneTLS)
	g.WithLabelValues(laneRaw)
	return g
}

func (m *metrics) lane(kind string, delta float64) { m.lanes.WithLabelValues(kind).Add(delta) }

func (m *metrics) session(carrier string, delta float64) {
	m.sessions.WithLabelValues(append(append([]string{}, m.labels...), carrier, "direct")...).Add(delta)
}
