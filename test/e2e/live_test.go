package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// socket is an open WebSocket whose peer echoes.
type socket struct {
	*websocket.Conn
	n int
}

func openSocket(t *testing.T, s *stack.Server, host string) *socket {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+host+":"+s.Port()+"/ws", &websocket.DialOptions{HTTPClient: s.Client("h1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	return &socket{Conn: c}
}

// echo sends a message and wants it back.
func (s *socket) echo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.n++
	msg := fmt.Sprint("message ", s.n)
	if err := s.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
		return err
	}
	_, got, err := s.Read(ctx)
	if err == nil && string(got) != msg {
		err = fmt.Errorf("got %q", got)
	}
	return err
}

// services is the YAML file of an agent; put replaces it as an editor does.
type services struct {
	path string
}

func (f services) put(t *testing.T, entries ...string) {
	t.Helper()
	writeFile(t, f.path+".new", "services:\n"+strings.Join(entries, ""))
	if err := os.Rename(f.path+".new", f.path); err != nil {
		t.Fatal(err)
	}
}

func entry(host, origin string) string {
	return fmt.Sprintf("  - {hostname: %s, origin: %q, tls_mode: terminate, access: public}\n", host, origin)
}

// TestReload changes an agent's list while traffic runs: invariant 2.
func TestReload(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("live", "--hostname", "*.live.test")
	origin := "http://" + serveHTTP(t, app(), false)
	file := services{filepath.Join(t.TempDir(), "agent.yaml")}
	file.put(t, entry("a.live.test", origin), entry("old.live.test", origin))
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Args: []string{"--config", file.path}})
	s.WaitOnline(1, "a.live.test", "old.live.test")

	t.Run("H10 invariant 2 WebSockets survive changes elsewhere", func(t *testing.T) {
		var sockets []*socket
		for range 5 {
			sockets = append(sockets, openSocket(t, s, "a.live.test"))
		}
		const changes = 10
		for i := range changes {
			host := fmt.Sprintf("b%d.live.test", i)
			file.put(t, entry("a.live.test", origin), entry("old.live.test", origin), entry(host, origin))
			stack.Eventually(t, 20*time.Second, func() error {
				_, err := getOK(s.Client("h1"), s.URL(host, "/hello"))
				return err
			})
			for _, c := range sockets {
				if err := c.echo(t.Context()); err != nil {
					t.Fatalf("after %d changes: %v", i+1, err)
				}
			}
		}
	})
	t.Run("R10 a renamed host moves at once", func(t *testing.T) {
		file.put(t, entry("a.live.test", origin), entry("new.live.test", origin))
		stack.Eventually(t, 20*time.Second, func() error {
			_, err := getOK(s.Client("h1"), s.URL("new.live.test", "/hello"))
			return err
		})
		stack.Eventually(t, 10*time.Second, func() error {
			_, err := getOK(s.Client("h1"), s.URL("old.live.test", "/hello"))
			if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
				return fmt.Errorf("the old name: %v", err)
			}
			return nil
		})
	})
	t.Run("a broken file changes nothing and is reported", func(t *testing.T) {
		file.put(t, "  - {hostname: c.live.test, orign: x}\n")
		a.WaitLog(15*time.Second, "orign")
		if _, err := getOK(s.Client("h1"), s.URL("a.live.test", "/hello")); err != nil {
			t.Error(err)
		}
	})
}

