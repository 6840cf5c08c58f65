package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestAPIServerAway: what visitors reach has nothing to do with the API server, and discovery comes
// back by itself; agents start without it too.
func TestAPIServerAway(t *testing.T) {
	away := 10 * time.Second
	if need.Soak() {
		away = 5 * time.Minute
	}
	k := cluster.ControlPlane(t)
	k.Apply(grant)
	k.Apply(manifests)
	pod := besidePod(t, k, "cluster.local")
	s := stack.StartServer(t, stack.ServerConfig{})
	// The Pod was told that the API server is 127.0.0.1, which nothing else may be then.
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }), ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() { _ = web.Close(); serving.Wait() })
	start := func(name string) *stack.Agent {
		inv := s.Invite(name, "--hostname", name+".localhost")
		return stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: pod.env, Args: []string{"--discovery", "kubernetes"},
			Services: []stack.Service{stack.HTTP(name+".localhost", "http://"+l.Addr().String())}})
	}
	c := s.Client()
	ask := func(name string) error {
		resp, err := c.Get(s.URL(name+".localhost", "/"))
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s, %s", resp.Status, resp.Header.Get("Adit-Error"))
		}
		return nil
	}
	agent := start("home")
	awaitState(t, s, "home", "ok")
	stack.Eventually(t, 30*time.Second, func() error { return ask("home") })
	k.StopAPI()
	awaitState(t, s, "home", "unavailable")
	t.Run("K29 API server away: visitors and agents go on", func(t *testing.T) {
		late := start("late")
		stack.Eventually(t, 30*time.Second, func() error { return ask("late") })
		awaitState(t, s, "late", "unavailable")
		stack.Always(t, away, func() error {
			for _, a := range []*stack.Agent{agent, late} {
				if code, body := a.Readyz(); code != http.StatusOK {
					return fmt.Errorf("/readyz: %d %s", code, body)
				}
			}
			return errors.Join(ask("home"), ask("late"))
		})
	})
	if err := k.StartAPI(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	k.Kubectl("-n", "monitoring", "delete", "service", "turn")
	awaitService(t, s, "home", "monitoring/turn/3478/udp", "")
	awaitState(t, s, "late", "ok")
	t.Logf("all is well %s after the API server was back", time.Since(back))
	if v := services(t, s, "late"); v.of("monitoring/grafana/3000/tcp") == "" {
		t.Errorf("the agent that started without the API server lists %q", v.ids())
	}
}
