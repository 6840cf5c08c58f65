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

// outage starts agents that serve a tunnel each, and takes the API server away from them.
type outage struct {
	t      *testing.T
	k      *cluster.Control
	s      *stack.Server
	pod    beside
	origin string
	client *http.Client
}

func newOutage(t *testing.T, k *cluster.Control, s *stack.Server, pod beside) *outage {
	t.Helper()
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
	return &outage{t, k, s, pod, "http://" + l.Addr().String(), s.Client()}
}

func (o *outage) start(name string, env ...string) *stack.Agent {
	o.t.Helper()
	inv := o.s.Invite(name, "--hostname", name+".localhost")
	return stack.StartAgent(o.t, inv.File, stack.AgentConfig{Wrap: o.pod.wrap, Env: append(env, o.pod.env...), Args: []string{"--discovery", "kubernetes"},
		Services: []stack.Service{stack.HTTP(name+".localhost", o.origin)}})
}

func (o *outage) ask(name string) error {
	resp, err := o.client.Get(o.s.URL(name+".localhost", "/"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s, %s", resp.Status, resp.Header.Get("Adit-Error"))
	}
	return nil
}

// run shows that what visitors reach has nothing to do with the API server, and that discovery comes
// back by itself; agents start without it too. home is the agent that runs already.
func (o *outage) run(t *testing.T, home *stack.Agent) {
	away := time.Minute
	if need.Soak() {
		away = 5 * time.Minute
	}
	stack.Eventually(t, 30*time.Second, func() error { return o.ask("home") })
	o.k.StopAPI()
	lost := awaitState(t, o.s, "home", "unavailable the API server does not answer")
	if lost.of("monitoring/grafana/3000/tcp") == "" {
		t.Error("what was found is forgotten")
	}
	late := o.start("late")
	stack.Eventually(t, 30*time.Second, func() error { return o.ask("late") })
	awaitState(t, o.s, "late", "unavailable")
	stack.Always(t, away, func() error {
		for _, a := range []*stack.Agent{home, late} {
			if code, body := a.Readyz(); code != http.StatusOK {
				return fmt.Errorf("/readyz: %d %s", code, body)
			}
		}
		return errors.Join(o.ask("home"), o.ask("late"))
	})
	if err := o.k.StartAPI(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	o.k.Kubectl("-n", "monitoring", "delete", "service", "turn")
	awaitService(t, o.s, "home", "monitoring/turn/3478/udp", "")
	awaitState(t, o.s, "home", "ok")
	if v := awaitState(t, o.s, "late", "ok"); v.of("monitoring/grafana/3000/tcp") == "" {
		t.Errorf("the agent that started without the API server lists %q", v.ids())
	}
	t.Logf("all is well %s after the API server was back", time.Since(back))
}
