package report

import (
	"fmt"
	"strings"
)

// reading is one number that a budget bounds.
type reading struct {
	label string
	value float64
	ok    bool
	bound float64
	// least: the value must not be below the bound; else not above it.
	least bool
}

func (x reading) met() bool {
	if x.least {
		return x.value >= x.bound
	}
	return x.value <= x.bound
}

// budget is one promise about the data path.
type budget struct {
	work     string
	readings func(r *Run) []reading
}

func on(scene, work, target string) Series { return Series{scene, work, target} }

// times compares two targets at one work.
func (r *Run) times(scene, work, a, b string, f Figure, label string, bound float64, least bool) reading {
	v, ok := r.Ratio(on(scene, work, a), on(scene, work, b), f)
	return reading{label, v, ok, bound, least}
}

const (
	auto, throughput, latency = "adit auto", "adit throughput", "adit latency"
	passthrough               = "adit throughput passthrough"
	twoHops                   = "haproxy 2 hop tls"
	twoHopsPlain              = "haproxy 2 hop"
	// Clear is the http tunnel in clear text, as frp's http proxy speaks it.
	Clear = "adit http clear"
	// Raw is the passthrough tunnel on raw lanes.
	Raw = "adit raw passthrough"
)

func budgets() []budget {
	return []budget{
		{work: "passthrough bulk, TLS lanes", readings: func(r *Run) []reading {
			return []reading{
				r.times(Loopback, Bulk1, passthrough, FRP, Rate, "1 stream / frp", 1.5, true),
				r.times(Loopback, Bulk16, passthrough, FRP, Rate, "16 streams / frp", 1.4, true),
				r.times(Loopback, Bulk1, passthrough, twoHops, Rate, "1 stream / two HAProxy hops with TLS", 0.95, true),
				r.times(Loopback, Bulk16, passthrough, twoHops, Rate, "16 streams / two HAProxy hops with TLS", 0.95, true),
			}
		}},
		{work: "passthrough bulk, raw lanes", readings: func(r *Run) []reading {
			return []reading{
				r.times(Loopback, Bulk1, Raw, FRP, Rate, "1 stream / frp", 2.6, true),
				r.times(Loopback, Bulk16, Raw, FRP, Rate, "16 streams / frp", 2.6, true),
				r.times(Loopback, Bulk1, Raw, twoHopsPlain, Rate, "1 stream / two HAProxy hops", 1.25, true),
				r.times(Loopback, Bulk16, Raw, twoHopsPlain, Rate, "16 streams / two HAProxy hops", 1.25, true),
			}
		}},
		{work: "CPU per GB, TLS lanes", readings: func(r *Run) []reading {
			return []reading{
				r.times(Loopback, Bulk1, passthrough, FRP, CPU, "1 stream / frp", 0.7, false),
				r.times(Loopback, Bulk16, passthrough, FRP, CPU, "16 streams / frp", 0.7, false),
			}
		}},
		{work: "CPU per GB, raw lanes", readings: func(r *Run) []reading {
			return []reading{
				r.times(Loopback, Bulk1, Raw, FRP, CPU, "1 stream / frp", 0.25, false),
				r.times(Loopback, Bulk16, Raw, FRP, CPU, "16 streams / frp", 0.25, false),
			}
		}},
		{work: "`http` keep-alive, 64 connections", readings: func(r *Run) []reading {
			return []reading{
				r.times(Loopback, HTTPKeepAlive, Clear, FRP, Rate, "clear text, rate / frp's http proxy", 4.5, true),
				r.times(Loopback, HTTPKeepAlive, Clear, FRP, P99, "clear text, p99 / frp's http proxy", 0.2, false),
				r.times(Loopback, HTTPKeepAlive, Clear, "frp tcp", Rate, "clear text, rate / frp's TCP tunnel, which parses nothing", 0.8, true),
				r.times(Loopback, HTTPKeepAlive, auto, "frp https2http", Rate, "TLS, rate / frp's https2http", 4.5, true),
				r.times(Loopback, HTTPKeepAlive, auto, "frp https2http", P99, "TLS, p99 / frp's https2http", 0.2, false),
			}
		}},
		{work: "new connection per request, raw `tcp`", readings: func(r *Run) []reading { return freshConnections(r, NewConn32, NewConn1, auto, FRP) }},
		{work: "new connection per request, `http` in clear text, against frp's http proxy", readings: func(r *Run) []reading {
			return freshConnections(r, HTTPFresh32, HTTPFresh1, Clear, FRP)
		}},
		{work: "new connection per request, `http` with TLS, against frp's https2http", readings: func(r *Run) []reading {
			return freshConnections(r, HTTPFresh32, HTTPFresh1, auto, "frp https2http")
		}},
		{work: "40 ms, 1 % loss, cubic: 16 streams bulk, `auto`", readings: func(r *Run) []reading {
			return []reading{r.times(CubicLoss, Bulk16, auto, Direct, Rate, "/ direct", 0.95, true)}
		}},
		{work: "40 ms, 1 % loss, bbr: 1 stream, `auto`", readings: func(r *Run) []reading {
			return []reading{
				r.times(BBRLoss, Bulk1, auto, Direct, Rate, "/ direct", 0.95, true),
				r.times(BBRLoss, Bulk1, auto, FRP, Rate, "/ frp", 1.3, true),
			}
		}},
		{work: "40 ms, 1 % loss, cubic: echo p99", readings: func(r *Run) []reading {
			return []reading{
				r.times(CubicLoss, Echo16, latency, Direct, P99, "`latency` / direct", 0.32, false),
				r.times(CubicLoss, Echo16, auto, Direct, P99, "`auto` / direct (1.0 where the kernel has no retransmission floor per socket)", 0.6, false),
				r.times(CubicLoss, EchoBeside, latency, Direct, P99, "`latency` beside bulk / direct", 0.32, false),
				r.times(CubicLoss, EchoBeside, auto, Direct, P99, "`auto` beside bulk / direct", 0.6, false),
			}
		}},
		{work: "40 ms, no loss: new connection and first byte", readings: func(r *Run) []reading {
			return []reading{r.times(NoLoss, NewConn16, auto, Direct, P50, "p50 / direct", 0.55, false)}
		}},
		{work: "UDP 1,200 bytes", readings: udpReadings},
		{work: "idle connections", readings: idleReadings},
		{work: "100,000 routes", readings: func(r *Run) []reading {
			ok := r.Routes.MiB > 0
			return []reading{
				{"MiB beside the tunnels", r.Routes.MiB, ok, 60, false},
				{"slowest lookup, ns", r.Routes.Lookup, ok, 300, false},
				{"replacing one, ms", r.Routes.Replace / 1e6, ok, 1, false},
			}
		}},
		{work: "idle agent", readings: func(r *Run) []reading {
			return []reading{{"MiB of anonymous memory", r.AgentKiB / 1024, r.AgentKiB > 0, 15, false}}
		}},
	}
}

