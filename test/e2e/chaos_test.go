package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// home is one agent with an HTTP and a TCP service at a server.
type home struct {
	*stack.Server
	agent  *stack.Agent
	invite stack.Invite
	cfg    stack.AgentConfig
	host   string
	port   int
}

func newHome(t *testing.T, host string, c stack.ServerConfig) *home {
	t.Helper()
	h := &home{Server: stack.StartServer(t, c), host: host, port: freeport.One(t)}
	h.invite = h.Invite("home", "--hostname", host, "--tcp-port", fmt.Sprint(h.port))
	h.cfg = stack.AgentConfig{
		Services: []stack.Service{stack.HTTP(host, "http://"+serveHTTP(t, app(), false))},
		TCP:      []stack.Service{stack.Port("echo", h.port, tcpEcho(t))},
		Args:     []string{"--grace-period", "2s"},
	}
	h.agent = stack.StartAgent(t, h.invite.File, h.cfg)
	h.WaitOnline(1, host, fmt.Sprint("tcp:", h.port))
	return h
}

// visit asks both services once, over new connections.
func (h *home) visit() error {
	c := h.Client("h1")
	defer c.CloseIdleConnections()
	c.Timeout = 10 * time.Second
	if _, err := getOK(c, h.URL(h.host, "/hello")); err != nil {
		return err
	}
	return echoOnce(loopback(h.port), "visit\n")
}

// serves waits until both services answer, and returns how long that took.
func (h *home) serves(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	stack.Eventually(t, limit, h.visit)
	return time.Since(start)
}

// TestSilentDeath stops an agent as a dead host stops: its sockets stay and nothing answers.
func TestSilentDeath(t *testing.T) {
	h := newHome(t, "silent.localhost", stack.ServerConfig{})
	whole := t
	t.Run("T01 T03 invariant 4 a successor takes over name and port from a silent agent", func(t *testing.T) {
		old := h.agent
		old.Pause()
		defer old.Resume()
		h.agent = stack.StartAgent(whole, h.invite.File, h.cfg)
		// The probe of the silent one takes 3 s; no heartbeat has to time out.
		if d := h.serves(t, 20*time.Second); d > 12*time.Second {
			t.Errorf("the take-over took %s", d)
		}
		for range 20 {
			if err := h.visit(); err != nil {
				t.Fatalf("after the take-over: %v", err)
			}
		}
		stack.Eventually(t, 20*time.Second, func() error {
			if n := h.Metric("adit_edge_sessions"); n != 1 {
				return fmt.Errorf("%g sessions are open", n)
			}
			return nil
		})
	})
	t.Run("T03 the port comes back with an agent that was killed", func(t *testing.T) {
		for range 3 {
			h.agent.Kill()
			h.agent = stack.StartAgent(whole, h.invite.File, h.cfg)
			if d := h.serves(t, 20*time.Second); d > 10*time.Second {
				t.Errorf("the port was back after %s", d)
			}
		}
	})
	t.Run("T03 the port comes back with a server that was killed", func(t *testing.T) {
		h.Kill()
		h.Restart()
		h.serves(t, 30*time.Second)
	})
}

// TestRestartsAreIdempotent kills and restarts an agent, every second time while the hub is down.
func TestRestartsAreIdempotent(t *testing.T) {
	restarts := 6
	if need.Soak() {
		restarts = 20
	}
	hub := stack.StartServer(t, stack.ServerConfig{Roles: "hub"})
	edge := hub.StartEdge(stack.ServerConfig{})
	inv := hub.Invite("again", "--hostname", "again.localhost")
	cfg := stack.AgentConfig{Services: []stack.Service{stack.HTTP("again.localhost", "http://"+serveHTTP(t, app(), false))}}
	agent := stack.StartAgent(t, inv.File, cfg)
	hub.WaitOnline(1, "again.localhost")
	visitor := clientOf(t, hub, edge)
	whole := t
	t.Run("T04 restarts leave one live record, also while the hub is down", func(t *testing.T) {
		for i := range restarts {
			down := i%2 == 1
			if down {
				hub.Kill()
			}
			agent.Kill()
			agent = stack.StartAgent(whole, inv.File, cfg)
			stack.Eventually(t, 20*time.Second, func() error {
				_, err := getOK(visitor, edge.URL("again.localhost", "/hello"))
				return err
			})
			if down {
				hub.Restart()
			}
		}
		hub.WaitOnline(1, "again.localhost")
		var tunnels []struct {
			Hostname, State string
			Replicas        int
		}
		hub.CLI("tunnel", "list").JSON(t, &tunnels)
		if len(tunnels) != 1 || tunnels[0].State != "online" {
			t.Errorf("the hub has %+v, want one live tunnel", tunnels)
		}
		// Replicas that were killed are forgotten.
		stack.Eventually(t, 30*time.Second, func() error {
			if got, _ := hub.Tunnel("again.localhost"); got.Replicas != 1 {
				return fmt.Errorf("%d replicas serve the tunnel", got.Replicas)
			}
			return nil
		})
	})
}

