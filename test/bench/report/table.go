package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// order is how targets are listed.
var order = []string{Direct, "adit auto", "adit throughput", "adit latency", "adit throughput passthrough", FRP, "frp https2http",
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
	return b.String()
}

// column of a table; a column without any value is left out.
type column struct {
	head string
	cell func(Series) string
}

func (r *Run) table(b *strings.Builder, scene, work string) {
	targets := slices.DeleteFunc(r.names(scene, func(s Sample) string { return s.Target }, order...), func(t string) bool {
		_, ok := r.Value(Series{scene, work, t}, Rate)
		return !ok
	})
	value := func(head string, f Figure, format func(float64) string) column {
		return column{head, func(s Series) string {
			if v, ok := r.Value(s, f); ok && v != 0 {
				return format(v)
			}
			return ""
		}}
	}
	ratio := func(to string, f Figure) column {
		head := "/ " + to
		return column{head, func(s Series) string {
			if v, ok := r.Ratio(s, Series{scene, work, to}, f); ok && v != 0 {
				return fmt.Sprintf("%.2f", v)
			}
			return ""
		}}
	}
	number := func(scale float64, digits int) func(float64) string {
		return func(v float64) string { return fmt.Sprintf("%.*f", digits, v*scale) }
	}
	rate, cpu := value("per second", Rate, number(1, 0)), value("CPU µs each", CPU, number(1, 0))
	if r.countsBytes(scene, work) {
		rate, cpu = value("MB/s", Rate, number(1e-6, 1)), value("CPU s/GB", CPU, number(1, 2))
	}
	cpuRatio := ratio(FRP, CPU)
	cpuRatio.head = "CPU / frp"
	columns := []column{rate, ratio(Direct, Rate), ratio(FRP, Rate), value("p50 ms", P50, number(1e3, 2)), value("p99 ms", P99, number(1e3, 2)),
		value("loss %", Loss, number(100, 1)), cpu, cpuRatio,
		value("failed", func(s Sample) float64 { return float64(s.Result.Failed) }, number(1, 0))}

	rows := make([][]string, len(targets))
	heads := []string{work}
	for i, t := range targets {
		rows[i] = []string{t}
	}
	for _, c := range columns {
		cells := make([]string, len(targets))
		any := false
		for i, t := range targets {
			cells[i] = c.cell(Series{scene, work, t})
			any = any || cells[i] != ""
		}
		if !any {
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

// Where is the paragraph about machine and settings.
func (r *Run) Where() string {
	m := r.Machine
	peers := slices.Collect(maps.Keys(m.Peers))
	slices.Sort(peers)
	for i, p := range peers {
		peers[i] = p + " " + m.Peers[p]
	}
	return fmt.Sprintf("Measured on %s, revision %s: %s, %d cores, %s, %s, default congestion control %s; beside %s. "+
		"%d rounds, %g s a measurement on loopback and %g s on the emulated path. Load average before the run: %s.\n",
		m.Date, m.Revision, m.CPU, m.Cores, m.Kernel, m.Go, m.Default, strings.Join(peers, ", "),
		r.Settings.Rounds, r.Settings.Seconds, r.Settings.PathSeconds, m.Load)
}

func writeTable(b *strings.Builder, heads []string, rows [][]string) {
	fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}