func freshConnections(r *Run, many, one, ours, peer string) []reading {
	return []reading{
		r.times(Loopback, many, ours, peer, Rate, "rate / frp", 1.5, true),
		r.times(Loopback, many, ours, peer, CPU, "CPU each / frp", 0.6, false),
		r.times(Loopback, one, ours, peer, P50, "p50 / frp", 0.6, false),
	}
}

func udpReadings(r *Run) []reading {
	loss, lossOK := r.Value(on(Loopback, UDPPaced, auto), Loss)
	added := func(target string) (float64, bool) {
		v, ok := r.Value(on(Loopback, UDPLatency, target), P50)
		d, has := r.Value(on(Loopback, UDPLatency, Direct), P50)
		return v - d, ok && has
	}
	ours, ok := added(auto)
	theirs, has := added(FRP)
	late := reading{label: "added median latency / frp", bound: 0.5}
	if ok && has && theirs > 0 {
		late.value, late.ok = ours/theirs, true
	}
	return []reading{
		r.times(Loopback, UDPRate, auto, FRP, Rate, "rate / frp", 2.2, true),
		r.times(Loopback, UDPRate, auto, FRP, CPU, "CPU per datagram / frp", 0.4, false),
		{"loss at 20,000 per second, %", loss * 100, lossOK, 1, false},
		late,
	}
}

func idleReadings(r *Run) []reading {
	var out []reading
	for _, w := range []struct {
		target, what string
		edge, agent  float64
	}{{latency, "QUIC streams", 15, 17}, {throughput, "TLS lanes", 34, 38}, {Raw, "raw lanes", 10, 12}} {
		var found Idle
		for _, s := range r.Idle {
			if s.Target == w.target {
				found = s
			}
		}
		ok := found.Open > 0
		out = append(out, reading{w.what + ", KiB at the edge", found.Edge, ok, w.edge, false},
			reading{w.what + ", KiB at the agent", found.Agent, ok, w.agent, false},
			reading{w.what + ", descriptors at the edge", found.EdgeDescriptors, ok, 2.1, false})
	}
	return out
}

// Budgets is the table of promises and what was measured of them.
func (r *Run) Budgets() string {
	var rows [][]string
	for _, b := range budgets() {
		for _, x := range b.readings(r) {
			sign := "<="
			if x.least {
				sign = ">="
			}
			bound := fmt.Sprintf("%s: %s %g", x.label, sign, x.bound)
			switch {
			case !x.ok:
				rows = append(rows, []string{b.work, bound, "", "**not measured**"})
			case x.met():
				rows = append(rows, []string{b.work, bound, fmt.Sprintf("%.2f", x.value), "met"})
			default:
				rows = append(rows, []string{b.work, bound, fmt.Sprintf("%.2f", x.value), "**missed**"})
			}
		}
	}
	var out strings.Builder
	writeTable(&out, []string{"work", "budget", "measured", "verdict"}, rows)
	return out.String()
}
