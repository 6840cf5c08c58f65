package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestRestartStorm restarts an edge under many agents without a pause: all are to be back within
// 30 s, and not all at once.
func TestRestartStorm(t *testing.T) {
	need.Linux(t, "many descriptors and ports of loopback")
	n := 200
	if need.Soak() {
		n = 2000
	}
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "1s", "--log-level", "warn"}})
	inv := crowdInvite(t, s)
	c := newCrowd(t, inv, n, []string{fmt.Sprintf("%020x", 1)})
	s.Terminate()
	s.Wait(30 * time.Second)
	start := time.Now()
	s.Restart()
	c.wait(t, 2*time.Minute, n)
	_, at := c.up()
	first, last := at[0].Sub(start), at[len(at)-1].Sub(start)
	t.Logf("%d agents came back within %v to %v of the start of the server", len(at), first.Round(time.Millisecond), last.Round(time.Millisecond))
	if last > 30*time.Second {
		t.Errorf("the last one came after %v, want 30 s at most", last)
	}
	if half := at[len(at)/2].Sub(at[0]); half < 250*time.Millisecond {
		t.Errorf("half of them came within %v", half)
	}
}
