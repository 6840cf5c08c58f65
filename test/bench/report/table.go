package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// order is how targets are listed.
var order = []string{Direct, "adit auto", "adit throughput", "adit latency", "adit auto passthrough", "adit throughput passthrough", "adit latency passthrough", Raw, FRP, "frp https2http",
	"frp tcp", "frp nomux", "frp quic", "chisel", "haproxy 1 hop", "haproxy 2 hop", "haproxy 2 hop tls"}

// Markdown is the whole report as tables.
func (r *Run) Markdown() string {
	var b strings.Builder
	for _, scene := range r.names("", func(s Sample) string { return s.Scene }) {
		fmt.Fprintf(&b, "\n### %s\n", scene)
		for _, work := range r.names(scene, func(s Sample) string { return s.Work }) {
			r.table(&b, scene, work)
		}
	}
	r.idleTable(&b)
	r.agentsTable(&b)
	return b.String()
}

// column of a table; a column of nothing but zeros is left out.
type column struct {
	head   string
	value  func(Series) (float64, bool)
	scale  float64
	digits int
	// zero: a zero is shown, where it is not a sign of nothing to measure.
	zero bool
}

func (r *Run) columns(scene, work string) []column {
	value := func(f Figure) func(Series) (float64, bool) {
		return func(s Series) (float64, bool) { return r.Value(s, f) }
	}
	ratio := func(to string, f Figure) func(Series) (float64, bool) {
		return func(s Series) (float64, bool) { return r.Ratio(s, Series{scene, work, to}, f) }
	}
	rate, cpu := column{"per second", value(Rate), 1, 0, true}, column{"CPU µs each", value(CPU), 1, 0, false}
	if r.countsBytes(scene, work) {
		rate, cpu = column{"MB/s", value(Rate), 1e-6, 1, true}, column{"CPU s/GB", value(CPU), 1, 2, false}
	}
	return []column{
		rate, {"/ direct", ratio(Direct, Rate), 1, 2, true}, {"/ frp", ratio(FRP, Rate), 1, 2, true},
		{"p50 ms", value(P50), 1e3, 2, false}, {"p99 ms", value(P99), 1e3, 2, false}, {"loss %", value(Loss), 100, 1, true},
		cpu, {"CPU / frp", ratio(FRP, CPU), 1, 2, false},
		{"failed", value(func(s Sample) float64 { return float64(s.Result.Failed) }), 1, 0, false},
	}
}

func (r *Run) table(b *strings.Builder, scene, work string) {
	targets := slices.DeleteFunc(r.names(scene, func(s Sample) string { return s.Target }, order...), func(t string) bool {
		_, ok := r.Value(Series{scene, work, t}, Rate)
		return !ok
	})
	heads := []string{work}
	rows := make([][]string, len(targets))
	for i, t := range targets {
		rows[i] = []string{t}
	}
	for _, c := range r.columns(scene, work) {
		cells := make([]string, len(targets))
		some := false
		for i, t := range targets {
			v, ok := c.value(Series{scene, work, t})
			some = some || v != 0
			if ok && (v != 0 || c.zero) {
				cells[i] = fmt.Sprintf("%.*f", c.digits, v*c.scale)
			}
		}
		if !some {
			continue
		}
		heads = append(heads, c.head)
		for i := range rows {
			rows[i] = append(rows[i], cells[i])
		}
	}
	writeTable(b, heads, rows)
}

// countsBytes reports whether a work moves bytes rather than doing operations.
func (r *Run) countsBytes(scene, work string) bool {
	for _, s := range r.Samples {
		if s.Scene == scene && s.Work == work && s.Result.Bytes > 0 {
			return true
		}
	}
	return false
}

func (r *Run) idleTable(b *strings.Builder) {
	if len(r.Idle) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### idle connections\n")
	var rows [][]string
	for _, s := range r.Idle {
		rows = append(rows, []string{s.Target, fmt.Sprint(s.Open), fmt.Sprintf("%.1f / %.1f", s.Edge, s.Agent),
			fmt.Sprintf("%.1f / %.1f", s.EdgeUsed, s.AgentUsed), fmt.Sprintf("%.2f / %.2f", s.EdgeDescriptors, s.AgentDescriptors), fmt.Sprint(s.Failed)})
	}
	writeTable(b, []string{"edge / agent, each connection", "open", "KiB, silent since opening", "KiB, after 256 KiB each way", "descriptors", "failed"}, rows)
}

func (r *Run) agentsTable(b *strings.Builder) {
	a := r.Agents
	if a.Count == 0 {
		return
	}
	fmt.Fprintf(b, "\n### connected agents\n")
	writeTable(b, []string{"enrolled agents, idle", "KiB of the server for each", "back after an outage of", "first", "half", "all"}, [][]string{{
		fmt.Sprint(a.Count), fmt.Sprintf("%.0f", a.KiB), fmt.Sprintf("%.0f s", a.Away), fmt.Sprintf("%.1f s", a.First), fmt.Sprintf("%.1f s", a.Half), fmt.Sprintf("%.1f s", a.Last)}})
}

// Where is the paragraph about machine and settings.
func (r *Run) Where() string {
	m := r.Machine
	peers := slices.Collect(maps.Keys(m.Peers))
	slices.Sort(peers)
	for i, p := range peers {
		peers[i] = p + " " + m.Peers[p]
	}
	return fmt.Sprintf("Measured on %s, revision %s: %s, %d cores, %s, %s, default congestion control %s; beside %s. "+
		"On loopback %d rounds of %g s a measurement, on the emulated path %d of %g s. Load average before the run: %s.\n",
		m.Date, m.Revision, m.CPU, m.Cores, m.Kernel, m.Go, m.Default, strings.Join(peers, ", "),
		r.Settings.Rounds, r.Settings.Seconds, r.Settings.PathRounds, r.Settings.PathSeconds, m.Load)
}

func writeTable(b *strings.Builder, heads []string, rows [][]string) {
	fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}
