package cli_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemoOnce: all four kinds through real sockets, in one process, and nothing stays behind
// (TestMain looks for goroutines).
func TestDemoOnce(t *testing.T) {
	r := run(t, nil, "demo", "--once")
	if r.code != 0 || strings.Count(r.stdout, "ok    ") != 4 || strings.Contains(r.stdout, "FAIL") {
		t.Errorf("%d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r.stderr != "" {
		t.Errorf("warnings:\n%s", r.stderr)
	}
}

func TestDemoJSON(t *testing.T) {
	r := run(t, nil, "demo", "--once", "-o", "json")
	var lines []struct{ Status, Request, Detail string }
	if err := json.Unmarshal([]byte(r.stdout), &lines); err != nil || r.code != 0 || len(lines) != 4 {
		t.Fatalf("%v %+v", err, r)
	}
	for _, l := range lines {
		if l.Status != "ok" || l.Request == "" {
			t.Errorf("%+v", l)
		}
	}
}

func TestDemoWithOrigin(t *testing.T) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "" || !strings.HasPrefix(r.Host, "app.localhost") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte("mine"))
	}))
	defer origin.Close()
	r := run(t, nil, "demo", origin.URL, "--once")
	if r.code != 0 || !strings.Contains(r.stdout, "https://app.localhost:") || !strings.Contains(r.stdout, "200 OK, 4 bytes") {
		t.Errorf("%+v", r)
	}
	// An origin that is not there: one FAIL line that says so, and exit code 1.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := ln.Addr().String()
	ln.Close()
	r = run(t, nil, "demo", gone, "--once")
	if r.code != 1 || strings.Count(r.stdout, "ok    ") != 3 || !strings.Contains(r.stdout, "FAIL") || !strings.Contains(r.stdout, "origin_refused") {
		t.Errorf("%+v", r)
	}
}

func TestDemoBusyPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for _, c := range []struct {
		flag string
		args []string
	}{
		{"--listen-https", []string{"--listen-https", ln.Addr().String()}},
		{"--listen-http", []string{"--listen-http", ln.Addr().String()}},
		{"--echo-port", []string{"--echo-port", port}},
	} {
		t.Run("D14 the demo names "+c.flag, func(t *testing.T) {
			r := run(t, nil, append([]string{"demo", "--once"}, c.args...)...)
			if r.code != 1 || !strings.Contains(r.stderr, c.flag+": cannot listen") || strings.Count(strings.TrimSpace(r.stderr), "\n") != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestDemoDataDir: with --data-dir the data stays where it was asked for.
func TestDemoDataDir(t *testing.T) {
	dir := t.TempDir()
	r := run(t, nil, "demo", "--once", "--data-dir", dir)
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, name := range []string{"ca.crt", "admin.key", "agent.token"} {
		if m, _ := filepath.Glob(filepath.Join(dir, name)); len(m) != 1 {
			t.Errorf("no %s in the data folder", name)
		}
	}
	// A second run on the same folder meets its own invite.
	if r := run(t, nil, "demo", "--once", "--data-dir", dir); r.code != 0 {
		t.Errorf("second run: %+v", r)
	}
}
