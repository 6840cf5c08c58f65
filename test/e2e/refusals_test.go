package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestRefusals: what cannot be is refused with the documented reason, on both sides.
func TestRefusals(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	origin := "http://" + serveHTTP(t, named("home"), false)
	service := func(host string) stack.AgentConfig {
		return stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP(host, origin)}}
	}
	t.Run("a name that the token was not granted", func(t *testing.T) {
		inv := s.Invite("granted", "--hostname", "mine.localhost")
		cfg := service("other.localhost")
		cfg.Services = append(cfg.Services, stack.HTTP("mine.localhost", origin))
		a := stack.StartAgent(t, inv.File, cfg)
		a.WaitReadyz(20*time.Second, "grant_missing", "other.localhost")
		a.WaitLog(5*time.Second, "grant_missing", "other.localhost")
		s.WaitOnline(1, "mine.localhost")
		if r := s.CLI("agents", "get", "granted"); !strings.Contains(r.Stdout, "grant_missing") {
			t.Errorf("agents get: %s", r.Stdout)
		}
	})
	t.Run("a name that another tenant holds", func(t *testing.T) {
		s.Invite("holder", "--hostname", "held.taken.test")
		for _, pattern := range []string{"held.taken.test", "*.taken.test"} {
			message, code, _ := s.CLI("invite", "create", "--name", "second", "--hostname", pattern).Problem(t)
			if code != "name_conflict" || !strings.Contains(message, "holder") {
				t.Errorf("%s: %s %q; want a conflict that names the holder", pattern, code, message)
			}
		}
	})
	t.Run("reserved names and the server's own ports", func(t *testing.T) {
		for _, grant := range [][]string{
			{"--hostname", "hub.localhost"}, {"--hostname", "localhost"}, {"--hostname", "_acme.localhost"},
			{"--hostname", "a.hub.localhost"}, {"--tcp-port", s.Port()}, {"--tcp-port", "22"},
		} {
			r := s.CLI(append([]string{"invite", "create", "--name", "bad"}, grant...)...)
			// A port below 1024 may be granted only where the server's range says so.
			if r.Code == 0 {
				t.Errorf("%v was granted: %s", grant, r.Stdout)
			}
		}
	})
	t.Run("a port that another tenant holds", func(t *testing.T) {
		port := fmt.Sprint(freeport.One(t))
		s.Invite("port-holder", "--tcp-port", port)
		message, code, _ := s.CLI("invite", "create", "--name", "port-second", "--tcp-port", port).Problem(t)
		if code != "port_conflict" || !strings.Contains(message, "port-holder") {
			t.Errorf("%s %q; want a conflict that names the holder", code, message)
		}
	})
	t.Run("D13 a port that another program has leaves the others serving", func(t *testing.T) {
		ports := freeport.Run(t, 5)
		taken, err := net.Listen("tcp", loopback(ports+2))
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		inv := s.Invite("five", "--tcp-port", fmt.Sprintf("%d-%d", ports, ports+4))
		var cfg stack.AgentConfig
		echo := tcpEcho(t)
		for i := range 5 {
			cfg.TCP = append(cfg.TCP, stack.Port(fmt.Sprint("p", i), ports+i, echo))
		}
		a := stack.StartAgent(t, inv.File, cfg)
		for i := range 5 {
			if i != 2 {
				stack.Eventually(t, 20*time.Second, func() error { return echoOnce(loopback(ports+i), "hello\n") })
			}
		}
		a.WaitReadyz(20*time.Second, "port_unavailable")
		if r := s.CLI("port", "list"); r.Code != 0 || !strings.Contains(r.Stdout, fmt.Sprint(ports+2)) {
			t.Errorf("port list: %+v", r)
		}
		t.Run("D12 and it is bound once the program has gone", func(t *testing.T) {
			taken.Close()
			stack.Eventually(t, 40*time.Second, func() error { return echoOnce(loopback(ports+2), "hello\n") })
		})
	})
	t.Run("--fail-fast ends the agent with the refusal", func(t *testing.T) {
		inv := s.Invite("fast", "--hostname", "fast.localhost")
		cfg := service("slow.localhost")
		cfg.Args = []string{"--fail-fast"}
		a := stack.StartAgent(t, inv.File, cfg)
		if code := a.Wait(20 * time.Second); code != 1 || !strings.Contains(a.Log(), "grant_missing") {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("a revoked invite", func(t *testing.T) {
		inv := s.Invite("revoked", "--hostname", "revoked.localhost")
		running := stack.StartAgent(t, inv.File, service("revoked.localhost"))
		s.WaitOnline(1, "revoked.localhost")
		if r := s.CLI("invite", "revoke", "revoked"); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
		running.WaitLog(6*time.Second, "token_revoked")
		stack.Eventually(t, 6*time.Second, func() error {
			if code, _ := running.Readyz(); code == 200 {
				return fmt.Errorf("the agent still has a session")
			}
			return nil
		})
		late := stack.StartAgent(t, inv.File, service("revoked.localhost"))
		late.WaitLog(20*time.Second, "token_revoked")
		late.WaitReadyz(5*time.Second, "token_revoked")
		s.WaitLog(5*time.Second, "token_revoked")
	})
	t.Run("an expired invite", func(t *testing.T) {
		inv := s.Invite("expired", "--hostname", "expired.localhost", "--expires", "1s")
		time.Sleep(1100 * time.Millisecond) // the expiry itself
		a := stack.StartAgent(t, inv.File, service("expired.localhost"))
		a.WaitLog(20*time.Second, "token_expired")
		s.WaitLog(5*time.Second, "token_expired")
	})
	t.Run("a token that is none", func(t *testing.T) {
		good := s.Invite("typo", "--hostname", "typo.localhost").Token
		for name, token := range map[string]string{
			"wrong prefix": "adit_visitor_" + strings.TrimPrefix(good, "adit_invite_"), "cut short": good[:len(good)-9],
			"one letter changed": good[:40] + flip(good[40]) + good[41:], "not a token": "hunter2",
		} {
			file := filepath.Join(t.TempDir(), "token")
			writeFile(t, file, token)
			r := stack.Run(t, nil, "agent", "--token-file", file, "--health-addr", "", "--services",
				`[{"hostname":"typo.localhost","origin":"127.0.0.1:1"}]`)
			if r.Code != 3 || !strings.Contains(r.Stderr, "token") || strings.Contains(r.Stderr, token) {
				t.Errorf("%s: %+v; want exit code 3 and an error without the token", name, r)
			}
		}
	})
	t.Run("a token of another server", func(t *testing.T) {
		other := stack.StartServer(t, stack.ServerConfig{})
		inv := other.Invite("foreign", "--hostname", "foreign.localhost")
		cfg := service("foreign.localhost")
		cfg.Args = []string{"--server-url", "https://127.0.0.1:" + s.Port()}
		other.Terminate()
		other.Wait(30 * time.Second)
		a := stack.StartAgent(t, inv.File, cfg)
		a.WaitLog(20*time.Second, "pin")
		if code, _ := a.Readyz(); code == 200 {
			t.Error("the agent is ready")
		}
	})
	t.Run("a service list with an unknown field", func(t *testing.T) {
		inv := s.Invite("fields", "--hostname", "fields.localhost")
		r := stack.Run(t, nil, "agent", "--token-file", inv.File, "--health-addr", "", "--services",
			`[{"hostname":"fields.localhost","origin":"127.0.0.1:1","orign":"x"}]`)
		if r.Code != 2 || !strings.Contains(r.Stderr, "orign") || !strings.Contains(r.Stderr, "services[0]") {
			t.Errorf("%+v", r)
		}
	})
}

func flip(b byte) string {
	if b == 'A' {
		return "B"
	}
	return "A"
}

// TestBusyPort: a listen port that is taken is one clear error line that names the flag.
func TestBusyPort(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	free := func() string { return loopback(freeport.One(t)) }
	for name, c := range map[string]struct{ flag, https, http, admin string }{
		"D14 https over TCP": {"--listen-https", tcp.Addr().String(), free(), free()},
		"D14 https over UDP": {"--listen-https", udp.LocalAddr().String(), free(), free()},
		"D14 http":           {"--listen-http", free(), tcp.Addr().String(), free()},
		"D14 admin":          {"--listen-admin", free(), free(), tcp.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			r := stack.Run(t, nil, "server", "--data-dir", t.TempDir(), "--domain", "localhost",
				"--listen-https", c.https, "--listen-http", c.http, "--listen-admin", c.admin)
			lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
			last := lines[len(lines)-1]
			if r.Code != 1 || !strings.Contains(last, c.flag) || strings.Contains(r.Stderr, "panic") {
				t.Errorf("exit code %d, printed\n%s", r.Code, r.Stderr)
			}
		})
	}
}

// TestFullDisk: with no room left, traffic goes on and changes fail with store_unavailable.
func TestFullDisk(t *testing.T) {
	need.Linux(t, "a small tmpfs stands for the full disk")
	need.RootUser(t, "to mount a small tmpfs")
	need.Kernel(t, need.Mounts)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := stack.StartServer(t, stack.ServerConfig{Dir: dir})
	inv := s.Invite("disk", "--hostname", "disk.localhost", "--hostname", "disk2.localhost")
	origin := "http://" + serveHTTP(t, named("home"), false)
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("disk.localhost", origin)}})
	s.WaitOnline(1, "disk.localhost")

	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	message, code, hint := s.CLI("invite", "create", "--name", "more", "--hostname", "more.localhost").Problem(t)
	if code != "store_unavailable" || !strings.Contains(message+hint, "space") && !strings.Contains(message+hint, "disk") {
		t.Errorf("invite create on a full disk: %s %q %q", code, message, hint)
	}
	late := stack.StartAgent(t, inv.File, stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP("disk2.localhost", origin)}})
	late.WaitReadyz(20*time.Second, "store_unavailable")
	s.WaitLog(5*time.Second, "store_unavailable")
	if got, err := getOK(s.Client(), s.URL("disk.localhost", "/")); err != nil || got != "home" {
		t.Errorf("traffic on a full disk: %q %v", got, err)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.WaitOnline(1, "disk2.localhost")
	s.Invite("more", "--hostname", "more.localhost")
}

// fill writes until the file system has no room.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<16); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
}