// TestChaos kills agent and server at random moments under load.
func TestChaos(t *testing.T) {
	need.Linux(t, "descriptors are counted in /proc")
	rounds := 10
	if need.Soak() {
		rounds = 100
	}
	h := newHome(t, "chaos.localhost", stack.ServerConfig{})
	var asked, failed atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { <-done })
	t.Cleanup(func() { close(stop) })
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			asked.Add(1)
			if h.visit() != nil {
				failed.Add(1)
			}
		}
	}()
	whole := t
	before, serverBefore := h.agent.Descriptors(), h.Descriptors()
	goroutines := h.agent.Metric("go_goroutines") + h.Metric("go_goroutines")
	t.Run("T03 invariant 4 kill -9 of agent and server under load", func(t *testing.T) {
		var slowest time.Duration
		for range rounds {
			time.Sleep(rand.N(300 * time.Millisecond)) // a moment, not an event
			// Bit 0 is the agent, bit 1 the server; both at times.
			what := 1 + rand.IntN(3)
			if what&1 != 0 {
				h.agent.Kill()
			}
			if what&2 != 0 {
				h.Kill()
				h.Restart()
			}
			if what&1 != 0 {
				h.agent = stack.StartAgent(whole, h.invite.File, h.cfg)
			}
			d := h.serves(t, 40*time.Second)
			if slowest = max(slowest, d); what == 1 && d > 15*time.Second {
				t.Errorf("the service was back %s after the agent", d)
			}
		}
		t.Logf("slowest recovery %s; %d of %d visits failed", slowest, failed.Load(), asked.Load())
		stack.Eventually(t, 20*time.Second, func() error {
			if n := h.Metric("adit_edge_sessions"); n != 1 {
				return fmt.Errorf("%g sessions are open", n)
			}
			if n := h.agent.Descriptors(); n > before+16 {
				return fmt.Errorf("the agent has %d descriptors, %d before", n, before)
			}
			if n := h.Descriptors(); n > serverBefore+32 {
				return fmt.Errorf("the server has %d descriptors, %d before", n, serverBefore)
			}
			if n := h.agent.Metric("go_goroutines") + h.Metric("go_goroutines"); n > goroutines+100 {
				return fmt.Errorf("agent and server have %g goroutines, %g before", n, goroutines)
			}
			return nil
		})
	})
}

// TestHubOutage: readiness tells of an outage, liveness does not.
func TestHubOutage(t *testing.T) {
	h := newHome(t, "outage.localhost", stack.ServerConfig{Args: []string{"--drain-timeout", "1s"}})
	healthz := func() error {
		r, err := http.Get("http://" + h.agent.Health + "/healthz")
		if err != nil {
			return err
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthz: %s", r.Status)
		}
		return nil
	}
	t.Run("O06 T16 an outage makes an agent unready, not dead", func(t *testing.T) {
		away := 5 * time.Second
		if need.Soak() {
			away = 10 * time.Minute
		}
		h.Terminate()
		h.Wait(20 * time.Second)
		stack.Eventually(t, 60*time.Second, func() error {
			if code, body := h.agent.Readyz(); code != http.StatusServiceUnavailable {
				return fmt.Errorf("/readyz: %d %s", code, body)
			}
			return nil
		})
		stack.Always(t, away, func() error {
			if !h.agent.Alive() {
				return fmt.Errorf("the agent ended")
			}
			if code, body := h.agent.Readyz(); code != http.StatusServiceUnavailable {
				return fmt.Errorf("/readyz during the outage: %d %s", code, body)
			}
			return healthz()
		})
		h.Restart()
		h.agent.WaitReady(75 * time.Second)
		h.serves(t, 20*time.Second)
	})
}
