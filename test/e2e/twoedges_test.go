package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// edgeIDs are the edges that the hub lists, by their address.
func edgeIDs(t *testing.T, s *stack.Server) map[string]string {
	t.Helper()
	var all []struct {
		ID        string
		Addresses []string
	}
	s.CLI("edge", "list").JSON(t, &all)
	out := map[string]string{}
	for _, e := range all {
		for _, a := range e.Addresses {
			out[a] = e.ID
		}
	}
	return out
}

// TestTwoEdges has two edges agree on who holds an enrolment, and one of them taken out of service
// and removed.
func TestTwoEdges(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{})
	far := stack.StartServer(t, stack.ServerConfig{Roles: "edge", Join: hub.EdgeToken("far")})
	home := enrol(t, hub, "home")
	page := serveHTTP(t, named("ok"), false)
	createTunnel(t, hub, "app", "http://"+page, "--agent", "home", "--access", "public")
	l := &lease{Server: hub, enrolment: home}
	sessions := func(a *stack.Agent, n int) {
		t.Helper()
		stack.Eventually(t, 30*time.Second, func() error {
			if _, body := a.Readyz(); strings.Count(body, `"carrier"`) != n {
				return fmt.Errorf("want %d sessions: %s", n, body)
			}
			return nil
		})
	}
	client := hub.Client()
	served := func(limit time.Duration, at ...*stack.Server) {
		t.Helper()
		for _, s := range at {
			stack.Eventually(t, limit, func() error { _, err := getOK(client, s.URL("app.localhost", "/")); return err })
		}
	}
	first := l.agent(t)
	sessions(first, 2)
	second := l.agent(t)
	waitStandby(t, second)
	served(10*time.Second, hub, far)

	first.Kill()
	sessions(second, 2)
	served(10*time.Second, hub, far)
	if holder, states := l.holder(t); states[holder] != "online" {
		t.Errorf("holder %q of %v", holder, states)
	}

	id := edgeIDs(t, hub)[far.HTTPS]
	t.Run("drain: agents leave the edge, and come back when that is undone", func(t *testing.T) {
		var e struct {
			OutOfService bool `json:"out_of_service"`
		}
		hub.CLI("edge", "drain", id).JSON(t, &e)
		if !e.OutOfService {
			t.Errorf("%+v", e)
		}
		sessions(second, 1)
		served(10*time.Second, hub)
		hub.CLI("edge", "drain", id, "--undo").JSON(t, &e)
		sessions(second, 2)
		served(10*time.Second, hub, far)
	})
	t.Run("remove: its key is refused from then on", func(t *testing.T) {
		if r := hub.CLI("edge", "remove", id); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		sessions(second, 1)
		far.WaitLog(30*time.Second, "was removed")
		if got := edgeIDs(t, hub)[far.HTTPS]; got != "" {
			t.Errorf("it is listed again: %s", got)
		}
		served(10*time.Second, hub)
	})
}

// TestAccessFromTheCommandLine keeps access and policies, and has them admit nobody yet.
func TestAccessFromTheCommandLine(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	home := enrol(t, s, "home")
	stack.StartAgent(t, home.File, stack.AgentConfig{})
	x := createTunnel(t, s, "app", "http://"+serveHTTP(t, named("ok"), false), "--agent", "home", "--auth", "none")
	s.WaitOnline(1, "app")
	client := s.Client()
	status := func(want int) {
		t.Helper()
		stack.Eventually(t, 5*time.Second, func() error {
			got, body, err := fetch(client, x.URL)
			if err == nil && got != want {
				err = fmt.Errorf("%d %s", got, body)
			}
			return err
		})
	}
	type view struct {
		Access, Summary, Require string
		Rules                    []struct{ ID, Email string }
		UsedBy                   []string `json:"used_by"`
		Version                  int
	}
	var v view
	status(200)
	s.CLI("access", "add", "app", "--email", "Me@Example.com").JSON(t, &v)
	if v.Access != "protected" || v.Summary != "Gets in me@example.com." || len(v.Rules) != 1 {
		t.Errorf("%+v", v)
	}
	status(403)
	s.CLI("access", "remove", "app", v.Rules[0].ID).JSON(t, &v)
	if v.Summary != "Only the owner gets in." {
		t.Errorf("%+v", v)
	}
	s.CLI("policy", "set", "staff", "--domain", "example.com", "--require", "all", "--from", "10.0.0.0/8").JSON(t, &v)
	s.CLI("access", "replace", "app", "--policy", "staff").JSON(t, &v)
	if v.Summary != "Gets in anybody at example.com; only from 10.0.0.0/8." {
		t.Errorf("%+v", v)
	}
	if _, code, _ := s.CLI("policy", "delete", "staff").Problem(t); code != "in_use" {
		t.Error(code)
	}
	s.CLI("policy", "get", "staff").JSON(t, &v)
	if len(v.UsedBy) != 1 || v.UsedBy[0] != "app" {
		t.Errorf("%+v", v)
	}
	if _, code, _ := s.CLI("access", "replace", "app", "--version", "1", "--access", "public").Problem(t); code != "version_conflict" {
		t.Error(code)
	}
	s.CLI("access", "replace", "app", "--auth", "none").JSON(t, &v)
	status(200)
	if r := s.CLI("policy", "delete", "staff"); r.Code != 0 {
		t.Error(r.Stderr)
	}
	tcp := createTunnel(t, s, "tcp://127.0.0.1:9", "--agent", "home")
	if _, code, hint := s.CLI("access", "add", fmt.Sprint("tcp:", tcp.Port), "--email", "a@b.test").Problem(t); code != "invalid" || !strings.Contains(hint, "terminate") {
		t.Error(code, hint)
	}
	t.Run("names are kept and released", func(t *testing.T) {
		if r := s.CLI("tunnel", "delete", "app"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		if r := s.CLI("tenant", "list"); !strings.Contains(r.Stdout, "app.localhost") {
			t.Error(r.Stdout)
		}
		if _, code, _ := s.CLI("invite", "create", "--name", "late", "--hostname", "app.localhost").Problem(t); code != "name_conflict" {
			t.Error(code)
		}
		if r := s.CLI("tenant", "release", "app.localhost"); r.Code != 0 {
			t.Error(r.Stderr)
		}
		late := s.Invite("late", "--hostname", "app.localhost")
		var made struct{ Token string }
		s.CLI("invite", "rotate", "late").JSON(t, &made)
		if made.Token == "" || made.Token == late.Token {
			t.Error("no new token")
		}
	})
}
