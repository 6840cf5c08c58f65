package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

func TestDemoOnce(t *testing.T) {
	r := stack.Run(t, nil, "demo", "--once")
	if r.Code != 0 || strings.Contains(r.Stdout, "FAIL") {
		t.Fatalf("%+v", r)
	}
	ok := 0
	for line := range strings.Lines(r.Stdout) {
		if strings.HasPrefix(line, "ok") {
			ok++
		}
	}
	if ok != 4 {
		t.Errorf("%d ok lines, want one for each of the four kinds:\n%s", ok, r.Stdout)
	}
}

func TestDemo(t *testing.T) {
	need.Program(t, "curl", "bash")
	https, plain, echo := freeport.One(t), freeport.One(t), freeport.One(t)
	p := stack.Start(t, stack.Command{Name: "demo", Args: []string{"demo", "--listen-https", loopback(https),
		"--listen-http", loopback(plain), "--echo-port", fmt.Sprint(echo)}})
	p.WaitLog(20*time.Second, fmt.Sprint("https://hello.localhost:", https), fmt.Sprint("https://secure.localhost:", https), "--cacert")
	t.Run("the curl lines work as printed", func(t *testing.T) {
		lines := regexp.MustCompile(`(?m)curl .*--cacert.*$`).FindAllString(p.Log(), -1)
		if len(lines) == 0 {
			t.Fatalf("no curl line in\n%s", p.Log())
		}
		for _, line := range lines {
			out, err := exec.Command("bash", "-c", strings.Replace(line, "curl ", "curl --fail --silent --show-error ", 1)).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	})
	if err := echoOnce(loopback(echo), "echo\n"); err != nil {
		t.Error(err)
	}
	if err := echoDatagram(loopback(echo), []byte("echo")); err != nil {
		t.Error(err)
	}
	t.Run("D14 a busy port names the flag", func(t *testing.T) {
		r := stack.Run(t, nil, "demo", "--listen-https", loopback(https), "--listen-http", loopback(freeport.One(t)))
		if r.Code != 1 || !strings.Contains(r.Stderr, "--listen-https") {
			t.Errorf("%+v", r)
		}
	})
	p.Terminate()
	if code := p.Wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestDemoOrigin(t *testing.T) {
	https := freeport.One(t)
	p := stack.Start(t, stack.Command{Name: "demo", Args: []string{"demo", "http://" + serveHTTP(t, named("mine"), false),
		"--listen-https", loopback(https), "--listen-http", loopback(freeport.One(t)), "--data-dir", t.TempDir()}})
	p.WaitLog(20*time.Second, fmt.Sprint("https://app.localhost:", https))
}

// TestExpose makes an ad-hoc tunnel in the foreground: protected by default, which is 403 until there is a gate.
func TestExpose(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("expose", "--hostname", "shown.localhost", "--hostname", "shut.localhost")
	origin := "http://" + serveHTTP(t, named("mine"), false)
	shut := stack.Start(t, stack.Command{Name: "expose", Args: []string{"expose", origin, "--token-file", inv.File, "--hostname", "shut.localhost"}})
	shut.WaitLog(20*time.Second, "--access public", "403")
	open := stack.Start(t, stack.Command{Name: "expose", Args: []string{"expose", origin, "--token-file", inv.File, "--hostname", "shown.localhost", "--access", "public"}})
	open.WaitLog(20*time.Second, "https://shown.localhost")
	s.WaitOnline(1, "shown.localhost", "shut.localhost")
	if got, err := getOK(s.Client(), s.URL("shown.localhost", "/")); err != nil || got != "mine" {
		t.Errorf("public: %q %v", got, err)
	}
	open.WaitLog(10*time.Second, "GET")
	if _, err := getOK(s.Client(), s.URL("shut.localhost", "/")); err == nil || !strings.Contains(err.Error(), "access_denied") {
		t.Errorf("protected: %v", err)
	}
	t.Run("what ended is withdrawn, so the same name can be exposed otherwise at once", func(t *testing.T) {
		shut.Terminate()
		if code := shut.Wait(20 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if r := s.CLI("tunnel", "get", "shut.localhost"); r.Code != 4 {
			t.Errorf("the tunnel is still there: %+v", r)
		}
		again := stack.Start(t, stack.Command{Name: "expose", Args: []string{"expose", origin, "--token-file", inv.File, "--hostname", "shut.localhost", "--access", "public"}})
		again.WaitLog(20*time.Second, "https://shut.localhost")
		s.WaitOnline(1, "shut.localhost")
		if got, err := getOK(s.Client(), s.URL("shut.localhost", "/")); err != nil || got != "mine" {
			t.Errorf("public: %q %v", got, err)
		}
	})
}

// TestStart: a server with SQLite starts in under a second, first start and later ones, and stops gracefully.
func TestStart(t *testing.T) {
	dir := t.TempDir()
	for _, what := range []string{"first start", "second start"} {
		best := time.Hour
		for range 3 {
			if what == "first start" {
				dir = t.TempDir()
			}
			start := time.Now()
			s := stack.StartServer(t, stack.ServerConfig{Dir: dir, Unstarted: true})
			for s.Alive() {
				if _, err := os.Stat(filepath.Join(dir, "server.json")); err == nil {
					break
				}
				time.Sleep(2 * time.Millisecond)
			}
			s.WaitReady(10 * time.Second)
			best = min(best, time.Since(start))
			s.Terminate()
			if code := s.Wait(20 * time.Second); code != 0 {
				t.Fatalf("%s: exit code %d after SIGTERM", what, code)
			}
			if best < time.Second {
				break
			}
		}
		t.Logf("%s: %s", what, best.Round(time.Millisecond))
		if best > time.Second {
			t.Errorf("%s took %s, want under a second", what, best)
		}
	}
}

// TestServerFiles: what the server writes beside its data, and who may read it.
func TestServerFiles(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	for name, mode := range map[string]os.FileMode{"admin.key": 0o600, "secret.key": 0o600, "server.json": 0o644, "ca.crt": 0o644} {
		info, err := os.Stat(filepath.Join(s.Dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode().Perm()&^mode != 0 {
			t.Errorf("%s has mode %s, want at most %s", name, info.Mode().Perm(), mode)
		}
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, "server.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ HTTPS, HTTP, Admin string }
	if err := json.Unmarshal(text, &state); err != nil || state.HTTPS != s.HTTPS || state.HTTP != s.HTTP || state.Admin != s.Admin {
		t.Errorf("server.json: %s (%v)", text, err)
	}
	key, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), strings.TrimSpace(string(key))) || strings.Contains(s.Log(), strings.TrimSpace(string(key))) {
		t.Error("admin.key is in server.json or in the log")
	}
	inv := s.Invite("secret", "--hostname", "secret.localhost")
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("secret.localhost", "http://127.0.0.1:1")}})
	if strings.Contains(s.Log(), inv.Token) || strings.Contains(a.Log(), inv.Token) {
		t.Error("a token is in a log")
	}
	db, err := os.ReadFile(filepath.Join(s.Dir, "adit.db"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(db), inv.Token) || strings.Contains(string(db), strings.TrimSpace(string(key))) {
		t.Error("a secret is in the database in the clear")
	}
}

// TestExitCodes: scripts tell failures apart.
func TestExitCodes(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	if r := s.CLI("tunnel", "get", "nobody.localhost"); r.Code != 4 {
		t.Errorf("not found: %+v", r)
	}
	if r := s.CLI("tunnel", "frobnicate"); r.Code != 2 {
		t.Errorf("usage: %+v", r)
	}
	if r := stack.Run(t, nil, "tunnel", "list", "--data-dir", t.TempDir()); r.Code != 5 {
		t.Errorf("no server: %+v", r)
	}
	if r := stack.Run(t, nil, "server", "--roles", "relay", "--domain", "localhost", "--data-dir", t.TempDir()); r.Code != 2 {
		t.Errorf("a role that does not exist yet: %+v", r)
	}
	if r := stack.Run(t, []string{"ADIT_API_KEY=adit_key_wrong"}, "tunnel", "list", "--server-url", "https://hub.localhost:"+s.Port(), "--ca-file", s.CAFile()); r.Code != 3 {
		t.Errorf("wrong key: %+v", r)
	}
	for _, args := range [][]string{{"tunnel", "list"}, {"agents", "list"}, {"invite", "list"}, {"port", "list"}, {"edge", "list"}} {
		var any json.RawMessage
		s.CLI(args...).JSON(t, &any)
		for _, format := range []string{"table", "yaml"} {
			if r := stack.Run(t, nil, append(args, "--data-dir", s.Dir, "-o", format)...); r.Code != 0 {
				t.Errorf("%v -o %s: %+v", args, format, r)
			}
		}
	}
}
