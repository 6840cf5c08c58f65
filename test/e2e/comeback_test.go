package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestRestartStorm restarts an edge under many agents without a pause: all are to be back within
// 30 s, and not all at once.
func TestRestartStorm(t *testing.T) {
	need.Linux(t, "many descriptors and ports of loopback")
	groups, size := 2, 100
	if need.Soak() {
		groups = 20
	}
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "1s", "--log-level", "warn"}})
	inv := crowdInvite(t, s)
	// In groups: unlike real agents, these have one process for all their handshakes.
	var crowds []*crowd
	for range groups {
		c := newCrowd(t, inv, size, []string{fmt.Sprintf("%020x", 1)})
		c.wait(t, time.Minute, size)
		crowds = append(crowds, c)
	}
	s.Terminate()
	s.Wait(30 * time.Second)
	start := time.Now()
	s.Restart()
	for _, c := range crowds {
		c.wait(t, 2*time.Minute, size)
	}
	var at []time.Time
	for _, c := range crowds {
		_, arrivals := c.up()
		at = append(at, arrivals...)
	}
	slices.SortFunc(at, time.Time.Compare)
	first, last := at[0].Sub(start), at[len(at)-1].Sub(start)
	t.Logf("%d agents came back within %v to %v of the start of the server", len(at), first.Round(time.Millisecond), last.Round(time.Millisecond))
	if last > 30*time.Second {
		t.Errorf("the last one came after %v, want 30 s at most", last)
	}
	if half := at[len(at)/2].Sub(at[0]); half < 250*time.Millisecond {
		t.Errorf("half of them came within %v", half)
	}
}
