package stack

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
)

// Service is one entry of an agent's three lists, in the words of the lists.
type Service map[string]any

// HTTP is an entry of --services whose TLS ends at the edge.
func HTTP(hostname, origin string) Service {
	return Service{"hostname": hostname, "origin": origin, "tls_mode": "terminate", "access": "public"}
}

// Passthrough is an entry of --services whose TLS ends at the origin.
func Passthrough(hostname, origin string) Service {
	return Service{"hostname": hostname, "origin": origin}
}

// Port is an entry of --tcp-services or --udp-services.
func Port(name string, port int, origin string) Service {
	return Service{"name": name, "origin": origin, "listen_port": port}
}

// With returns a copy of the entry with one field set.
func (s Service) With(field string, value any) Service {
	c := Service{field: value}
	for k, v := range s {
		if k != field {
			c[k] = v
		}
	}
	return c
}

// AgentConfig is what an agent declares.
type AgentConfig struct {
	Services, TCP, UDP []Service
	Args, Env          []string
	// Wrap is a command line that runs the agent, e.g. in a network namespace; its health
	// address is then out of reach, so set Unready too.
	Wrap []string
	// Unready makes StartAgent return before the agent has a session.
	Unready bool
}

// Agent is a running `adit agent`.
type Agent struct {
	*Process
	t testing.TB
	// Health is the address of /readyz.
	Health string
}

// StartAgent starts an agent with a token file and waits until it has a session.
func StartAgent(t testing.TB, tokenFile string, c AgentConfig) *Agent {
	t.Helper()
	a := &Agent{t: t, Health: net.JoinHostPort("127.0.0.1", fmt.Sprint(freeport.One(t)))}
	args := []string{"agent", "--token-file", tokenFile, "--health-addr", a.Health,
		"--log-format", "json", "--log-level", "debug"}
	for flag, list := range map[string][]Service{"--services": c.Services, "--tcp-services": c.TCP, "--udp-services": c.UDP} {
		if list != nil {
			args = append(args, flag, mustJSON(t, list))
		}
	}
	a.Process = Start(t, Command{Name: "agent", Args: append(args, c.Args...), Env: c.Env, Wrap: c.Wrap, Grace: 30 * time.Second})
	if !c.Unready {
		a.WaitReady(30 * time.Second)
	}
	return a
}

// WaitReady waits until the agent has at least one session.
func (a *Agent) WaitReady(limit time.Duration) {
	a.t.Helper()
	Eventually(a.t, limit, func() error {
		if !a.Alive() {
			a.t.Fatalf("the agent ended: %s", tail(a.Log(), 20))
		}
		return ready(a.Health)
	})
}

// Readyz returns status and text of /readyz.
func (a *Agent) Readyz() (int, string) {
	code, body, err := get("http://" + a.Health + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	return code, body
}

// Metric sums a metric of the agent.
func (a *Agent) Metric(name string, parts ...string) float64 {
	a.t.Helper()
	return metric(a.t, a.Health, name, parts)
}

// WaitReadyz waits until /readyz says every part, whatever its status.
func (a *Agent) WaitReadyz(limit time.Duration, parts ...string) {
	a.t.Helper()
	Eventually(a.t, limit, func() error {
		code, body := a.Readyz()
		for _, part := range parts {
			if !strings.Contains(body, part) {
				return fmt.Errorf("/readyz: %d %s (no %q)", code, body, part)
			}
		}
		return nil
	})
}
