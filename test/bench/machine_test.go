//go:build bench && linux

package bench

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/need"
)

// machine describes where and with what this run measures.
func machine(t *testing.T) report.Machine {
	t.Helper()
	m := report.Machine{Date: time.Now().Format(time.DateOnly), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: "Linux " + file("/proc/sys/kernel/osrelease"), Default: file("/proc/sys/net/ipv4/tcp_congestion_control"), Peers: map[string]string{}}
	m.Load = strings.Join(strings.Fields(file("/proc/loadavg"))[:3], " ")
	if out, err := exec.Command("git", "-C", need.Root(), "describe", "--always", "--dirty").Output(); err == nil {
		m.Revision = strings.TrimSpace(string(out))
	}
	for line := range strings.Lines(file("/proc/cpuinfo")) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(model)
			break
		}
	}
	mod, err := os.ReadFile(filepath.Join(need.Root(), "test", "bench", "peers", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"frp": "github.com/fatedier/frp", "chisel": "github.com/jpillora/chisel"} {
		if v := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(path) + ` (v\S+)`).FindSubmatch(mod); v != nil {
			m.Peers[name] = string(v[1])
		}
	}
	if bin := need.Find("haproxy"); bin != "" {
		if out, err := exec.Command(bin, "-v").Output(); err == nil {
			first, _, _ := bufio.NewReader(bytes.NewReader(out)).ReadLine()
			if v := regexp.MustCompile(`\d+\.\d+\.\d+`).Find(first); v != nil {
				m.Peers["HAProxy"] = string(v)
			}
		}
	}
	return m
}

func file(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
