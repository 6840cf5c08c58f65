package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// agentState is what `agents get` says, as far as tests read it.
type agentState struct {
	State          string
	ManagedTunnels int `json:"managed_tunnels"`
	Replicas       []struct {
		ID, State string
		Services  []struct{ Verdict, Detail string }
	}
}

func waitAgent(t *testing.T, s *stack.Server, name, state string) {
	t.Helper()
	stack.Eventually(t, 10*time.Second, func() error {
		var a agentState
		s.CLI("agents", "get", name).JSON(t, &a)
		if a.State != state {
			return fmt.Errorf("agent %s: %+v", name, a)
		}
		return nil
	})
}

// TestAgentsFromTheCommandLine has every verb of `adit agents` seen by a running agent.
func TestAgentsFromTheCommandLine(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	home := enrol(t, s, "home")
	waitAgent(t, s, "home", "offline")
	a := stack.StartAgent(t, home.File, stack.AgentConfig{})
	waitAgent(t, s, "home", "online")
	tcp := createTunnel(t, s, "tcp://"+tcpEcho(t), "--agent", "home", "--access", "public")
	s.WaitOnline(1, fmt.Sprint("tcp:", tcp.Port))
	live, err := net.Dial("tcp", loopback(tcp.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()

	t.Run("rotate: a running agent takes the new token over, and loses no connection", func(t *testing.T) {
		if err := echoOn(live, "before"); err != nil {
			t.Fatal(err)
		}
		var made struct{ Token string }
		s.CLI("agents", "rotate", "home", "--overlap", "1h").JSON(t, &made)
		if made.Token == "" || made.Token == home.Token {
			t.Fatal("no new token")
		}
		writeFile(t, home.File, made.Token)
		a.WaitLog(20*time.Second, `"msg":"token changed"`)
		stack.Eventually(t, 20*time.Second, func() error {
			if err := echoOnce(loopback(tcp.Port), "new"); err != nil {
				return err
			}
			if n := strings.Count(a.Log(), `"msg":"session opened"`); n < 2 {
				return fmt.Errorf("%d sessions", n)
			}
			return nil
		})
		if err := echoOn(live, "after"); err != nil {
			t.Errorf("the connection from before: %v", err)
		}
		if strings.Contains(a.Log(), "standby") {
			t.Error("the agent waited for itself")
		}
		waitAgent(t, s, "home", "online")
	})
	t.Run("disable ends its sessions within 5 s, enable lets it back", func(t *testing.T) {
		start := time.Now()
		s.CLI("agents", "disable", "home").JSON(t, &agentState{})
		a.WaitReadyz(10*time.Second, "switched off")
		stack.Eventually(t, 10*time.Second, func() error {
			if err := echoOnce(loopback(tcp.Port), "x"); err == nil {
				return fmt.Errorf("visitors still get through")
			}
			return nil
		})
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		waitAgent(t, s, "home", "disabled")
		s.CLI("agents", "enable", "home").JSON(t, &agentState{})
		stack.Eventually(t, 50*time.Second, func() error { return echoOnce(loopback(tcp.Port), "back") })
	})
	t.Run("delete is refused while tunnels name it; drain ends the process", func(t *testing.T) {
		_, code, hint := s.CLI("agents", "delete", "home").Problem(t)
		if code != "in_use" || !strings.Contains(hint, "--force") {
			t.Error(code, hint)
		}
		a.WaitReadyz(50*time.Second, `"connected": true`)
		var told struct{ Replicas int }
		s.CLI("agents", "drain", "home").JSON(t, &told)
		if told.Replicas != 1 {
			t.Errorf("%d replicas were told", told.Replicas)
		}
		if code := a.Wait(30 * time.Second); code != 0 {
			t.Errorf("the agent ended with %d", code)
		}
		if r := s.CLI("agents", "delete", "home", "--force"); r.Code != 0 {
			t.Error(r.Stderr)
		}
		if r := s.CLI("agents", "get", "home"); r.Code == 0 && !strings.Contains(r.Stdout, `"disabled"`) {
			t.Errorf("a deleted agent: %s", r.Stdout)
		}
		if _, ok := s.Tunnel(fmt.Sprint("tcp:", tcp.Port)); ok {
			t.Error("its tunnel is still there")
		}
	})
}

// TestEnrolledAgentDeclares has an enrolled agent declare services of its own beside managed ones,
// and hear of a changed verdict at once.
func TestEnrolledAgentDeclares(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	home := enrol(t, s, "home", "--hostname", "mine.localhost")
	page := serveHTTP(t, named("mine"), false)
	createTunnel(t, s, "wanted", "http://"+page, "--agent", "home", "--access", "public")
	inv := s.Invite("guest", "--hostname", "guest.localhost", "--tcp-port", "7711")
	a := stack.StartAgent(t, home.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("mine.localhost", "http://"+page)}})
	s.WaitOnline(1, "mine.localhost", "wanted")
	standby := stack.StartAgent(t, home.File, stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP("mine.localhost", "http://"+page)}})
	waitStandby(t, standby)
	if strings.Contains(standby.Log(), "service declared") {
		t.Error("a standby declares")
	}
	a.Kill()
	standby.WaitReady(20 * time.Second)
	s.WaitOnline(1, "mine.localhost", "wanted")
	t.Run("a changed grant reaches an agent that was refused at once", func(t *testing.T) {
		guest := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("guest.localhost", "http://"+page), stack.HTTP("more.localhost", "http://"+page)}})
		guest.WaitReadyz(20*time.Second, "grant_missing")
		start := time.Now()
		if r := s.CLI("invite", "set", "guest", "--hostname", "guest.localhost", "--hostname", "more.localhost", "--tcp-port", "7711"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		s.WaitOnline(1, "more.localhost")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
