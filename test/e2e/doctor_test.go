package e2e

import (
	"archive/zip"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/telemetry"
	"github.com/adit-dev/adit/test/stack"
)

type check struct{ Name, Status, Detail, Remedy string }

// doctor runs the checks and returns the one whose name begins so.
func doctor(t *testing.T, name string, args ...string) check {
	t.Helper()
	r := stack.Run(t, nil, append([]string{"doctor", "-o", "json"}, args...)...)
	var all []check
	if err := json.NewDecoder(strings.NewReader(r.Stdout)).Decode(&all); err != nil {
		t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	for _, c := range all {
		if strings.HasPrefix(c.Name, name) {
			return c
		}
	}
	t.Fatalf("no check %q among %+v", name, all)
	return check{}
}

// onlyTCP forwards TCP to an address: a way that lets no UDP through.
func onlyTCP(t *testing.T, to string) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer a.Close()
				b, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer b.Close()
				go func() { _, _ = io.Copy(b, a); b.(*net.TCPConn).CloseWrite() }()
				_, _ = io.Copy(a, b)
			}()
		}
	}()
	return l.Addr().String()
}

// TestDoctor breaks one thing after the other and wants it named.
func TestDoctor(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("ill", "--hostname", "ill.localhost")
	t.Run("O07 UDP is blocked", func(t *testing.T) {
		way := "https://" + onlyTCP(t, s.HTTPS)
		if c := doctor(t, "TCP", "--server-url", way); c.Status != "ok" {
			t.Errorf("%+v", c)
		}
		c := doctor(t, "UDP", "--server-url", way)
		if c.Status != "warn" || !strings.Contains(c.Remedy, "UDP") || !strings.Contains(c.Remedy, "firewall") {
			t.Errorf("%+v", c)
		}
	})
	t.Run("O07 the name has no address", func(t *testing.T) {
		c := doctor(t, "DNS", "--server-url", "https://hub.nothing.invalid")
		if c.Status != "FAIL" || c.Remedy == "" {
			t.Errorf("%+v", c)
		}
	})
	t.Run("O07 the server is not there", func(t *testing.T) {
		c := doctor(t, "TCP", "--server-url", "https://127.0.0.1:1")
		if c.Status != "FAIL" || !strings.Contains(c.Remedy, "server") {
			t.Errorf("%+v", c)
		}
	})
	t.Run("O07 all is well", func(t *testing.T) {
		for _, name := range []string{"token", "TCP", "UDP", "clock"} {
			if c := doctor(t, name, "--token-file", inv.File); c.Status != "ok" {
				t.Errorf("%+v", c)
			}
		}
	})
	t.Run("O07 a bundle without secrets", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "bundle.zip")
		env := []string{"ADIT_TOKEN=" + inv.Token, "ADIT_DATABASE_URL=postgres://adit:hidden-password@db/adit"}
		r := stack.Run(t, env, "doctor", "--data-dir", s.Dir, "--bundle", path, "-o", "json")
		z, err := zip.OpenReader(path)
		if err != nil {
			t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
		}
		defer z.Close()
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", i.Mode(), err)
		}
		key, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for _, f := range z.File {
			rc, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(rc)
			rc.Close()
			if err != nil {
				t.Fatal(err)
			}
			names[f.Name] = string(b)
			for _, secret := range []string{inv.Token, strings.SplitN(inv.Token, "_", 3)[2], "hidden-password", strings.TrimSpace(string(key))} {
				if strings.Contains(string(b), secret) {
					t.Errorf("%s holds a secret", f.Name)
				}
			}
		}
		for name, want := range map[string]string{"checks.json": `"status"`, "version.json": "version", "settings-server.json": "(hidden)",
			"settings-agent.json": "(hidden)"} {
			if !strings.Contains(names[name], want) {
				t.Errorf("%s holds no %q: %s", name, want, names[name])
			}
		}
		if r = stack.Run(t, nil, "doctor", "--data-dir", s.Dir, "--bundle", path); r.Code == 0 || !strings.Contains(r.Stderr, "--bundle") {
			t.Errorf("a file that exists: %+v", r)
		}
	})
	t.Run("O07 the bundle of a server's own host", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "bundle.zip")
		stack.Run(t, nil, "doctor", "--data-dir", s.Dir, "--bundle", path)
		z, err := zip.OpenReader(path)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		for _, name := range []string{"server.json", "server-readyz.txt", "server-metrics.txt"} {
			f, err := z.Open(name)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			f.Close()
		}
	})
}

// TestAdminAddresses has several programs on one host.
func TestAdminAddresses(t *testing.T) {
	dir := t.TempDir()
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("five", "--hostname", "five.localhost")
	origin := "http://" + serveHTTP(t, app(), false)
	t.Run("O04 five agents on one host with sockets in the file system", func(t *testing.T) {
		for i := range 5 {
			path := filepath.Join(dir, string(rune('a'+i))+".sock")
			a := stack.StartAgent(t, inv.File, stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP("five.localhost", origin)},
				Args: []string{"--health-addr", "unix:" + path}})
			client, base := telemetry.AdminClient("unix:" + path)
			defer client.CloseIdleConnections()
			ready := func() error {
				_, err := getOK(client, base+"/readyz")
				return err
			}
			stack.Eventually(t, 30*time.Second, ready)
			if i == 0 {
				// What a killed one leaves behind is in nobody's way.
				a.Kill()
				stack.StartAgent(t, inv.File, stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP("five.localhost", origin)},
					Args: []string{"--health-addr", "unix:" + path}})
				stack.Eventually(t, 30*time.Second, ready)
			}
			if text, err := getOK(client, base+"/metrics"); err != nil || !strings.Contains(text, "adit_agent_sessions") {
				t.Errorf("/metrics: %v", err)
			}
			if i, err := os.Stat(path); err != nil || i.Mode().Type() != os.ModeSocket {
				t.Errorf("%v, %v", i, err)
			}
		}
		s.WaitOnline(5, "five.localhost")
	})
	t.Run("O04 the default is fixed, and a free port where it is busy is logged", func(t *testing.T) {
		// Whoever has the default port, one of the two must move.
		var moved int
		for range 2 {
			p := stack.Start(t, stack.Command{Name: "agent", Args: []string{"agent", "--token-file", inv.File, "--log-format", "json"}})
			p.WaitLog(20*time.Second, "session opened")
			if strings.Contains(p.Log(), `"used":"127.0.0.1:`) && strings.Contains(p.Log(), `"wanted":"127.0.0.1:9091"`) {
				moved++
				continue
			}
			r, err := http.Get("http://127.0.0.1:9091/healthz")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
		}
		if moved == 0 {
			t.Error("two agents share a health address")
		}
	})
}
