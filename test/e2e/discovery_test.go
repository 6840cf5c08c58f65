package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// TestDiscovery: what listens on the agent's host is listed within seconds, with the tunnels that
// expose it already; what is excluded is not.
func TestDiscovery(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	exposed := serveHTTP(t, named("home"), false)
	hidden := serveHTTP(t, named("hidden"), false)
	_, hiddenPort, _ := net.SplitHostPort(hidden)
	stack.StartAgent(t, inv.File, stack.AgentConfig{
		Services: []stack.Service{stack.HTTP("app.localhost", "http://"+exposed)}, Args: []string{"--discovery", "host", "--discovery-exclude-ports", hiddenPort},
	})
	type found struct {
		Providers []struct{ State, Detail string }
		Services  []struct {
			Origin    string
			ExposedBy []string `json:"exposed_by"`
		}
	}
	list := func() (v found) {
		s.CLI("agents", "services", "home").JSON(t, &v)
		return v
	}
	var v found
	stack.Eventually(t, 20*time.Second, func() error {
		if v = list(); len(v.Providers) == 0 || v.Providers[0].State == "unavailable" {
			return fmt.Errorf("no report yet: %v", v)
		}
		return nil
	})
	origin := func(addr string) (there bool, by int) {
		for _, x := range list().Services {
			if x.Origin == "http://"+addr {
				return true, len(x.ExposedBy)
			}
		}
		return false, 0
	}
	stack.Eventually(t, 10*time.Second, func() error {
		if there, by := origin(exposed); !there || by != 1 {
			return fmt.Errorf("%s: listed %v, exposed by %d", exposed, there, by)
		}
		return nil
	})
	if there, _ := origin(hidden); there {
		t.Error("the excluded port is listed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	start := time.Now()
	appears := func(want bool) {
		t.Helper()
		stack.Eventually(t, 10*time.Second, func() error {
			if there, _ := origin(l.Addr().String()); there != want {
				return fmt.Errorf("listed: %v", there)
			}
			return nil
		})
	}
	appears(true)
	t.Logf("a new port was listed after %v", time.Since(start))
	_ = srv.Close()
	appears(false)
	var agent struct {
		Replicas []struct{ Capabilities []string }
	}
	s.CLI("agents", "get", "home").JSON(t, &agent)
	if got := strings.Join(agent.Replicas[0].Capabilities, " "); got != "logs preflight discovery:host" {
		t.Errorf("capabilities %q", got)
	}
}

// TestAgentLogs: the log of an agent is shown, follows it, and holds no secret.
func TestAgentLogs(t *testing.T) {
	t.Parallel() // it mostly waits
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	origin := serveHTTP(t, named("home"), false)
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", "http://"+origin)}})
	show := func(args ...string) string {
		r := s.CLI(append([]string{"logs", "home"}, args...)...)
		if r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		return r.Stdout
	}
	if out := show(); !strings.Contains(out, "linked to the hub") || strings.Contains(out, inv.Token) {
		t.Errorf("the log is %s", out)
	}
	if out := show("--lines", "1"); strings.Count(out, "\n") != 1 {
		t.Errorf("one line is %s", out)
	}
	f := stack.Start(t, stack.Command{Name: "logs", Args: []string{"logs", "home", "-f", "-n", "1", "--data-dir", s.Dir}})
	f.WaitLog(20*time.Second, time.Now().Format("2006-"))
	start := time.Now()
	s.CLI("preflight", "http://127.0.0.9:9", "--agent", "home")
	f.WaitLog(10*time.Second, "origin not reached", "127.0.0.9")
	t.Logf("a new line was shown after %v", time.Since(start))
	a.Kill()
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", "http://"+origin)}, Args: []string{"--carriers", "tls"}})
	f.WaitLog(20*time.Second, `carrier=tls`)
	if _, code, _ := s.CLI("logs", "nobody").Problem(t); code != "not_found" {
		t.Errorf("code %s", code)
	}
}
