//go:build soak

package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/stack"
)

// TestAPIServerSilent: an API server that says nothing any more is noticed, and found again.
func TestAPIServerSilent(t *testing.T) {
	k := cluster.ControlPlane(t)
	k.Apply(grant)
	k.Apply(manifests)
	pod := besidePod(t, k, "cluster.local")
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: pod.env, Args: []string{"--discovery", "kubernetes"}})
	awaitState(t, s, "home", "ok")
	if err := k.PauseAPI(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	stack.Eventually(t, 3*time.Minute, func() error {
		if v := services(t, s, "home"); !strings.HasPrefix(v.state(), "unavailable") {
			return fmt.Errorf("state %q", v.state())
		}
		return nil
	})
	lost := time.Since(start)
	if err := k.ResumeAPI(); err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	awaitState(t, s, "home", "ok")
	t.Logf("noticed after %s, back after %s", lost, time.Since(start))
}
