package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// TestRecords: what happens is told on the command line and to a webhook, and traffic is counted.
func TestRecords(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	posted := make(chan string, 8)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var n struct{ Kind, Subject string }
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &n); err != nil || !strings.HasPrefix(r.Header.Get("Adit-Signature"), "t=") {
			t.Errorf("%v in %s, signed %q", err, body, r.Header.Get("Adit-Signature"))
		}
		posted <- n.Kind + " " + n.Subject
	}))
	defer hook.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := s.CLI("notice", "set", "pager", "--webhook", hook.URL, "--webhook-secret-file", secret); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	if r := s.CLI("notice", "test", "pager"); r.Code != 0 || <-posted != "test notice/pager" {
		t.Fatal(r)
	}
	follow := stack.Start(t, stack.Command{Name: "events", Args: []string{"events", "-f", "-o", "json", "--data-dir", s.Dir}})
	inv := s.Invite("home", "--hostname", "app.localhost")
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", "http://"+serveHTTP(t, named("home"), false))}})
	s.WaitOnline(1, "app.localhost")
	select {
	case got := <-posted:
		if got != "agent_online agent/home" {
			t.Errorf("posted %q", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("the webhook heard of no agent")
	}
	follow.WaitLog(10*time.Second, `"kind":"agent_online"`, `"subject":"agent/home"`)
	var events []struct{ Kind, Subject, Severity string }
	s.CLI("events", "--kind", "agent_online", "-o", "json").JSON(t, &events)
	if len(events) != 1 || events[0].Subject != "agent/home" || events[0].Severity != "info" {
		t.Errorf("events: %+v", events)
	}
	if r := s.CLI("problems"); r.Code != 0 || strings.TrimSpace(r.Stdout) != "[]" {
		t.Errorf("problems: %s%s", r.Stdout, r.Stderr)
	}
	for range 3 {
		resp, err := s.Client().Get(s.URL("app.localhost", "/"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	stack.Eventually(t, 40*time.Second, func() error {
		var v struct {
			Total struct {
				Requests uint64
				BytesOut uint64  `json:"bytes_out"`
				P50      float64 `json:"p50_ms"`
			}
		}
		s.CLI("traffic", "app.localhost", "-o", "json").JSON(t, &v)
		if v.Total.Requests != 3 || v.Total.BytesOut == 0 || v.Total.P50 <= 0 {
			return fmt.Errorf("traffic: %+v", v.Total)
		}
		return nil
	})
	for _, args := range [][]string{{"notice", "set", "x", "--webhook", "ftp://x"}, {"traffic", "--step", "7m"}, {"events", "--severity", "loud"}} {
		if _, code, hint := s.CLI(append(args, "-o", "json")...).Problem(t); code != "invalid" || hint == "" {
			t.Errorf("%v: code %q, hint %q", args, code, hint)
		}
	}
}
