//go:build bench && linux

package bench

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/need"
)

var (
	routeMemory = regexp.MustCompile(`routes: ([0-9.]+) MiB`)
	routeLine   = regexp.MustCompile(`(?m)^Benchmark(\w+)(?:/(\w+))?\S*\s+\d+\s+([0-9.]+) ns/op`)
)

// routes runs the routing table's own measurements, which hold 100,000 routes.
func routes(t *testing.T) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestBudget$", "-bench", "^Benchmark(Host|ReplaceOne)$", "-benchtime", "300ms", "./internal/edge/route")
	cmd.Dir = need.Root()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	number := func(b []byte) float64 {
		v, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var r report.Routes
	if m := routeMemory.FindSubmatch(out); m != nil {
		r.MiB = number(m[1])
	}
	for _, m := range routeLine.FindAllSubmatch(out, -1) {
		switch string(m[1]) {
		case "Host":
			r.Lookup = max(r.Lookup, number(m[3]))
		case "ReplaceOne":
			r.Replace = number(m[3])
		}
	}
	if r.MiB == 0 || r.Lookup == 0 || r.Replace == 0 {
		t.Fatalf("not understood:\n%s", out)
	}
	run.Routes = r
}
