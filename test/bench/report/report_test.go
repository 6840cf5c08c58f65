package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/adit-dev/adit/test/bench/load"
)

func rate(round int, target string, v float64) Sample {
	return Sample{Scene: Loopback, Round: round, Work: Bulk1, Target: target, Result: load.Result{Bytes: 1, Rate: v}, CPU: 1 / v}
}

// example is a machine that is ten times slower in its second round.
func example() *Run {
	return &Run{Samples: []Sample{
		rate(0, FRP, 100e6), rate(0, passthrough, 180e6), rate(0, Direct, 1000e6),
		rate(1, FRP, 10e6), rate(1, passthrough, 20e6), rate(1, Direct, 100e6),
		rate(2, FRP, 100e6), rate(2, passthrough, 140e6),
	}}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
		ok   bool
	}{
		{nil, 0, false},
		{[]float64{3}, 3, true},
		{[]float64{9, 1, 5}, 5, true},
		{[]float64{4, 1, 9, 2}, 3, true},
	} {
		before := append([]float64(nil), c.in...)
		if got, ok := Median(c.in); got != c.want || ok != c.ok {
			t.Errorf("median of %v: %v, %v; want %v, %v", c.in, got, ok, c.want, c.ok)
		}
		if diff := cmp.Diff(before, c.in); diff != "" {
			t.Errorf("the values were changed: %s", diff)
		}
	}
}

func TestRatioIsOfRounds(t *testing.T) {
	r := example()
	a, b := Series{Loopback, Bulk1, passthrough}, Series{Loopback, Bulk1, FRP}
	if v, ok := r.Ratio(a, b, Rate); !ok || v != 1.8 {
		t.Errorf("ratio %v, %v; want the median of 1.8, 2.0 and 1.4", v, ok)
	}
	if v, ok := r.Ratio(a, Series{Loopback, Bulk1, Direct}, Rate); !ok || v < 0.189 || v > 0.191 {
		t.Errorf("ratio %v, %v over the two rounds that have both", v, ok)
	}
	if _, ok := r.Ratio(a, Series{Loopback, Bulk1, "nobody"}, Rate); ok {
		t.Error("a ratio to something that was not measured")
	}
	if v, ok := r.Value(a, Rate); !ok || v != 140e6 {
		t.Errorf("median %v, %v", v, ok)
	}
}

func TestMarkdown(t *testing.T) {
	got := example().Markdown()
	for _, want := range []string{
		"| bulk, 1 stream | MB/s | / direct | / frp | CPU s/GB | CPU / frp |",
		"| adit throughput passthrough | 140.0 | 0.19 | 1.80 |",
		"| frp | 100.0 | 0.10 | 1.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Index(got, "| direct |") > strings.Index(got, "| adit") {
		t.Error("targets are out of order")
	}
}

// A target that moved nothing has a zero, one that was not measured no row.
func TestMarkdownShowsStalls(t *testing.T) {
	r := example()
	r.Samples = append(r.Samples, Sample{Scene: Loopback, Work: Bulk1, Target: "stalled"})
	if got := r.Markdown(); !strings.Contains(got, "| stalled | 0.0 |") || strings.Contains(got, "chisel") {
		t.Error(got)
	}
}

func TestBudgets(t *testing.T) {
	r := example()
	r.Idle = []Idle{{Target: latency, Open: 10, Edge: 14, Agent: 18, EdgeDescriptors: 1}}
	got := r.Budgets()
	for _, want := range []string{
		"| 1 stream / frp: >= 1.5 | 1.80 | met |",
		"| 16 streams / frp: >= 1.4 |  | **not measured** |",
		"| QUIC streams, KiB at the edge: <= 15 | 14.00 | met |",
		"| QUIC streams, KiB at the agent: <= 17 | 18.00 | **missed** |",
		"| TLS lanes, KiB at the edge: <= 34 |  | **not measured** |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestChartIsXML(t *testing.T) {
	svg := Chart("a < b & c", "MB/s", []Bar{{"adit auto", 10}, {"<frp>", 0}})
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raw.json")
	want := example()
	want.Machine.Peers = map[string]string{"frp": "1"}
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPublish(t *testing.T) {
	docs := t.TempDir()
	page := filepath.Join(docs, "benchmarks.md")
	const start = "# T\n<!-- where: made -->\n<!-- end -->\nkept\n<!-- budgets: made -->\nold\n<!-- end -->\n<!-- plots: made -->\n<!-- end -->\n<!-- tables: made -->\n<!-- end -->\n"
	if err := os.WriteFile(page, []byte(start), 0o644); err != nil {
		t.Fatal(err)
	}
	var before []byte
	for range 2 { // writing again changes nothing
		if err := example().Publish(docs); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), "\nkept\n") || strings.Contains(string(got), "\nold\n") || !strings.Contains(string(got), "| 1.80 | met |") {
			t.Fatalf("page:\n%s", got)
		}
		if before != nil && string(before) != string(got) {
			t.Error("a second time gave another page")
		}
		before = got
	}
	if _, err := Fill("no marks", map[string]string{"where": ""}); err == nil {
		t.Error("a page without its made part was accepted")
	}
}
