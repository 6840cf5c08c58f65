//go:build linux

package scale

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestFlows holds UDP flows that say nothing.
func TestFlows(t *testing.T) {
	n := 300
	if need.Soak() {
		n = 4000 // A port has 4,096.
	}
	_, udp := startOrigin(t)
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--log-level", "warn"}})
	port := freeport.One(t)
	inv := s.Invite("flows", "--udp-port", fmt.Sprint(port))
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Args: []string{"--log-level", "warn"},
		UDP: []stack.Service{stack.Port("flows", port, udp)}})
	s.WaitOnline(1, fmt.Sprint("udp:", port))
	r := rig{Server: s, agents: []*stack.Agent{a}}
	hold := func(host byte, n int) {
		t.Helper()
		for i := range n {
			// One address has 64 flows.
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, host, byte(1+i/50))},
				&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			stack.Eventually(t, 20*time.Second, func() error {
				if _, err := c.Write([]byte("hello")); err != nil {
					return err
				}
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				_, err := c.Read(make([]byte, 16))
				return err
			})
		}
	}
	hold(1, 20)
	before := r.settled(t)
	hold(2, n)
	now := r.settled(t)
	if got := s.Metric("adit_edge_udp_flows"); got != float64(n+20) {
		t.Errorf("%v flows, want %d", got, n+20)
	}
	edge, agent := (now.edge-before.edge)/int64(n), (now.agent-before.agent)/int64(n)
	t.Logf("%d idle flows: edge %.1f KiB each, agent %.1f KiB and %.2f descriptors", n, float64(edge)/1024, float64(agent)/1024,
		float64(now.agentFiles-before.agentFiles)/float64(n))
	if edge > 32<<10 || agent > 32<<10 {
		t.Errorf("%d KiB at the edge and %d at the agent, want at most 32", edge>>10, agent>>10)
	}
	if d := now.edgeFiles - before.edgeFiles; d > 10 {
		t.Errorf("%d flows took %d descriptors at the edge", n, d)
	}
}