// TestRollingWebSockets ends one of two replicas: its sockets get a close frame or an end at the latest
// when the grace period is over, the other's are untouched.
func TestRollingWebSockets(t *testing.T) {
	p := newPair(t, "--grace-period", "2s")
	t.Run("H09 rolling one agent ends only its sockets, with a close frame", func(t *testing.T) {
		var all []*socket
		for range 16 {
			c := openSocket(t, p.Server, "two.localhost")
			if err := c.echo(t.Context()); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		p.agents[0].Terminate()
		ended := make(chan error, len(all))
		// A read ends with the socket, or a while after the agent.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				if _, _, err := c.Read(ctx); ctx.Err() == nil {
					ended <- err
				}
			})
		}
		p.agents[0].Wait(40 * time.Second)
		fresh := openSocket(t, p.Server, "two.localhost")
		if err := fresh.echo(t.Context()); err != nil {
			t.Errorf("a new socket: %v", err)
		}
		time.AfterFunc(2*time.Second, cancel)
		wg.Wait()
		close(ended)
		n := 0
		for err := range ended {
			n++
			var ce websocket.CloseError
			if !errors.As(err, &ce) || ce.Code != websocket.StatusGoingAway && ce.Code != websocket.StatusServiceRestart {
				t.Errorf("a socket of the stopped agent ended with %v, want a close frame 1001 or 1012", err)
			}
		}
		if n == 0 || n == len(all) {
			t.Errorf("%d of %d sockets ended; want those of one agent", n, len(all))
		}
	})
	t.Run("H09 a stopping server says goodbye", func(t *testing.T) {
		c := openSocket(t, p.Server, "two.localhost")
		if err := c.echo(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Server.Terminate()
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		_, _, err := c.Read(ctx)
		var ce websocket.CloseError
		if !errors.As(err, &ce) || ce.Code != websocket.StatusGoingAway && ce.Code != websocket.StatusServiceRestart {
			t.Errorf("the socket ended with %v", err)
		}
		if code := p.Server.Wait(40 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestUploads: long and many uploads.
func TestUploads(t *testing.T) {
	need.Linux(t, "memory is read from /proc")
	const size = 48 << 20
	slow := http.NewServeMux()
	slow.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		// A reader at about 12 MB a second.
		var n int64
		buf := make([]byte, 256<<10)
		for {
			m, err := io.ReadFull(r.Body, buf)
			n += int64(m)
			if err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Fprint(w, n)
	})
	slow.Handle("/", app())
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{stack.HTTP("up.localhost", "http://"+serveHTTP(t, slow, false))}})
	t.Run("H16 a slow reader pushes back and memory stays flat", func(t *testing.T) {
		server, agent := r.RSS(), r.agent.RSS()
		var peak int64
		done := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(50 * time.Millisecond):
					peak = max(peak, r.RSS()-server, r.agent.RSS()-agent)
				}
			}
		})
		start := time.Now()
		resp, err := r.Client("h1").Post(r.URL("up.localhost", "/slow"), "application/octet-stream", io.LimitReader(zeros{}, size))
		close(done)
		watch.Wait()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); string(b) != fmt.Sprint(size) {
			t.Errorf("the origin got %s of %d bytes", b, size)
		}
		if d := time.Since(start); d < 2*time.Second {
			t.Errorf("the upload took %s: the reader did not push back", d)
		}
		if peak > 32<<20 {
			t.Errorf("memory rose by %d MiB", peak>>20)
		}
	})
	t.Run("H29 many uploads in a row leave nothing behind", func(t *testing.T) {
		client := r.Client("h1")
		body := strings.Repeat("x", 5<<20)
		post := func() {
			resp, err := client.Post(r.URL("up.localhost", "/sum"), "text/plain", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); !strings.HasPrefix(string(b), fmt.Sprint(len(body))) {
				t.Fatalf("%s %s", resp.Status, b)
			}
		}
		rounds := 60
		if need.Soak() {
			rounds = 1000
		}
		for range 20 {
			post()
		}
		server, agent := r.Descriptors(), r.agent.Descriptors()
		memory := r.RSS() + r.agent.RSS()
		for range rounds {
			post()
		}
		if d := r.Descriptors() - server; d > 8 {
			t.Errorf("the server has %d descriptors more", d)
		}
		if d := r.agent.Descriptors() - agent; d > 8 {
			t.Errorf("the agent has %d descriptors more", d)
		}
		if d := r.RSS() + r.agent.RSS() - memory; d > 48<<20 {
			t.Errorf("memory rose by %d MiB over %d uploads", d>>20, rounds)
		}
	})
}
