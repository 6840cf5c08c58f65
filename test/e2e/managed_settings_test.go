package e2e

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/adit-dev/adit/test/stack"
)

// TestManagedSettings has each setting of a managed tunnel seen to work through a real agent.
func TestManagedSettings(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	home := enrol(t, s, "home")
	stack.StartAgent(t, home.File, stack.AgentConfig{})
	client := s.Client()
	origin := serveHTTP(t, settingsApp(), false)
	create := func(t *testing.T, label, origin string, flags ...string) managedTunnel {
		t.Helper()
		made := createTunnel(t, s, append([]string{label, origin, "--agent", "home", "--access", "public"}, flags...)...)
		s.WaitOnline(1, label)
		return made
	}
	// until asks a page again until it says what it should.
	until := func(t *testing.T, url string, ok func(status int, body string) bool) {
		t.Helper()
		stack.Eventually(t, 10*time.Second, func() error {
			status, body, err := fetch(client, url)
			if err == nil && !ok(status, body) {
				err = fmt.Errorf("%d %s", status, body)
			}
			return err
		})
	}
	is := func(status int, part string) func(int, string) bool {
		return func(got int, body string) bool { return got == status && strings.Contains(body, part) }
	}

	t.Run("host header: the visitor's, the origin's, a name of its own", func(t *testing.T) {
		x := create(t, "host", "http://"+origin)
		until(t, x.URL+"/host", is(200, "host.localhost"))
		s.CLI("tunnel", "set", "host", "--host-header", "origin").JSON(t, &x)
		until(t, x.URL+"/host", is(200, origin))
		s.CLI("tunnel", "set", "host", "--host-header", "app.internal").JSON(t, &x)
		until(t, x.URL+"/host", is(200, "app.internal"))
		s.CLI("tunnel", "set", "host", "--host-header", "visitor").JSON(t, &x)
		until(t, x.URL+"/host", is(200, "host.localhost"))
	})
	t.Run("upstream basic auth replaces the visitor's, and is never shown", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "password")
		writeFile(t, file, "correct horse\n")
		x := create(t, "auth", "http://"+origin, "--upstream-user", "robot", "--upstream-password-file", file)
		u := strings.Replace(x.URL, "https://", "https://visitor:guess@", 1)
		until(t, u+"/auth", is(200, "robot correct horse"))
		if r := s.CLI("tunnel", "get", "auth"); strings.Contains(r.Stdout, "correct horse") || !strings.Contains(r.Stdout, "robot") {
			t.Errorf("shown: %s", r.Stdout)
		}
		s.CLI("tunnel", "set", "auth", "--upstream-user", "").JSON(t, &x)
		until(t, u+"/auth", is(200, "visitor guess"))
	})
	t.Run("response time-out: reached, and never one of a stream that has begun", func(t *testing.T) {
		x := create(t, "slow", "http://"+origin, "--response-timeout", "1s")
		start := time.Now()
		if status, body, err := fetch(client, x.URL+"/slow?ms=5000"); err != nil || status != 504 || time.Since(start) > 4*time.Second {
			t.Errorf("%d %s %v after %v", status, body, err, time.Since(start))
		}
		if status, body, err := fetch(client, x.URL+"/drip"); err != nil || status != 200 || strings.Count(body, "drop") != 6 {
			t.Errorf("a stream that had begun: %d %q %v", status, body, err)
		}
		// A longer one than before, for a running edge.
		s.CLI("tunnel", "set", "slow", "--response-timeout", "20s").JSON(t, &x)
		until(t, x.URL+"/slow?ms=1500", is(200, "late"))
	})
	t.Run("WebSocket off and on, a live one of a sibling goes on", func(t *testing.T) {
		ws := "http://" + serveHTTP(t, app(), false)
		create(t, "talk", ws)
		create(t, "sibling", ws)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		dial := func(host string) (*websocket.Conn, int, error) {
			c, resp, err := websocket.Dial(ctx, "wss://"+host+".localhost:"+s.Port()+"/ws", &websocket.DialOptions{HTTPClient: s.Client("h1")})
			status := 0
			if resp != nil {
				status = resp.StatusCode
			}
			return c, status, err
		}
		echo := func(c *websocket.Conn) error {
			if err := c.Write(ctx, websocket.MessageText, []byte("hi")); err != nil {
				return err
			}
			_, b, err := c.Read(ctx)
			if err == nil && string(b) != "hi" {
				err = fmt.Errorf("%q", b)
			}
			return err
		}
		live, _, err := dial("sibling")
		if err != nil {
			t.Fatal(err)
		}
		defer live.CloseNow()
		mine, _, err := dial("talk")
		if err != nil {
			t.Fatal(err)
		}
		defer mine.CloseNow()
		var x managedTunnel
		s.CLI("tunnel", "set", "talk", "--no-websocket").JSON(t, &x)
		stack.Eventually(t, 5*time.Second, func() error {
			c, status, err := dial("talk")
			if err == nil {
				c.CloseNow()
				return fmt.Errorf("it is still possible")
			}
			if status != http.StatusForbidden {
				return fmt.Errorf("%d %w", status, err)
			}
			return nil
		})
		for name, c := range map[string]*websocket.Conn{"the sibling's": live, "the tunnel's own": mine} {
			if err := echo(c); err != nil {
				t.Errorf("%s live WebSocket: %v", name, err)
			}
		}
		s.CLI("tunnel", "set", "talk", "--no-websocket=false").JSON(t, &x)
		stack.Eventually(t, 5*time.Second, func() error {
			c, _, err := dial("talk")
			if err == nil {
				c.CloseNow()
			}
			return err
		})
	})
	t.Run("TLS to the origin: its own CA, its server name, no verification", func(t *testing.T) {
		tls := httptest.NewTLSServer(settingsApp())
		t.Cleanup(tls.Close)
		ca := filepath.Join(t.TempDir(), "ca.pem")
		writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})))
		x := create(t, "tls", tls.URL)
		until(t, x.URL+"/host", is(502, "origin_tls"))
		s.CLI("tunnel", "set", "tls", "--origin-ca-file", ca).JSON(t, &x)
		until(t, x.URL+"/host", is(200, "tls.localhost"))
		s.CLI("tunnel", "set", "tls", "--origin-server-name", "wrong.test").JSON(t, &x)
		until(t, x.URL+"/host", is(502, "origin_tls"))
		s.CLI("tunnel", "set", "tls", "--origin-server-name", "example.com").JSON(t, &x)
		until(t, x.URL+"/host", is(200, "tls.localhost"))
		// A session that the CA verified must not be resumed where that CA is gone.
		s.CLI("tunnel", "set", "tls", "--origin-ca-file", "").JSON(t, &x)
		until(t, x.URL+"/host", is(502, "origin_tls"))
		s.CLI("tunnel", "set", "tls", "--insecure-skip-verify").JSON(t, &x)
		until(t, x.URL+"/host", is(200, "tls.localhost"))
	})
	t.Run("health check: an origin that fails gets no traffic while another passes", func(t *testing.T) {
		var sick atomic.Bool
		bad := serveHTTP(t, healthApp("one", &sick), false)
		good := serveHTTP(t, healthApp("two", new(atomic.Bool)), false)
		made := createTunnel(t, s, "pair", "http://"+bad, "http://"+good, "--agent", "home", "--access", "public", "--health-path", "/healthz", "--health-interval", "5s")
		s.WaitOnline(1, "pair")
		both := func() string {
			seen := ""
			for range 30 {
				_, body, err := fetch(client, made.URL)
				if err == nil && !strings.Contains(seen, body) {
					seen += body
				}
			}
			return seen
		}
		if got := both(); len(got) != 6 {
			t.Errorf("only %q are used", got)
		}
		sick.Store(true)
		stack.Eventually(t, 20*time.Second, func() error {
			if got, _ := s.Tunnel("pair"); got.State != "problem" || !strings.Contains(got.Detail, "1 of 2 origins") {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
		if got := both(); got != "two" {
			t.Errorf("with one sick, %q are used", got)
		}
		sick.Store(false)
		s.WaitOnline(1, "pair")
	})
	t.Run("PROXY protocol to the origin", func(t *testing.T) {
		l := listen(t)
		lines := make(chan string, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, 64)
			n, _ := c.Read(buf)
			lines <- string(buf[:n])
		}()
		x := createTunnel(t, s, "tcp://"+l.Addr().String(), "--agent", "home", "--access", "public", "--proxy-protocol", "v1")
		s.WaitOnline(1, fmt.Sprint("tcp:", x.Port))
		_ = echoOnce(loopback(x.Port), "hello")
		select {
		case got := <-lines:
			if !strings.HasPrefix(got, "PROXY TCP4 127.0.0.1") {
				t.Errorf("%q", got)
			}
		case <-time.After(10 * time.Second):
			t.Error("the origin was not reached")
		}
	})
	t.Run("a bad tunnel harms no other, and says why", func(t *testing.T) {
		x := create(t, "fine", "http://"+origin)
		createTunnel(t, s, "denied", "http://169.254.169.254:80", "--agent", "home", "--access", "public")
		url := s.URL("denied.localhost", "/")
		until(t, url, is(403, "origin_denied"))
		until(t, x.URL+"/host", is(200, "fine.localhost"))
		stack.Eventually(t, 10*time.Second, func() error {
			if got, _ := s.Tunnel("denied"); got.State != "problem" || got.Reason != "origin_denied" {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
	})
}

func fetch(c *http.Client, url string) (int, string, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// settingsApp tells what reaches it.
func settingsApp() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/host", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
	m.HandleFunc("/auth", func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		fmt.Fprint(w, user, " ", password)
	})
	m.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		var ms int
		fmt.Sscan(r.URL.Query().Get("ms"), &ms)
		select {
		case <-r.Context().Done():
		case <-time.After(time.Duration(ms) * time.Millisecond):
		}
		io.WriteString(w, "late")
	})
	m.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		for range 6 {
			io.WriteString(w, "drop")
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return m
}

func healthApp(name string, sick *atomic.Bool) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	m.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	return m
}
