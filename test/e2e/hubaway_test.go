package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

// TestHubAway is invariant 1: with the hub down, visitors' traffic goes on, agents reconnect to
// edges and restart, and edges restart from their last snapshot on disk.
func TestHubAway(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{Roles: "hub"})
	edge := hub.StartEdge(stack.ServerConfig{})
	port := freeport.One(t)
	inv := hub.Invite("away", "--hostname", "away.localhost", "--hostname", "new.localhost", "--tcp-port", fmt.Sprint(port))
	cfg := stack.AgentConfig{
		Services: []stack.Service{stack.HTTP("away.localhost", "http://"+serveHTTP(t, named("home"), false))},
		TCP:      []stack.Service{stack.Port("echo", port, tcpEcho(t))},
		Args:     []string{"--grace-period", "2s"},
	}
	agent := stack.StartAgent(t, inv.File, cfg)
	hub.WaitOnline(1, "away.localhost", fmt.Sprint("tcp:", port))
	visitor := clientOf(t, hub, edge)
	// What a subtest restarts must outlive it.
	whole := t
	serves := func(limit time.Duration, what string) {
		t.Helper()
		stack.Eventually(t, limit, func() error {
			if got, err := getOK(visitor, edge.URL("away.localhost", "/")); err != nil || got != "home" {
				return fmt.Errorf("%s: %q %v", what, got, err)
			}
			return echoOnce(loopback(port), "echo\n")
		})
	}
	serves(10*time.Second, "with the hub")
	held, err := net.Dial("tcp", loopback(port))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := echoOn(held, "before\n"); err != nil {
		t.Fatal(err)
	}

	hub.Kill()
	t.Run("invariant 1 traffic goes on while the hub is down", func(t *testing.T) {
		for range 20 {
			serves(0, "right after the hub died")
		}
		if err := echoOn(held, "during\n"); err != nil {
			t.Errorf("an open connection: %v", err)
		}
	})
	t.Run("invariant 1 an agent restarts while the hub is down", func(t *testing.T) {
		agent.Terminate()
		agent.Wait(40 * time.Second)
		agent = stack.StartAgent(whole, inv.File, cfg)
		serves(20*time.Second, "after the agent restarted")
		agent.WaitReadyz(5*time.Second, "hub")
	})
	t.Run("invariant 1 an edge restarts from its snapshot while the hub is down", func(t *testing.T) {
		edge.Terminate()
		edge.Wait(40 * time.Second)
		edge.Restart()
		serves(40*time.Second, "after the edge restarted")
	})
	t.Run("a killed edge restarts from its snapshot too", func(t *testing.T) {
		edge.Kill()
		edge.Restart()
		serves(40*time.Second, "after the edge was killed")
	})
	t.Run("a tunnel nobody knows is pending until the hub is back", func(t *testing.T) {
		more := cfg
		more.Services = append([]stack.Service{stack.HTTP("new.localhost", "http://"+serveHTTP(t, named("new"), false))}, cfg.Services...)
		second := stack.StartAgent(t, inv.File, more)
		second.WaitReadyz(10*time.Second, "pending")
		hub.Restart()
		hub.WaitOnline(1, "new.localhost")
		stack.Eventually(t, 20*time.Second, func() error {
			_, err := getOK(visitor, edge.URL("new.localhost", "/"))
			return err
		})
		serves(10*time.Second, "with the hub back")
	})
	t.Run("a revocation reaches the edge and ends its sessions", func(t *testing.T) {
		if r := hub.CLI("invite", "revoke", "away"); r.Code != 0 {
			t.Fatalf("revoke: %+v", r)
		}
		start := time.Now()
		agent.WaitLog(10*time.Second, "token_revoked")
		stack.Eventually(t, 10*time.Second, func() error {
			if err := echoOnce(loopback(port), "echo\n"); err == nil {
				return fmt.Errorf("a connection still reaches the origin")
			}
			return nil
		})
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("the revocation took %s, want 5 s at most", d)
		}
	})
}

// clientOf visits an edge and trusts the root of its hub.
func clientOf(t *testing.T, hub, edge *stack.Server) *http.Client {
	t.Helper()
	c := hub.Client("h1")
	tr := c.Transport.(*http.Transport)
	var d net.Dialer
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, edge.HTTPS)
	}
	// The edge restarts in these tests; a kept connection would show that, not what is tested.
	tr.DisableKeepAlives = true
	return c
}

// TestSecondEdge has one agent serve two edges of one hub.
func TestSecondEdge(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{})
	edge := hub.StartEdge(stack.ServerConfig{})
	inv := hub.Invite("edges", "--hostname", "both.localhost")
	agent := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("both.localhost", "http://"+serveHTTP(t, named("home"), false))}})
	hub.WaitOnline(1, "both.localhost")
	for name, at := range map[string]*stack.Server{"hub's own edge": hub, "joined edge": edge} {
		visitor := clientOf(t, hub, at)
		stack.Eventually(t, 20*time.Second, func() error {
			got, err := getOK(visitor, at.URL("both.localhost", "/"))
			if err == nil && got != "home" {
				err = fmt.Errorf("got %q", got)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	t.Run("draining one edge leaves the other serving", func(t *testing.T) {
		edge.Terminate()
		if code := edge.Wait(40 * time.Second); code != 0 {
			t.Errorf("the edge ended with code %d", code)
		}
		if _, err := getOK(clientOf(t, hub, hub), hub.URL("both.localhost", "/")); err != nil {
			t.Error(err)
		}
		if !agent.Alive() {
			t.Error("the agent ended")
		}
	})
	t.Run("a joined edge needs an address of its own", func(t *testing.T) {
		file := t.TempDir() + "/join"
		writeFile(t, file, hub.EdgeToken("nowhere"))
		r := stack.Run(t, nil, "server", "--roles", "edge", "--join-file", file, "--data-dir", t.TempDir(), "--listen-https", "127.0.0.1:0")
		if r.Code == 0 || !strings.Contains(r.Stderr, "--advertise") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("an invite token is no edge token", func(t *testing.T) {
		r := stack.Run(t, nil, "server", "--roles", "edge", "--join-file", inv.File, "--advertise", "127.0.0.1:1",
			"--data-dir", t.TempDir(), "--listen-https", "127.0.0.1:0")
		if r.Code == 0 || !strings.Contains(r.Stderr, "adit edge invite") {
			t.Errorf("%+v", r)
		}
	})
}
