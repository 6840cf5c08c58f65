package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// lease is an enrolment with a tunnel whose origin counts on one process at a time.
type lease struct {
	*stack.Server
	enrolment
	url string
}

func newLease(t *testing.T, server stack.ServerConfig) *lease {
	t.Helper()
	l := &lease{Server: stack.StartServer(t, server)}
	l.enrolment = enrol(t, l.Server, "home")
	l.url = createTunnel(t, l.Server, "app", "http://"+serveHTTP(t, named("ok"), false), "--agent", "home", "--access", "public").URL
	return l
}

func (l *lease) agent(t *testing.T, args ...string) *stack.Agent {
	t.Helper()
	return stack.StartAgent(t, l.File, stack.AgentConfig{Unready: true, Args: args})
}

// replicaOf is the id of a process, as its server's log and the hub have it.
func (l *lease) holder(t *testing.T) (holder string, replicas map[string]string) {
	t.Helper()
	var a struct {
		Holder   string `json:"holder_replica"`
		State    string
		Replicas []struct{ ID, State string }
	}
	l.CLI("agents", "get", "home").JSON(t, &a)
	replicas = map[string]string{}
	for _, r := range a.Replicas {
		replicas[r.ID] = r.State
	}
	return a.Holder, replicas
}

// waitStandby waits until an agent says that another process holds the enrolment.
func waitStandby(t *testing.T, a *stack.Agent) {
	t.Helper()
	a.WaitReadyz(30*time.Second, `"standby": "the enrolment is held by a process on`)
	if code, _ := a.Readyz(); code != 503 {
		t.Errorf("a standby is ready: %d", code)
	}
}

// TestStandby has two processes with one enrolment token: one serves, the other waits and takes over.
func TestStandby(t *testing.T) {
	t.Run("T20 two processes on hosts of one name are told apart; kill -9 of the holder", func(t *testing.T) {
		t.Parallel()
		l := newLease(t, stack.ServerConfig{})
		first := l.agent(t)
		first.WaitReady(30 * time.Second)
		second := l.agent(t)
		waitStandby(t, second)
		stack.Eventually(t, 10*time.Second, func() error {
			holder, states := l.holder(t)
			if len(states) != 2 || states[holder] != "online" {
				return fmt.Errorf("holder %q of %v", holder, states)
			}
			for id, s := range states {
				if id != holder && s != "standby" {
					return fmt.Errorf("%q of %v", s, states)
				}
			}
			return nil
		})
		start := time.Now()
		first.Kill()
		l.serves(t, 10*time.Second)
		t.Logf("kill -9: served again after %v", time.Since(start).Round(time.Millisecond))
		second.WaitReady(10 * time.Second)
	})
	t.Run("a drained holder hands over at once", func(t *testing.T) {
		t.Parallel()
		l := newLease(t, stack.ServerConfig{})
		first := l.agent(t)
		first.WaitReady(30 * time.Second)
		second := l.agent(t)
		waitStandby(t, second)
		start := time.Now()
		first.Terminate()
		first.Wait(30 * time.Second)
		l.serves(t, 10*time.Second)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("handed over after %v", took)
		}
	})
	t.Run("a silent holder is replaced within seconds of the probe, and waits when it is back", func(t *testing.T) {
		t.Parallel()
		need.Linux(t, "SIGSTOP")
		l := newLease(t, stack.ServerConfig{})
		first := l.agent(t)
		first.WaitReady(30 * time.Second)
		l.serves(t, 10*time.Second)
		first.Pause()
		start := time.Now()
		second := l.agent(t)
		second.WaitReady(20 * time.Second)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("took over after %v", took)
		}
		l.serves(t, 10*time.Second)
		first.Resume()
		waitStandby(t, first)
		l.serves(t, 5*time.Second)
	})
	t.Run("T04 the hub is away: a holder that dies is replaced, an agent that restarts comes back", func(t *testing.T) {
		t.Parallel()
		hub := stack.StartServer(t, stack.ServerConfig{Roles: "hub"})
		edge := stack.StartServer(t, stack.ServerConfig{Roles: "edge", Join: hub.EdgeToken("e")})
		home := enrol(t, hub, "home")
		origin := serveHTTP(t, named("ok"), false)
		createTunnel(t, hub, "app", "http://"+origin, "--agent", "home", "--access", "public")
		state := t.TempDir()
		first := stack.StartAgent(t, home.File, stack.AgentConfig{Args: []string{"--state-dir", state}})
		hub.WaitOnline(1, "app")
		other := t.TempDir()
		second := stack.StartAgent(t, home.File, stack.AgentConfig{Unready: true, Args: []string{"--state-dir", other}})
		waitStandby(t, second)
		client := hub.Client()
		l := &lease{Server: hub, enrolment: home, url: edge.URL("app.localhost", "/")}
		serves := func() { t.Helper(); l.servesWith(t, client, 15*time.Second) }
		serves()
		hub.Terminate()
		hub.Wait(30 * time.Second)
		first.Kill()
		serves()
		second.WaitReady(15 * time.Second)
		// And both again: the set is in the state folder.
		for range 2 {
			second.Kill()
			second = stack.StartAgent(t, home.File, stack.AgentConfig{Args: []string{"--state-dir", other}})
			serves()
		}
		hub.Restart()
		serves()
		hub.WaitOnline(1, "app")
	})
}

