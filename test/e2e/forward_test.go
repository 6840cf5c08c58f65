package e2e

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// startForward runs `adit forward` and returns where it listens.
func startForward(t *testing.T, s *stack.Server, args ...string) (*stack.Process, string) {
	t.Helper()
	at := loopback(freeport.One(t))
	p := stack.Start(t, stack.Command{Name: "forward", Grace: 5 * time.Second,
		Args: append([]string{"forward", "--data-dir", s.Dir, "--listen", at}, args...)})
	p.WaitLog(20*time.Second, at+" -> ")
	return p, at
}

// TestForward: a local port reaches what the agent permits, and nothing else.
func TestForward(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	web := serveHTTP(t, named("behind"), false)
	echo := strings.TrimPrefix(tcpEcho(t), "tcp://")
	other := strings.TrimPrefix(tcpEcho(t), "tcp://")
	ssh := freeport.One(t)
	a := stack.StartAgent(t, inv.File, stack.AgentConfig{
		Services: []stack.Service{stack.HTTP("app.localhost", "http://"+web)},
		Args:     []string{"--allow-forward", web + "," + echo + ",169.254.0.0/16,localhost," + loopback(ssh)},
	})
	t.Run("SSH and scp", func(t *testing.T) {
		progs := need.Program(t, "ssh", "scp")
		me, err := user.Current()
		if err != nil {
			t.Fatal(err)
		}
		flags := sshd(t, ssh)
		_, at := startForward(t, s, "home", loopback(ssh))
		_, port, _ := net.SplitHostPort(at)
		if out := run(t, nil, progs[0], append(flags, "-p", port, me.Username+"@127.0.0.1", "echo through")...); out != "through\n" {
			t.Errorf("ssh printed %q", out)
		}
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		if err := os.WriteFile(from, randomBytes(t, 20<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, nil, progs[1], append(append([]string{"-q", "-P", port}, flags...), from, me.Username+"@127.0.0.1:"+to)...)
		if fileSum(t, from) != fileSum(t, to) {
			t.Error("what scp carried differs")
		}
	})
	t.Run("HTTP", func(t *testing.T) {
		_, at := startForward(t, s, "home", web)
		for range 3 {
			resp, err := http.Get("http://" + at + "/")
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != 200 || !strings.Contains(string(b), "behind") {
				t.Errorf("%d %s", resp.StatusCode, b)
			}
		}
	})
	t.Run("what is sent after the other side heard the end", func(t *testing.T) {
		_, at := startForward(t, s, "home", "tcp://"+echo)
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		sent := strings.Repeat("0123456789abcdef", 64<<10)
		go func() {
			_, _ = io.WriteString(c, sent)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		got, err := io.ReadAll(c)
		if err != nil || string(got) != sent {
			t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
		}
	})
	t.Run("targets that the agent does not permit", func(t *testing.T) {
		for _, target := range []string{other, "169.254.169.254:80"} {
			p, at := startForward(t, s, "home", target)
			c, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: something answered", target)
			}
			_ = c.Close()
			p.WaitLog(5*time.Second, "must not be dialled")
		}
		a.WaitLog(5*time.Second, "origin_denied", "no --allow-forward covers")
	})
	t.Run("an agent that permits none", func(t *testing.T) {
		inv := s.Invite("closed", "--hostname", "closed.localhost")
		stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("closed.localhost", "http://"+web)}})
		p, at := startForward(t, s, "closed", web)
		if resp, err := http.Get("http://" + at + "/"); err == nil {
			_ = resp.Body.Close()
			t.Errorf("answered %s", resp.Status)
		}
		p.WaitLog(5*time.Second, "permits no forwards")
	})
	t.Run("what cannot be opened is told at once", func(t *testing.T) {
		for _, c := range []struct {
			args []string
			code string
		}{
			{[]string{"nobody", web}, "not_found"}, {[]string{"home", "udp://10.0.0.1:53"}, "invalid"}, {[]string{"home", "10.0.0.1"}, "invalid"},
		} {
			if _, code, _ := s.CLI(append([]string{"forward"}, c.args...)...).Problem(t); code != c.code {
				t.Errorf("%v: %s, want %s", c.args, code, c.code)
			}
		}
	})
	t.Run("a revoked invite ends what runs", func(t *testing.T) {
		_, at := startForward(t, s, "home", echo)
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if r := s.CLI("invite", "revoke", "home"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("something came")
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestForwardJoinedEdge: forwards go through an edge that hears of them from its hub, and go on
// while the hub is away.
func TestForwardJoinedEdge(t *testing.T) {
	hub := stack.StartServer(t, stack.ServerConfig{Roles: "hub"})
	hub.StartEdge(stack.ServerConfig{})
	inv := hub.Invite("home", "--hostname", "app.localhost")
	echo := strings.TrimPrefix(tcpEcho(t), "tcp://")
	stack.StartAgent(t, inv.File, stack.AgentConfig{
		Services: []stack.Service{stack.HTTP("app.localhost", "http://"+serveHTTP(t, named("home"), false))},
		Args:     []string{"--allow-forward", echo},
	})
	_, at := startForward(t, hub, "home", echo)
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if err := echoOn(c, "before\n"); err != nil {
		t.Fatal(err)
	}
	hub.Kill()
	if err := echoOn(c, "during\n"); err != nil {
		t.Errorf("while the hub is away: %v", err)
	}
	again, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	_ = again.SetDeadline(time.Now().Add(30 * time.Second))
	if err := echoOn(again, "with the ticket at hand\n"); err != nil {
		t.Errorf("another connection while the ticket is good: %v", err)
	}
}

// TestForwardByKey: a key with the scope forward is enough to forward, one without is not, and a
// deleted key ends what runs.
func TestForwardByKey(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	web := serveHTTP(t, named("behind"), false)
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", "http://"+web)}, Args: []string{"--allow-forward", web}})
	s.WaitOnline(1, "app.localhost")
	var bob struct{ URL string }
	s.CLI("user", "invite", "bob", "--role", "admin").JSON(t, &bob)
	_, secret, _ := strings.Cut(bob.URL, "#")
	if page := newPerson(t, s).send("POST", "/join", url.Values{"code": {secret}, "password": {"correct horse"}, "password2": {"correct horse"}}); !strings.Contains(page, "Hello, bob") {
		t.Fatal(page)
	}
	key := func(scope string) []string {
		var k struct{ Token string }
		s.CLI("key", "create", strings.ReplaceAll(scope, ":", "-"), "--user", "bob", "--scope", scope).JSON(t, &k)
		return []string{"ADIT_API_KEY=" + k.Token, "ADIT_SERVER_URL=" + s.URL("hub.localhost", ""), "ADIT_CA_FILE=" + s.CAFile()}
	}
	at := loopback(freeport.One(t))
	if r := stack.Run(t, key("tunnels:read"), "forward", "home", web, "--listen", at, "-o", "json"); r.Code == 0 || !strings.Contains(r.Stderr, "access_denied") {
		t.Errorf("a key without the scope: %s%s", r.Stdout, r.Stderr)
	}
	p := stack.Start(t, stack.Command{Name: "forward", Grace: 5 * time.Second, Env: key("forward"), Args: []string{"forward", "home", web, "--listen", at}})
	p.WaitLog(20*time.Second, at+" -> ")
	get := func() error {
		resp, err := http.Get("http://" + at + "/")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	if log := s.CLI("audit", "--what", "AgentService/OpenForward").Stdout; !strings.Contains(log, `"key:forward@bob"`) {
		t.Errorf("the audit says %s", log)
	}
	var keys []struct{ ID, Name string }
	s.CLI("key", "list", "--all").JSON(t, &keys)
	for _, k := range keys {
		if k.Name == "forward" {
			if r := s.CLI("key", "delete", k.ID); r.Code != 0 {
				t.Fatal(r.Stderr)
			}
		}
	}
	stack.Eventually(t, 10*time.Second, func() error {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		if get() == nil {
			return errors.New("the deleted key still forwards")
		}
		return nil
	})
}
