package proxy

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	// byStatus are the counters of requests that were asked for, up to 599.
	byStatus [600]atomic.Pointer[prometheus.Counter]
	seconds  prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "adit_edge_http_requests_total", Help: "Visitors' HTTP requests by status; 499 is a visitor that went away.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "adit_edge_http_request_seconds", Help: "Duration of visitors' HTTP requests, bodies included.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.seconds)
	}
	return m
}

func (m *metrics) counter(status int) prometheus.Counter {
	if status < 0 || status >= len(m.byStatus) {
		return m.requests.WithLabelValues(strconv.Itoa(status))
	}
	if c := m.byStatus[status].Load(); c != nil {
		return *c
	}
	c := m.requests.WithLabelValues(strconv.Itoa(status))
	m.byStatus[status].Store(&c)
	return c
}

func (m *metrics) observe(status int, took time.Duration) {
	m.counter(status).Inc()
	m.seconds.Observe(took.Seconds())
}
