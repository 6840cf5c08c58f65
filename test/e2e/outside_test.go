package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestMetricNames: dashboards and alerts rest on these names and labels.
func TestMetricNames(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	port := freeport.One(t)
	inv := s.Invite("metrics", "--hostname", "*.m.localhost", "--udp-port", fmt.Sprint(port))
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{
		Services: []stack.Service{
			stack.HTTP("up.m.localhost", "http://"+serveHTTP(t, named("up"), false)),
			stack.HTTP("down.m.localhost", "http://127.0.0.1:1"),
		},
		UDP: []stack.Service{stack.Port("echo", port, udpEcho(t))},
	})
	s.WaitOnline(1, "up.m.localhost", fmt.Sprint("udp:", port))
	if _, err := getOK(s.Client(), s.URL("up.m.localhost", "/")); err != nil {
		t.Fatal(err)
	}
	if _, err := getOK(s.Client(), s.URL("down.m.localhost", "/")); err == nil {
		t.Fatal("an origin that is down answers")
	}
	if err := echoDatagram(loopback(port), []byte("x")); err != nil {
		t.Fatal(err)
	}
	for address, names := range map[string][]string{
		s.Admin: {
			"adit_edge_sessions carrier path", "adit_edge_streams kind", "adit_edge_connections_total kind result",
			"adit_edge_bytes_total kind direction", "adit_edge_http_requests_total code", "adit_edge_http_request_seconds_bucket le",
			"adit_edge_udp_datagrams_dropped_total reason", "adit_hub_requests_total procedure code", "adit_build_info version",
		},
		a.Health: {
			"adit_agent_sessions edge carrier path", "adit_agent_session_reconnects_total", "adit_agent_streams",
			"adit_agent_stream_errors_total reason", "adit_agent_bytes_total direction", "adit_build_info version",
		},
	} {
		code, body := fetchText(t, "http://"+address+"/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics: %d", code)
		}
		for _, want := range names {
			name, labels, _ := strings.Cut(want, " ")
			if got, ok := labelsOf(body, name); !ok || !slices.Equal(got, sortedFields(labels)) {
				t.Errorf("%s: labels %q, want %q", name, got, labels)
			}
		}
	}
}

