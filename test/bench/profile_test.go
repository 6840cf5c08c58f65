//go:build bench && linux

package bench

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

var profiles = flag.String("profiles", "", "folder for CPU profiles of edge and agent; empty = none are taken")

// TestProfile takes CPU profiles of edge and agent under each work, on loopback with policy auto:
//
//	go test -tags bench -run '^TestProfile$' ./test/bench -args -profiles /somewhere -length 5s -works keep-alive
func TestProfile(t *testing.T) {
	if *profiles == "" {
		t.Log("no folder for profiles; give one with -profiles")
		return
	}
	s := site{near: "127.0.0.1", far: "127.0.0.1"}
	o := startOrigin(t, s)
	matching := regexp.MustCompile(*works)
	for _, g := range adit(t, s, o, "auto") {
		for _, w := range loopbackWorks() {
			if !matching.MatchString(w.name) || !wanted(t, g.name) {
				continue
			}
			var wg sync.WaitGroup
			for side, admin := range g.admin {
				wg.Go(func() { saveProfile(t, admin, fmt.Sprintf("%s, %s, %s", g.name, w.name, side)) })
			}
			before := g.cpu(t)
			r, ok := w.run(t.Context(), g)
			cpu := perUnit(r, g.cpu(t)-before)
			wg.Wait()
			if ok {
				t.Logf("%s, %s: %.0f per second, p50 %.2f ms, p99 %.2f ms, CPU %.1f each; %d failed %s", g.name, w.name, r.Rate, r.P50*1e3, r.P99*1e3, cpu, r.Failed, r.FirstErr)
			}
		}
	}
}

// saveProfile is the CPU profile of one process while a measurement runs.
func saveProfile(t *testing.T, admin, name string) {
	kind := fmt.Sprintf("profile?seconds=%d", max(1, int(length.Seconds())))
	resp, err := http.Get("http://" + admin + "/debug/pprof/" + kind)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", name, resp.Status, err)
		return
	}
	file := strings.NewReplacer(" ", "-", ",", "").Replace(name) + ".pb.gz"
	if err := os.WriteFile(filepath.Join(*profiles, file), b, 0o600); err != nil {
		t.Error(err)
	}
}
