package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

var carriers = []string{"quic", "tls", "ws"}

// fleet is a hub, an edge of its own and agents, so that hub and agents can be rolled while
// visitors come: two agents for each carrier.
type fleet struct {
	hub, edge *stack.Server
	members   []*member
}

// member is the agents of one carrier, which serve one host.
type member struct {
	host   string
	invite stack.Invite
	cfg    stack.AgentConfig
	agents []*stack.Agent
}

func newFleet(t *testing.T, agents int, origin http.Handler) *fleet {
	t.Helper()
	f := &fleet{hub: stack.StartServer(t, stack.ServerConfig{Roles: "hub"})}
	f.edge = f.hub.StartEdge(stack.ServerConfig{})
	home := "http://" + serveHTTP(t, origin, false)
	for _, carrier := range carriers {
		m := &member{host: carrier + ".localhost"}
		m.invite = f.hub.Invite(carrier, "--hostname", m.host)
		m.cfg = stack.AgentConfig{Services: []stack.Service{stack.HTTP(m.host, home)},
			Args: []string{"--carriers", carrier, "--grace-period", "60s"}}
		for range agents {
			m.agents = append(m.agents, stack.StartAgent(t, m.invite.File, m.cfg))
		}
		f.members = append(f.members, m)
	}
	f.waitOnline(agents)
	return f
}

func (f *fleet) waitOnline(replicas int) {
	for _, m := range f.members {
		f.hub.WaitOnline(replicas, m.host)
	}
}

// roll replaces one agent of each carrier, as a rollout does: the old one is asked to end, and the
// next is touched when the new one is ready.
func (f *fleet) roll(t *testing.T, i int) {
	t.Helper()
	for _, m := range f.members {
		m.agents[i].Terminate()
	}
	for _, m := range f.members {
		if code := m.agents[i].Wait(90 * time.Second); code != 0 {
			t.Errorf("%s: the agent ended with code %d", m.host, code)
		}
		m.agents[i] = stack.StartAgent(t, m.invite.File, m.cfg)
	}
}

// load is visitors of a fleet; every answer must be whole.
type load struct {
	asked, failed, downloads atomic.Int64
	stop                     chan struct{}
	once                     sync.Once
	wg                       sync.WaitGroup
}

func (l *load) halt() {
	l.once.Do(func() { close(l.stop) })
	l.wg.Wait()
}

const downloadLines = 40

// rolling is an origin with short answers, uploads and downloads of the given length.
func rolling(download time.Duration) http.Handler {
	m := http.NewServeMux()
	m.Handle("/", app())
	m.HandleFunc("/long", func(w http.ResponseWriter, r *http.Request) {
		line := strings.Repeat("x", 1023) + "\n"
		for range downloadLines {
			io.WriteString(w, line)
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(download / downloadLines):
			}
		}
	})
	return m
}

// start sends perSecond requests to each host, half of them uploads, half over HTTP/2, and keeps
// two downloads going.
func (l *load) start(t *testing.T, f *fleet, perSecond int) {
	l.stop = make(chan struct{})
	t.Cleanup(l.halt) // a failure ends them before their server goes
	const workers = 8
	for _, m := range f.members {
		for i := range workers {
			client := f.hub.Client([]string{"h1", "h2"}[i%2])
			l.loop(t, m.host, workers*time.Second/time.Duration(perSecond), func(n int) error {
				if n%2 == 0 {
					_, err := getOK(client, f.edge.URL(m.host, "/hello"))
					return err
				}
				return postSum(client, f.edge.URL(m.host, "/sum"), strings.Repeat(fmt.Sprint(n), 2000))
			})
		}
		for i := range 2 {
			client := f.hub.Client([]string{"h1", "h2"}[i%2])
			l.loop(t, m.host, 0, func(int) error {
				got, err := getOK(client, f.edge.URL(m.host, "/long"))
				if err == nil && len(got) != downloadLines*1024 {
					err = fmt.Errorf("the download has %d bytes", len(got))
				}
				l.downloads.Add(1)
				return err
			})
		}
	}
}

func (l *load) loop(t *testing.T, host string, every time.Duration, ask func(n int) error) {
	l.wg.Go(func() {
		for n := 0; ; n++ {
			next := time.After(every)
			l.asked.Add(1)
			if err := ask(n); err != nil {
				l.failed.Add(1)
				t.Logf("%s: %s: %v", time.Now().Format(time.TimeOnly), host, err)
			}
			select {
			case <-l.stop:
				return
			case <-next:
			}
		}
	})
}

// end stops the visitors and wants that nothing failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.halt()
	t.Logf("%d requests, %d downloads among them", l.asked.Load(), l.downloads.Load())
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed", n, l.asked.Load())
	}
}

func postSum(c *http.Client, url, body string) error {
	resp, err := c.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))); !strings.HasPrefix(string(got), want) {
		return fmt.Errorf("%s (Adit-Error %s): the origin got %.100q", resp.Status, resp.Header.Get("Adit-Error"), got)
	}
	return nil
}

// TestRollout rolls every part but the edge under 200 requests a second with long downloads.
func TestRollout(t *testing.T) {
	agents, rounds, download := 2, 2, 2*time.Second
	if need.Soak() {
		agents, rounds, download = 3, 20, 25*time.Second
	}
	f := newFleet(t, agents, rolling(download))
	whole := t // what a subtest restarts must outlive it
	t.Run("L01 invariant 3 rolling agents and the hub fails no request", func(t *testing.T) {
		var l load
		l.start(t, f, 67)
		for round := range rounds {
			for i := range agents {
				// Once in each round an agent is rolled while the hub is away.
				away := i == round%agents
				if away {
					f.hub.Terminate()
					if code := f.hub.Wait(40 * time.Second); code != 0 {
						t.Errorf("the hub ended with code %d", code)
					}
				}
				f.roll(whole, i)
				if away {
					f.hub.Restart()
				}
				f.waitOnline(agents)
			}
		}
		l.end(t)
	})
}

// TestHubGone kills the hub under load and leaves it away for a while (a minute in the long form):
// no request fails, and an agent that restarts meanwhile comes back.
func TestHubGone(t *testing.T) {
	away := 15 * time.Second
	if need.Soak() {
		away = time.Minute
	}
	f := newFleet(t, 2, rolling(2*time.Second))
	var l load
	l.start(t, f, 67)
	f.hub.Kill()
	gone := time.Now()
	f.roll(t, 0)
	for _, m := range f.members {
		m.agents[0].WaitReady(20 * time.Second)
	}
	stack.Always(t, away-time.Since(gone), func() error {
		if n := l.failed.Load(); n > 0 {
			return fmt.Errorf("%d requests failed", n)
		}
		return nil
	})
	f.hub.Restart()
	f.waitOnline(2)
	l.end(t)
}
