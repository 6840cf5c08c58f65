package report

import (
	"fmt"
	"html"
	"strings"
)

// plot is a bar chart of one figure over all targets.
type plot struct {
	file, title, unit string
	scene, work       string
	figure            Figure
	scale             float64
}

func plots() []plot {
	return []plot{
		{"bulk.svg", "Bulk download, 16 streams, loopback", "MB/s", Loopback, Bulk16, Rate, 1e-6},
		{"cpu.svg", "CPU of edge and agent, 16 streams (less is better)", "s/GB", Loopback, Bulk16, CPU, 1},
		{"http.svg", "HTTP, 64 kept-alive connections", "requests/s", Loopback, HTTPKeepAlive, Rate, 1},
		{"connections.svg", "New connections, 32 at a time", "per second", Loopback, NewConn32, Rate, 1},
		{"udp.svg", "UDP, 1,200 bytes, 32 in flight", "datagrams/s", Loopback, UDPRate, Rate, 1},
		{"loss-bulk.svg", "40 ms, 1 % loss, cubic: 16 streams", "MB/s", CubicLoss, Bulk16, Rate, 1e-6},
		{"loss-echo.svg", "40 ms, 1 % loss, cubic: echo p99 (less is better)", "ms", CubicLoss, Echo16, P99, 1e3},
	}
}

// Bar is one bar of a chart.
type Bar struct {
	Label string
	Value float64
}

// Plots returns the charts by file name, those with something to show.
func (r *Run) Plots() map[string]string {
	out := map[string]string{}
	for _, p := range plots() {
		var bars []Bar
		for _, t := range r.names(p.scene, func(s Sample) string { return s.Target }, order...) {
			// A direct connection on one machine would dwarf what is compared.
			if p.scene == Loopback && t == Direct {
				continue
			}
			if v, ok := r.Value(Series{p.scene, p.work, t}, p.figure); ok {
				bars = append(bars, Bar{t, v * p.scale})
			}
		}
		if len(bars) > 1 {
			out[p.file] = Chart(p.title, p.unit, bars)
		}
	}
	return out
}

// Chart draws horizontal bars as SVG; Adit's stand out.
func Chart(title, unit string, bars []Bar) string {
	const (
		width, left, top = 760, 210, 44
		row, space       = 24, 110
	)
	most := 0.0
	for _, b := range bars {
		most = max(most, b.Value)
	}
	var s strings.Builder
	height := top + row*len(bars) + 12
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&s, `<text x="12" y="26" font-size="16" fill="#111">%s, %s</text>`+"\n", html.EscapeString(title), html.EscapeString(unit))
	for i, b := range bars {
		y := top + row*i
		length := 0.0
		if most > 0 {
			length = b.Value / most * (width - left - space)
		}
		colour := "#9aa5b1"
		if strings.HasPrefix(b.Label, "adit") {
			colour = "#c2571a"
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end" fill="#111">%s</text>`, left-8, y+15, html.EscapeString(b.Label))
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y+3, max(length, 1), row-8, colour)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" fill="#111">%s</text>`+"\n", left+length+6, y+15, shown(b.Value))
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func shown(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
