package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// unread is a command line that gives a program a pipe for its log which nobody reads.
func unread(t *testing.T) []string {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that the program's own opening does not wait for a reader.
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return []string{"sh", "-c", `exec "$@" >` + pipe + ` 2>&1`, "sh"}
}

// TestBlockedLog has the reader of both programs' logs stop.
func TestBlockedLog(t *testing.T) {
	need.Linux(t, "the log is a named pipe")
	s := stack.StartServer(t, stack.ServerConfig{Wrap: unread(t)})
	inv := s.Invite("logs", "--hostname", "logs.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: unread(t),
		Services: []stack.Service{stack.HTTP("logs.localhost", "http://"+serveHTTP(t, app(), false))}})
	s.WaitOnline(1, "logs.localhost")
	t.Run("O02 a stopped reader of the log stops no traffic", func(t *testing.T) {
		// A pipe holds 64 KiB and the queue 4,096 lines: every request logs at least one.
		end := time.Now().Add(40 * time.Second)
		for s.Metric("adit_log_lines_dropped_total") == 0 {
			if time.Now().After(end) {
				t.Fatal("the log was never full")
			}
			var wg sync.WaitGroup
			for range 8 {
				c := s.Client("h1")
				wg.Go(func() {
					for range 100 {
						if _, err := getOK(c, s.URL("logs.localhost", "/hello")); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
		}
		start := time.Now()
		for range 50 {
			if _, err := getOK(s.Client("h1"), s.URL("logs.localhost", "/hello")); err != nil {
				t.Fatalf("with a full log: %v", err)
			}
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("50 requests with a full log took %s", d)
		}
		if code, body := a.Readyz(); code != http.StatusOK {
			t.Errorf("/readyz of the agent: %d %s", code, body)
		}
	})
	t.Run("O02 nor does it hold up the end of a program", func(t *testing.T) {
		for name, p := range map[string]*stack.Process{"agent": a.Process, "server": s.Process} {
			p.Terminate()
			if code := p.Wait(40 * time.Second); code != 0 {
				t.Errorf("%s: exit code %d", name, code)
			}
		}
	})
}

// TestSecretsStayOutOfLogs uses every secret there is with debug logs on.
func TestSecretsStayOutOfLogs(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{})
	edgeToken := hub.EdgeToken("further")
	edge := stack.StartServer(t, stack.ServerConfig{Roles: "edge", Join: edgeToken})
	inv := hub.Invite("secrets", "--hostname", "secrets.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{
		Services: []stack.Service{stack.HTTP("secrets.localhost", "http://"+serveHTTP(t, app(), false))}})
	hub.WaitOnline(1, "secrets.localhost")
	t.Run("O05 invariant 9 no secret is in a debug log", func(t *testing.T) {
		secrets := map[string]string{"the invite": inv.Token, "the edge token": edgeToken}
		for name, token := range map[string]string{"the invite": inv.Token, "the edge token": edgeToken} {
			parsed, err := identity.ParseToken(token)
			if err != nil {
				t.Fatal(err)
			}
			secrets["the seed of "+name] = fmt.Sprintf("%x", parsed.Body.GetSeed())
			// What is between the prefix and the checksum would be enough.
			secrets["the body of "+name] = strings.SplitN(token, "_", 3)[2][:40]
		}
		key, err := os.ReadFile(filepath.Join(hub.Dir, "admin.key"))
		if err != nil {
			t.Fatal(err)
		}
		secrets["the API key"] = strings.TrimSpace(string(key))

		for _, e := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Sec-WebSocket-Key"} {
			secrets["a visitor's "+e] = "hidden-" + strings.ToLower(e)
		}
		ask := func(url string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"password":"hidden-body"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer hidden-authorization")
			req.Header.Set("Proxy-Authorization", "Basic hidden-proxy-authorization")
			req.Header.Set("Cookie", "session=hidden-cookie")
			req.Header.Set("X-Api-Key", "hidden-x-api-key")
			req.Header.Set("Content-Type", "application/json")
			resp, err := hub.Client("h2").Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		secrets["a body"], secrets["a query"] = "hidden-body", "hidden-query"
		ask(hub.URL("secrets.localhost", "/hello?access_token=hidden-query"))
		ask(hub.URL("hub.localhost", "/adit.hub.v1.AdminService/ListTunnels?access_token=hidden-query"))
		hub.CLI("tunnel", "list")
		if r := hub.CLI("invite", "revoke", "secrets"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		a.WaitLog(20*time.Second, "token_revoked")
		for program, p := range map[string]*stack.Process{"hub": hub.Process, "edge": edge.Process, "agent": a.Process} {
			text := p.Log()
			for name, secret := range secrets {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("the log of the %s holds %s: …%.120s", program, name, text[max(0, i-60):])
				}
			}
			line, _, _ := strings.Cut(text, "\n")
			if !json.Valid([]byte(line)) {
				t.Errorf("the %s logs no JSON: %s", program, line)
			}
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
			for name, secret := range secrets {
				if err == nil && strings.Contains(string(cmdline), secret) {
					t.Errorf("the command line of the %s holds %s", program, name)
				}
			}
		}
	})
}