func (l *lease) serves(t *testing.T, limit time.Duration) {
	t.Helper()
	l.servesWith(t, l.Client(), limit)
}

// TestCompetition runs two processes with one enrolment token side by side: not one swap.
func TestCompetition(t *testing.T) {
	t.Parallel()
	length := 60 * time.Second
	if need.Soak() {
		length = 10 * time.Minute
	}
	l := newLease(t, stack.ServerConfig{})
	first := l.agent(t)
	first.WaitReady(30 * time.Second)
	second := l.agent(t)
	waitStandby(t, second)
	stack.Eventually(t, 10*time.Second, func() error {
		if holder, _ := l.holder(t); holder == "" {
			return fmt.Errorf("nobody holds the enrolment")
		}
		return nil
	})
	holder, _ := l.holder(t)
	end := time.Now().Add(length - 3*time.Second)
	client := l.Client()
	for time.Now().Before(end) {
		if _, err := getOK(client, l.url); err != nil {
			t.Fatal(err)
		}
		if now, _ := l.holder(t); now != holder {
			t.Fatalf("the enrolment moved from %s to %s", holder, now)
		}
		if code, _ := second.Readyz(); code == 200 {
			t.Fatal("the second process serves too")
		}
		select {
		case <-first.Done():
			t.Fatal("the first process ended")
		case <-second.Done():
			t.Fatal("the second process ended")
		case <-time.After(time.Second):
		}
	}
	if n := strings.Count(l.Log(), `"msg":"session opened"`); n != 1 {
		t.Errorf("%d sessions were opened, want 1", n)
	}
	if n := strings.Count(second.Log(), "standby"); n > 10 {
		t.Errorf("the standby says so %d times", n)
	}
}

func (l *lease) servesWith(t *testing.T, client *http.Client, limit time.Duration) {
	t.Helper()
	stack.Eventually(t, limit, func() error { _, err := getOK(client, l.url); return err })
}

// TestRestartedAlone restarts an enrolled agent that has no standby under load: visitors wait for it.
func TestRestartedAlone(t *testing.T) {
	t.Parallel()
	l := newLease(t, stack.ServerConfig{})
	a := l.agent(t)
	a.WaitReady(30 * time.Second)
	l.WaitOnline(1, "app")
	stop, failed := make(chan struct{}), make(chan error, 1000)
	var asked atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		client := l.Client()
		for {
			select {
			case <-stop:
				return
			default:
			}
			asked.Add(1)
			if _, err := getOK(client, l.url); err != nil {
				failed <- err
			}
		}
	}()
	a.Terminate()
	a.Wait(30 * time.Second)
	a = l.agent(t)
	a.WaitReady(30 * time.Second)
	l.serves(t, 10*time.Second)
	// One request waits as long as the restart takes; those after it are quick.
	stack.Eventually(t, 20*time.Second, func() error {
		if n := asked.Load(); n < 10 {
			return fmt.Errorf("only %d requests were made", n)
		}
		return nil
	})
	close(stop)
	<-done
	close(failed)
	for err := range failed {
		t.Errorf("a request was lost: %v", err)
	}
	t.Run("with no successor: no_agent after ten seconds, at once from then on", func(t *testing.T) {
		a.Kill()
		stack.Eventually(t, 20*time.Second, func() error {
			start := time.Now()
			status, body, err := fetch(l.Client(), l.url)
			if err != nil || status != 503 || !strings.Contains(body, "no_agent") || time.Since(start) > time.Second {
				return fmt.Errorf("%d %s %v after %v", status, body, err, time.Since(start))
			}
			return nil
		})
	})
}

// TestStandbyElsewhere: a second process on a host that was never seen is told of while it stands by, before
// it has served anybody.
func TestStandbyElsewhere(t *testing.T) {
	need.RootUser(t, "a host name of its own")
	tools := need.Program(t, "unshare", "hostname")
	s := stack.StartServer(t, stack.ServerConfig{})
	token := enrol(t, s, "home").File
	stack.StartAgent(t, token, stack.AgentConfig{})
	second := stack.StartAgent(t, token, stack.AgentConfig{Unready: true,
		Wrap: []string{tools[0], "--uts", "sh", "-c", tools[1] + ` elsewhere && exec "$@"`, "sh"}})
	waitStandby(t, second)
	stack.Eventually(t, 30*time.Second, func() error {
		var events []struct{ Kind, Text string }
		s.CLI("events", "-o", "json").JSON(t, &events)
		for _, e := range events {
			if e.Kind == "replica_new" && strings.Contains(e.Text, "host elsewhere") {
				return nil
			}
		}
		return fmt.Errorf("%v", events)
	})
}