func fetchText(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// labelsOf are the names of the labels of a metric's first series, sorted.
func labelsOf(text, name string) (labels []string, ok bool) {
	for line := range strings.Lines(text) {
		rest, is := strings.CutPrefix(line, name)
		if !is || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		inside, _, _ := strings.Cut(strings.TrimPrefix(rest, "{"), "}")
		for rest[0] == '{' && inside != "" {
			var label string
			label, inside, _ = strings.Cut(inside, `="`)
			labels = append(labels, label)
			_, inside, _ = strings.Cut(inside, `"`)
			inside = strings.TrimPrefix(inside, ",")
		}
		return labels, true
	}
	return nil, false
}

func sortedFields(s string) []string {
	f := strings.Fields(s)
	slices.Sort(f)
	return f
}

// TestIdleMemory: an agent may run on the smallest of machines.
func TestIdleMemory(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("idle", "--hostname", "idle.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("idle.localhost", "http://127.0.0.1:1")}})
	s.WaitOnline(1, "idle.localhost")
	t.Run("invariant 6 an idle agent holds at most 15 MiB of its own", func(t *testing.T) {
		need.Linux(t, "reads /proc")
		var kib int64
		b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(a.PID()), "status"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(b), "RssAnon:")
		if _, err := fmt.Sscan(rest, &kib); !ok || err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		t.Logf("RssAnon %d KiB", kib)
		if kib > 15<<10 {
			t.Errorf("RssAnon is %d KiB, want at most 15 MiB", kib)
		}
	})
}

// TestAnswersTellNoSecret: whatever goes wrong, and however much is logged, no token and no key is told.
func TestAnswersTellNoSecret(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("secret", "--hostname", "secret.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("secret.localhost", "http://127.0.0.1:1")}})
	s.WaitOnline(1, "secret.localhost")
	admin, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = getOK(s.Client(), s.URL("secret.localhost", "/?code=hunter2"))
	said := map[string]string{}
	for _, args := range [][]string{
		{"invite", "list", "-o", "json"}, {"invite", "get", "secret", "-o", "json"}, {"agents", "get", "secret", "-o", "json"},
		{"edge", "list", "-o", "json"}, {"invite", "create", "--name", "secret", "--hostname", "secret.localhost"},
		{"config", "print", "agent", "--token", inv.Token}, {"config", "print", "server", "--join", inv.Token},
		{"agent", "--token", inv.Token, "--services", `[{"hostname": 5}]`}, {"agent", "--token", inv.Token + "x"},
		{"server", "--data-dir", t.TempDir(), "--roles", "edge", "--join", inv.Token, "--advertise", "127.0.0.1:1"},
	} {
		r := s.CLI(args...)
		said["adit "+strings.Join(args[:2], " ")] = r.Stdout + r.Stderr
	}
	if r := s.CLI("invite", "revoke", "secret"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	a.WaitLog(10*time.Second, "token_revoked")
	_, said["the server's metrics"] = fetchText(t, "http://"+s.Admin+"/metrics")
	_, said["the agent's metrics"] = fetchText(t, "http://"+a.Health+"/metrics")
	_, said["/readyz"] = a.Readyz()
	said["the server's log"], said["the agent's log"] = s.Log(), a.Log()
	t.Run("invariant 9 no secret in logs, metrics, errors and answers", func(t *testing.T) {
		for where, text := range said {
			// The seed is in the middle of a token.
			for what, secret := range map[string]string{"token": inv.Token[40:120], "admin key": strings.TrimSpace(string(admin)), "visitor's query": "hunter2"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s tells the %s:\n%s", where, what, text)
				}
			}
		}
	})
}

// TestReasonsAgree: whoever looks, visitor or owner, sees the same reason with its remedy.
func TestReasonsAgree(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("reasons", "--hostname", "down.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("down.localhost", "http://127.0.0.1:1")}})
	s.WaitOnline(1, "down.localhost")
	t.Run("invariant 11 page, logs, status and CLI say the same reason", func(t *testing.T) {
		const code, remedy = "origin_refused", "is the service running, and on this port?"
		for _, accept := range []string{"text/html", "application/json", "*/*"} {
			q, err := http.NewRequest(http.MethodGet, s.URL("down.localhost", "/"), nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Accept", accept)
			resp, err := s.Client().Do(q)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Adit-Error") != code || !strings.Contains(string(b), code) ||
				!strings.Contains(string(b), resp.Header.Get("Adit-Request-Id")) {
				t.Errorf("%s: %d %q %s", accept, resp.StatusCode, resp.Header, b)
			}
			if strings.Contains(string(b), "127.0.0.1") {
				t.Errorf("%s: the page tells a visitor where the origin is: %s", accept, b)
			}
		}
		s.WaitLog(10*time.Second, code, remedy, `"hop":"origin"`)
		a.WaitLog(10*time.Second, code, remedy)
		a.WaitReadyz(10*time.Second, code)
		for _, args := range [][]string{{"tunnel", "get", "down.localhost"}, {"tunnel", "get", "down.localhost", "-o", "json"}} {
			stack.Eventually(t, 10*time.Second, func() error {
				if r := s.CLI(args...); r.Code != 0 || !strings.Contains(r.Stdout, code) || !strings.Contains(r.Stdout, remedy) {
					return fmt.Errorf("%v: %+v", args, r)
				}
				return nil
			})
		}
		if s.Metric("adit_edge_connections_total", `result="origin_refused"`)+s.Metric("adit_edge_http_requests_total", `code="502"`) == 0 {
			t.Error("no metric counts it")
		}
	})
}
