package front

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	open    prometheus.Gauge
	refused *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "adit_front_connections", Help: "Visitor connections open on the HTTPS and HTTP ports.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "adit_front_refused_total", Help: "Connections refused before they reached a tunnel, by reason.",
		}, []string{"reason"}),
	}
	if r != nil {
		r.MustRegister(m.open, m.refused)
	}
	return m
}
