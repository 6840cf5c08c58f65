//go:build bench && linux

package bench

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/stack"
)

// host is the name that HTTP visitors ask for.
const host = "bench.localhost"

// ticksPerSecond is the unit of /proc/PID/stat on Linux.
const ticksPerSecond = 100

// site says where the two sides of every target run.
type site struct {
	// near is the address of the edge's side, far the one of agent and origin.
	near, far string
	// wrap runs a program on the far side.
	wrap []string
}

func (s site) remote() bool { return s.near != s.far }

func (s site) at(port int) string { return net.JoinHostPort(s.near, strconv.Itoa(port)) }

// origin is where every target forwards to.
type origin struct{ tcp, http, udp string }

// startOrigin runs this program again as the origin.
func startOrigin(t *testing.T, s site) origin {
	t.Helper()
	line := append(append([]string{}, s.wrap...), self(t), "-serve-origin", s.far)
	cmd := exec.Command(line[0], line[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var o origin
	if o.tcp, o.http, o.udp, err = load.ParseOrigin(out); err != nil {
		t.Fatal(err)
	}
	return o
}

// target is one product in one mode, running beside the others; an address is empty where the
// product cannot do that kind.
type target struct {
	name string
	// tcp, udp and http are where visitors connect; hello are bytes a visitor must send first.
	tcp, udp, http string
	hello          []byte
	// tls is set where HTTP visitors speak TLS.
	tls *tls.Config
	// edge and agent are the processes whose CPU and memory count.
	edge, agent *stack.Process
	// admin are the addresses of their profiles.
	admin map[string]string
}

func (g *target) dialTCP() load.Dial {
	if len(g.hello) == 0 {
		return load.TCP(g.tcp)
	}
	return load.After(load.TCP(g.tcp), g.hello)
}

func (g *target) dialHTTP() load.Dial {
	if g.tls != nil {
		return load.TLS(g.http, host, g.tls)
	}
	return load.TCP(g.http)
}

func (g *target) processes() []*stack.Process {
	var ps []*stack.Process
	for _, p := range []*stack.Process{g.edge, g.agent} {
		if p != nil {
			ps = append(ps, p)
		}
	}
	return ps
}

// cpu is the CPU time of edge and agent in seconds so far.
func (g *target) cpu(t *testing.T) float64 {
	t.Helper()
	var ticks int64
	for _, p := range g.processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		// User and system time, counted from the command name, which ends with the last parenthesis.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
		var user, system int64
		if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
			t.Fatal(err)
		}
		ticks += user + system
	}
	return float64(ticks) / ticksPerSecond
}
