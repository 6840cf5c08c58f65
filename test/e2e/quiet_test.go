package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// TestQuietLife: where nothing is wrong, no log says that something is: not at a start, not at work, not
// at a stop.
func TestQuietLife(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{})
	edge := hub.StartEdge(stack.ServerConfig{})
	inv := hub.Invite("quiet", "--hostname", "quiet.localhost")
	agent := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("quiet.localhost", "http://"+serveHTTP(t, named("home"), false))}})
	hub.WaitOnline(1, "quiet.localhost")
	for range 5 {
		stack.Eventually(t, 20*time.Second, func() error { _, err := getOK(hub.Client("h2"), hub.URL("quiet.localhost", "/")); return err })
		stack.Eventually(t, 20*time.Second, func() error { _, err := getOK(clientOf(t, hub, edge), edge.URL("quiet.localhost", "/")); return err })
	}
	hub.CLI("agents", "get", "quiet")
	for name, p := range map[string]*stack.Process{"agent": agent.Process, "edge": edge.Process, "hub": hub.Process} {
		p.Terminate()
		if code := p.Wait(40 * time.Second); code != 0 {
			t.Errorf("the %s ended with code %d", name, code)
		}
		for line := range strings.Lines(p.Log()) {
			var l struct{ Level, Msg string }
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Errorf("the %s says %q", name, line)
			}
			// Whoever is stopped first is missed by the others, and they say so.
			if l.Level == "ERROR" || l.Level == "WARN" && !strings.Contains(l.Msg, "not heard") && !strings.Contains(l.Msg, "no link to the hub") && !strings.Contains(l.Msg, "no session") {
				t.Errorf("the %s: %s", name, line)
			}
		}
	}
}
