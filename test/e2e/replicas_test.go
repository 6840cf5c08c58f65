package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

// pair is two agents of one invite. Their HTTP origins say which agent was asked.
type pair struct {
	*stack.Server
	invite stack.Invite
	agents [2]*stack.Agent
	tcp    int
}

func named(name string) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	m.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		for range 600 {
			io.WriteString(w, name+"\n")
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	m.Handle("/ws", app())
	return m
}

func newPair(t *testing.T, args ...string) *pair {
	t.Helper()
	p := &pair{Server: stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "5s"}}), tcp: freeport.One(t)}
	p.invite = p.Invite("pair", "--hostname", "two.localhost", "--tcp-port", fmt.Sprint(p.tcp))
	echo := tcpEcho(t)
	for i := range p.agents {
		p.agents[i] = stack.StartAgent(t, p.invite.File, stack.AgentConfig{
			Services: []stack.Service{stack.HTTP("two.localhost", "http://"+serveHTTP(t, named(fmt.Sprint("agent-", i)), false))},
			TCP:      []stack.Service{stack.Port("echo", p.tcp, echo)},
			Args:     args,
		})
	}
	p.WaitOnline(2, "two.localhost", fmt.Sprint("tcp:", p.tcp))
	return p
}

// TestReplicas has two agents with one invite token: two sessions, both used.
func TestReplicas(t *testing.T) {
	p := newPair(t)
	t.Run("both replicas are used", func(t *testing.T) {
		seen := map[string]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				// A connection each: one visitor's requests may share an origin connection.
				got, err := getOK(p.Client("h1"), p.URL("two.localhost", "/"))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				seen[got]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if seen["agent-0"] == 0 || seen["agent-1"] == 0 {
			t.Fatalf("answers by replica: %v", seen)
		}
	})
	t.Run("one killed under load fails only its own streams", func(t *testing.T) { killUnderLoad(t, p) })
}

// stream is one long download of a visitor: which agent serves it and how it ended.
type stream struct {
	agent atomic.Value
	lines atomic.Int64
	done  chan struct{}
}

