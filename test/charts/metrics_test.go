package charts_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/adit-dev/adit/test/charts"
	"github.com/adit-dev/adit/test/need"
)

var metric = regexp.MustCompile(`\b(adit|process)_[a-z_]+\b`)

// TestMetrics: alerts and dashboards name metrics that the code has.
func TestMetrics(t *testing.T) {
	known := map[string]bool{"process_resident_memory_bytes": true, "process_cpu_seconds_total": true}
	literal := regexp.MustCompile(`"(adit_[a-z_]+)"`)
	part := regexp.MustCompile(`"adit_" \+ \w+ \+ "(_[a-z_]+)"`)
	err := filepath.WalkDir(filepath.Join(need.Root(), "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range literal.FindAllStringSubmatch(string(b), -1) {
			known[m[1]] = true
		}
		for _, m := range part.FindAllStringSubmatch(string(b), -1) {
			known["adit_edge"+m[1]], known["adit_agent"+m[1]] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := func(where, text string) {
		found := metric.FindAllString(text, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", where)
		}
		for _, name := range found {
			if !known[name] && !known[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: %s is no metric of ours", where, name)
			}
		}
	}
	type rule struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr string
					Annotations map[string]string
				}
			}
		}
	}
	var promql strings.Builder
	for chart, set := range map[string]string{"adit": "agent.metrics.", "adit-agent": "metrics.", "adit-server": "metrics."} {
		all := must(t, chart, least[chart], "--set", set+"prometheusRule.enabled=true,"+set+"dashboard.enabled=true")
		r := some[rule](t, all, "PrometheusRule")
		for _, x := range r.Spec.Groups[0].Rules {
			named(chart+" "+x.Alert, x.Expr)
			promql.WriteString(x.Expr + "\n")
			if x.Annotations["summary"] == "" || x.Annotations["description"] == "" || !strings.Contains(x.Expr, `namespace="ns",pod=~"r-`+chart) {
				t.Errorf("%s, %s: %q %v", chart, x.Alert, x.Expr, x.Annotations)
			}
		}
		for _, text := range get[corev1.ConfigMap](t, all, "ConfigMap", "").Data {
			var d struct {
				Panels []struct {
					Title   string
					Targets []struct{ Expr string }
				}
			}
			if err := json.Unmarshal([]byte(text), &d); err != nil || len(d.Panels) < 8 {
				t.Errorf("%s: %d panels, %v", chart, len(d.Panels), err)
			}
			for _, p := range d.Panels {
				for _, target := range p.Targets {
					named(chart+", panel "+p.Title, target.Expr)
					promql.WriteString(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m") + "\n")
				}
			}
		}
	}
	t.Run("expressions are PromQL", func(t *testing.T) {
		if err := reader(t, "promql", promql.String()); err != nil {
			t.Error(err)
		}
		if reader(t, "promql", "sum by (a) (b{c=\"d\"}") == nil {
			t.Error("a missing bracket is not found")
		}
	})
	t.Run("both charts of the agent have one dashboard", func(t *testing.T) {
		a, err1 := os.ReadFile(filepath.Join(charts.Dir("adit"), "files", "agent-dashboard.json"))
		b, err2 := os.ReadFile(filepath.Join(charts.Dir("adit-agent"), "files", "agent-dashboard.json"))
		if err1 != nil || err2 != nil || string(a) != string(b) {
			t.Errorf("they differ: %v, %v", err1, err2)
		}
	})
}
