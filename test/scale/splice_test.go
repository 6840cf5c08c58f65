//go:build linux

package scale

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// perRawAgent is how many connections one agent carries on raw lanes here, of 4,096.
const perRawAgent = 2500

// TestSplice moves bulk on raw lanes beside connections that say nothing, with processes that have no
// privilege: such a user may hold 64 MiB in pipes.
func TestSplice(t *testing.T) {
	n := 300
	if need.Soak() {
		n = 5000
	}
	bare := []string{need.Program(t, "setpriv")[0], "--bounding-set", "-all", "--inh-caps", "-all"}
	need.Program(t, "strace")
	tcp, _ := startOrigin(t)
	s := stack.StartServer(t, stack.ServerConfig{Wrap: bare, Args: []string{"--log-level", "warn",
		"--max-connections-per-address", "15000", "--max-connections-per-tunnel", "15000"}})
	processes := []*stack.Process{s.Process}
	var dials []load.Dial
	for i := range max(1, n/perRawAgent) {
		host := fmt.Sprintf("splice%d.localhost", i)
		a := stack.StartAgent(t, s.Invite(host, "--hostname", host).File, stack.AgentConfig{Wrap: bare, Args: []string{"--log-level", "warn"},
			Services: []stack.Service{stack.Passthrough(host, tcp).With("carrier_policy", "raw")}})
		s.WaitOnline(1, host)
		processes = append(processes, a.Process)
		dial := load.After(load.TCP(s.HTTPS), load.ClientHello(host))
		if r := load.Echo(t.Context(), dial, 1, 128, 10*time.Millisecond, false); r.Failed > 0 {
			t.Fatal(r.FirstErr) // it asks for raw lanes
		}
		stack.Eventually(t, 20*time.Second, func() error {
			if a.Metric("adit_agent_lanes", `kind="raw"`) < 16 {
				return fmt.Errorf("raw lanes are missing; the agent says\n%s", a.Log())
			}
			return nil
		})
		dials = append(dials, dial)
	}
	before := descriptors(processes)
	for _, dial := range dials {
		held := load.Hold(t.Context(), load.Paced(dial, time.Second/150), n/len(dials))
		if held.Open() != n/len(dials) {
			failed, first := held.Close()
			t.Fatalf("%d of %d stand, %d failed, first: %s", held.Open(), n/len(dials), failed, first)
		}
		defer held.Close()
	}
	moved := stack.Trace(t, processes[0], processes[1])
	size := download(t, dials[0])
	calls := moved()
	for i, d := range descriptors(processes) {
		share := n
		if i > 0 {
			share = n / len(dials)
		}
		// Idle lanes, and the idle pipes of the pool.
		if spare := d - before[i] - 2*share; spare > 200 {
			t.Errorf("process %d holds %d descriptors beside 2 for each of %d connections", i, spare, share)
		}
	}
	t.Logf("%d bytes beside %d idle connections by %v", size, n, calls)
	if calls["splice"] < 4*size { // in and out, at both ends
		t.Errorf("%d bytes spliced, want each of %d four times", calls["splice"], size)
	}
	for call, n := range calls {
		if call != "splice" && n > size/16 {
			t.Errorf("%d bytes by %s", n, call)
		}
	}
}

func descriptors(ps []*stack.Process) (ns []int) {
	for _, p := range ps {
		ns = append(ns, p.Descriptors())
	}
	return ns
}

// download takes some bulk from the origin and returns how many bytes that were.
func download(t *testing.T, dial load.Dial) (size int) {
	t.Helper()
	c, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.(*net.TCPConn).Write([]byte("D")); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 256<<10); size < 64<<20; {
		n, err := c.Read(buf)
		if size += n; err != nil {
			t.Fatalf("after %d bytes: %v", size, err)
		}
	}
	return size
}