func (p *pair) startStream(t *testing.T) *stream {
	t.Helper()
	s := &stream{done: make(chan struct{})}
	resp, err := p.Client("h1").Get(p.URL("two.localhost", "/slow"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	go func() {
		defer close(s.done)
		buf := make([]byte, 256)
		for {
			n, err := resp.Body.Read(buf)
			if n > 0 {
				s.lines.Add(1)
				s.agent.CompareAndSwap(nil, strings.TrimSpace(string(buf[:n]))[:len("agent-0")])
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

func killUnderLoad(t *testing.T, p *pair) {
	var streams []*stream
	for range 20 {
		streams = append(streams, p.startStream(t))
	}
	var conns []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", loopback(p.tcp))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := echoOn(c, "before\n"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	on := map[string]int{}
	for _, s := range streams {
		stack.Eventually(t, 10*time.Second, func() error {
			if s.agent.Load() == nil {
				return fmt.Errorf("a stream has no answer yet")
			}
			return nil
		})
		on[s.agent.Load().(string)]++
	}
	if on["agent-0"] == 0 || on["agent-1"] == 0 {
		t.Fatalf("streams by replica: %v", on)
	}

	// Requests go on all the time; after the kill each new one must succeed at once.
	var failed, asked atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		client := p.Client("h2")
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				if _, err := getOK(client, p.URL("two.localhost", "/")); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	p.agents[0].Kill()
	start := time.Now()
	for i := range 20 {
		if got, err := getOK(p.Client("h1"), p.URL("two.localhost", "/")); err != nil || got != "agent-1" {
			t.Errorf("request %d after the kill: %q %v", i, got, err)
		}
		if err := echoOnce(loopback(p.tcp), "after\n"); err != nil {
			t.Errorf("connection %d after the kill: %v", i, err)
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("40 new streams after the kill took %s", d)
	}
	close(stop)
	load.Wait()
	// What was on its way at the dead agent fails; nothing else may.
	if f := failed.Load(); f > 4 {
		t.Errorf("%d of %d requests failed; at most the 4 under way may", f, asked.Load())
	}

	for i, s := range streams {
		if s.agent.Load() == "agent-0" {
			select {
			case <-s.done:
			case <-time.After(20 * time.Second):
				t.Errorf("stream %d of the dead agent did not end", i)
			}
			continue
		}
		before := s.lines.Load()
		stack.Eventually(t, 5*time.Second, func() error {
			if s.lines.Load() == before {
				return fmt.Errorf("stream %d of the living agent stands still", i)
			}
			return nil
		})
	}
	alive := 0
	for _, c := range conns {
		if echoOn(c, "still here\n") == nil {
			alive++
		}
	}
	if alive == 0 || alive == len(conns) {
		t.Errorf("%d of %d connections live on; only those of one agent should", alive, len(conns))
	}
}

// TestRolling drains: SIGTERM to one of two agents under load loses no request.
func TestRolling(t *testing.T) {
	p := newPair(t)
	var failed, asked atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 4 {
		client := p.Client([]string{"h1", "h2"}[i%2])
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				var err error
				if i%2 == 0 {
					_, err = getOK(client, p.URL("two.localhost", "/"))
				} else {
					var resp *http.Response
					resp, err = client.Post(p.URL("two.localhost", "/"), "text/plain", strings.NewReader("body"))
					if err == nil {
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
						if resp.StatusCode != http.StatusOK {
							err = fmt.Errorf("%s", resp.Status)
						}
					}
				}
				if err != nil {
					failed.Add(1)
					t.Logf("request %d: %v", asked.Load(), err)
				}
			}
		})
	}
	for i := range p.agents {
		p.agents[i].Terminate()
		if code := p.agents[i].Wait(40 * time.Second); code != 0 {
			t.Errorf("the agent ended with code %d", code)
		}
		p.agents[i] = stack.StartAgent(t, p.invite.File, stack.AgentConfig{
			Services: []stack.Service{stack.HTTP("two.localhost", "http://"+serveHTTP(t, named(fmt.Sprint("agent-", i)), false))}})
		p.WaitOnline(2, "two.localhost")
	}
	close(stop)
	load.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed while the agents rolled", failed.Load(), asked.Load())
	}
}

// TestDifferingLists: a list that differs only affects what that replica serves.
func TestDifferingLists(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("lists", "--hostname", "*.lists.test")
	a0, a1 := serveHTTP(t, named("agent-0"), false), serveHTTP(t, named("agent-1"), false)
	first := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("both.lists.test", "http://"+a0), stack.HTTP("only0.lists.test", "http://"+a0)}})
	second := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("both.lists.test", "http://"+a1), stack.HTTP("only1.lists.test", "http://"+a1)}})
	s.WaitOnline(2, "both.lists.test")
	s.WaitOnline(1, "only0.lists.test", "only1.lists.test")
	for host, want := range map[string]string{"only0.lists.test": "agent-0", "only1.lists.test": "agent-1"} {
		for range 4 {
			if got, err := getOK(s.Client("h1"), s.URL(host, "/")); err != nil || got != want {
				t.Errorf("%s: %q %v", host, got, err)
			}
		}
	}
	t.Run("what its last live declarer withdraws is gone at once", func(t *testing.T) {
		second.Terminate()
		second.Wait(40 * time.Second)
		if _, err := getOK(s.Client("h1"), s.URL("both.lists.test", "/")); err != nil {
			t.Errorf("the other replica's tunnel: %v", err)
		}
		if got, err := getOK(s.Client("h1"), s.URL("only0.lists.test", "/")); err != nil || got != "agent-0" {
			t.Errorf("a tunnel that was not withdrawn: %q %v", got, err)
		}
	})
	t.Run("a differing kind of one name is a conflict that both see", func(t *testing.T) {
		third := stack.StartAgent(t, inv.File, stack.AgentConfig{Unready: true, Services: []stack.Service{
			stack.Passthrough("only0.lists.test", "127.0.0.1:1"), stack.HTTP("more.lists.test", "http://"+a1)}})
		third.WaitReadyz(20*time.Second, "name_conflict", "only0.lists.test")
		third.WaitLog(10*time.Second, "name_conflict")
		s.WaitOnline(1, "more.lists.test")
		if r := s.CLI("agents", "get", "lists"); !strings.Contains(r.Stdout, "name_conflict") {
			t.Errorf("agents get: %s", r.Stdout)
		}
		if got, err := getOK(s.Client("h1"), s.URL("only0.lists.test", "/")); err != nil || got != "agent-0" {
			t.Errorf("the first owner: %q %v", got, err)
		}
	})
	if !first.Alive() {
		t.Error("the first agent ended")
	}
}
