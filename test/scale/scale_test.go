//go:build linux

// Package scale holds many connections at the real binary: what each costs while it is silent,
// and what a reader that cannot keep up costs. ADIT_TEST_SOAK=1 asks for the numbers that
// docs/limits.md tells of.
package scale

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// beOrigin makes this program an origin: its connections need descriptors of their own.
const beOrigin = "ADIT_SCALE_ORIGIN"

func TestMain(m *testing.M) {
	if os.Getenv(beOrigin) == "1" {
		o, err := load.ListenOrigin("127.0.0.1")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		o.Announce(os.Stdout)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // Ends with the test, whatever becomes of it.
			os.Exit(0)
		}()
		o.Serve(context.Background())
		return
	}
	stack.Main(m)
}

// startOrigin returns the addresses of an origin in a process of its own.
func startOrigin(t *testing.T) (tcp, udp string) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), beOrigin+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	tcp, _, udp, err = load.ParseOrigin(bufio.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return tcp, udp
}

// carriage is a way that the streams of a test ride.
type carriage struct {
	name, policy string
	agentArgs    []string
	// perAgent is how many connections one agent carries.
	perAgent int
	// edge and agent are the budgets of an idle connection in KiB.
	edge, agent int64
}

var (
	// The limits of a descriptor limit of 20,000: an edge takes 0.7 of it in visitors.
	onQUIC = carriage{name: "QUIC streams", policy: "latency", perAgent: 14000, edge: 15, agent: 17}
	// A session has 4,096 lanes.
	onLanes = carriage{name: "TLS lanes", policy: "throughput", agentArgs: []string{"--carriers", "tls"}, perAgent: 4000, edge: 34, agent: 38}
)

// rig is a server, its agents and where visitors connect.
type rig struct {
	*stack.Server
	agents []*stack.Agent
	dial   load.Dial
}

// newRig starts as many agents as n connections need.
func newRig(t *testing.T, c carriage, n int) rig {
	t.Helper()
	origin, _ := startOrigin(t)
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--log-level", "warn",
		"--max-connections-per-address", "15000", "--max-connections-per-tunnel", "15000"}})
	port := freeport.One(t)
	inv := s.Invite("scale", "--tcp-port", fmt.Sprint(port))
	r := rig{Server: s, dial: load.TCP(fmt.Sprintf("127.0.0.1:%d", port))}
	for range max(1, (n+c.perAgent-1)/c.perAgent) {
		r.agents = append(r.agents, stack.StartAgent(t, inv.File, stack.AgentConfig{
			Args: append([]string{"--log-level", "warn"}, c.agentArgs...),
			TCP:  []stack.Service{stack.Port("scale", port, origin).With("carrier_policy", c.policy)},
		}))
	}
	s.WaitOnline(len(r.agents), fmt.Sprint("tcp:", port))
	return r
}

// usage is what the processes hold: resident bytes and descriptors.
type usage struct {
	edge, agent           int64
	edgeFiles, agentFiles int
}

func (r rig) usage() usage {
	u := usage{edge: r.RSS(), edgeFiles: r.Descriptors()}
	for _, a := range r.agents {
		u.agent += a.RSS()
		u.agentFiles += a.Descriptors()
	}
	return u
}

// settled waits until memory stands still, as collections of garbage give it back late.
func (r rig) settled(t *testing.T) usage {
	t.Helper()
	u := r.usage()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
		next := r.usage()
		if d := next.edge + next.agent - u.edge - u.agent; d < 1<<20 && d > -(1<<20) {
			return next
		}
		u = next
	}
	return u
}

// TestIdle holds connections that say nothing.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		carriage
		n, long int
	}{{onQUIC, 500, 13500}, {onLanes, 300, 8000}} {
		n := c.n
		if need.Soak() {
			n = c.long
		}
		t.Run(fmt.Sprintf("%d on %s", n, c.name), func(t *testing.T) { holdIdle(t, c.carriage, n) })
	}
}

func holdIdle(t *testing.T, c carriage, n int) {
	r := newRig(t, c, n)
	// The first connections pay for what every process sets up once.
	warm := load.Hold(t.Context(), r.dial, 20*len(r.agents))
	if failed, first := warm.Close(); failed > 0 {
		t.Fatalf("%d failed at the start: %s", failed, first)
	}
	before := r.settled(t)
	held := load.Hold(t.Context(), r.dial, n)
	now := r.settled(t)
	open := int64(held.Open())
	if failed, first := held.Close(); failed > 0 || open != int64(n) {
		t.Fatalf("%d of %d stand, %d failed, first: %s", open, n, failed, first)
	}
	edge, agent := (now.edge-before.edge)/open, (now.agent-before.agent)/open
	edgeFiles, agentFiles := float64(now.edgeFiles-before.edgeFiles)/float64(open), float64(now.agentFiles-before.agentFiles)/float64(open)
	t.Logf("%d idle on %s: edge %.1f KiB and %.2f descriptors each, agent %.1f KiB and %.2f", open, c.name,
		float64(edge)/1024, edgeFiles, float64(agent)/1024, agentFiles)
	if edge > 2*c.edge<<10 || agent > 2*c.agent<<10 {
		t.Errorf("%d KiB at the edge and %d at the agent, want at most twice %d and %d", edge>>10, agent>>10, c.edge, c.agent)
	}
	if edgeFiles > 2.1 || agentFiles > 2.1 {
		t.Errorf("%.2f descriptors at the edge and %.2f at the agent, want 2 at most", edgeFiles, agentFiles)
	}
	// What a connection held goes with it; lanes stay a while for the next.
	stack.Eventually(t, 30*time.Second, func() error {
		if got := r.Metric("adit_edge_streams"); got > 0 {
			return fmt.Errorf("%v streams are left", got)
		}
		return nil
	})
}

// TestSlowReader downloads faster from the origin than the visitor reads.
func TestSlowReader(t *testing.T) {
	size, rate := int64(128<<20), int64(24<<20)
	if need.Soak() {
		size, rate = 1<<30, 5<<20
	}
	for _, c := range []carriage{onQUIC, onLanes} {
		t.Run("H17 a slow reader of a large download on "+c.name, func(t *testing.T) { readSlowly(t, c, size, rate) })
	}
}

func readSlowly(t *testing.T, c carriage, size, rate int64) {
	r := newRig(t, c, 1)
	visitor, err := r.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer visitor.Close()
	before := r.usage()
	if _, err := visitor.Write([]byte("D")); err != nil {
		t.Fatal(err)
	}
	var peak usage
	start, got := time.Now(), int64(0)
	for buf := make([]byte, 256<<10); got < size; {
		n, err := visitor.Read(buf)
		got += int64(n)
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", got, size, err)
		}
		if got>>22 != (got-int64(n))>>22 {
			u := r.usage()
			peak.edge, peak.agent = max(peak.edge, u.edge), max(peak.agent, u.agent)
		}
		time.Sleep(time.Until(start.Add(time.Duration(float64(got) / float64(rate) * float64(time.Second)))))
	}
	edge, agent := peak.edge-before.edge, peak.agent-before.agent
	t.Logf("%d MiB at %d MiB/s: memory rose by %.1f MiB at the edge, %.1f MiB at the agent", size>>20, rate>>20,
		float64(edge)/(1<<20), float64(agent)/(1<<20))
	if edge > 32<<20 || agent > 32<<20 {
		t.Errorf("memory rose by %d MiB at the edge, %d MiB at the agent, want less than 32", edge>>20, agent>>20)
	}
}
