package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestPreflight: an agent tries origins for the command line, and its guard holds.
func TestPreflight(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	good := "http://" + serveHTTP(t, named("home"), false)
	picky := "http://" + serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "app.") {
			w.WriteHeader(http.StatusForbidden)
		}
	}), false)
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP("app.localhost", good)}, Args: []string{"--deny-target", "10.0.0.0/8"}})
	check := func(args ...string) stack.Result {
		return s.CLI(append([]string{"preflight", "--agent", "home", "--hostname", "app.localhost"}, args...)...)
	}
	ids := func(r stack.Result) string {
		var v struct {
			Checked  bool
			Findings []struct{ ID, Severity string }
		}
		if r.Code != 0 {
			r.Code = 0
		}
		r.JSON(t, &v)
		out := fmt.Sprint(v.Checked)
		for _, f := range v.Findings {
			out += " " + f.ID
		}
		return out
	}
	t.Run("a good origin", func(t *testing.T) {
		start := time.Now()
		r := check(good, "-o", "json")
		if got := ids(r); got != "true" || r.Code != 0 {
			t.Errorf("%s, code %d: %s%s", got, r.Code, r.Stdout, r.Stderr)
		}
		t.Logf("took %v", time.Since(start))
	})
	t.Run("one that refuses the tunnel's host", func(t *testing.T) {
		r := check(picky, "-o", "json")
		if got := ids(r); got != "true origin_rejects_tunnel_host" || r.Code != 1 {
			t.Errorf("%s, code %d: %s%s", got, r.Code, r.Stdout, r.Stderr)
		}
		if r := stack.Run(t, nil, "preflight", picky, "--agent", "home", "--hostname", "app.localhost", "--data-dir", s.Dir); !strings.Contains(r.Stdout, "help: host_header = origin") {
			t.Errorf("printed %s", r.Stdout)
		}
		if r := check(picky, "--host-header", "origin", "-o", "json"); ids(r) != "true" {
			t.Errorf("with its own host: %s", r.Stdout)
		}
	})
	t.Run("targets that the agent's guard forbids", func(t *testing.T) {
		for _, origin := range []string{"http://169.254.169.254", "http://10.1.2.3:80", "http://[::ffff:10.1.2.3]:80"} {
			if got := ids(check(origin, "-o", "json")); got != "true origin_denied" {
				t.Errorf("%s: %s", origin, got)
			}
		}
	})
	t.Run("nginx", func(t *testing.T) {
		need.Program(t, "nginx")
		cert, key := selfSigned(t, "nginx.internal")
		ports := freeport.Run(t, 3)
		nginx(t, fmt.Sprintf(`
  server { listen 127.0.0.1:%[1]d ssl; server_name nginx.internal; ssl_certificate %[4]s; ssl_certificate_key %[5]s; location / { return 200 "hello"; } }
  server { listen 127.0.0.1:%[2]d default_server; return 444; }
  server { listen 127.0.0.1:%[2]d; server_name 127.0.0.1; location / { return 200 "hello"; } }
  server { listen 127.0.0.1:%[3]d; location / { return 301 https://$host$request_uri; } }`, ports, ports+1, ports+2, cert, key))
		stack.Eventually(t, 10*time.Second, func() error {
			c, err := net.Dial("tcp", loopback(ports+2))
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		for _, c := range []struct{ origin, want string }{
			{"http://" + loopback(ports), "true origin_wants_https origin_certificate_not_trusted"},
			{"https://" + loopback(ports), "true origin_certificate_not_trusted"},
			{"http://" + loopback(ports+1), "true origin_rejects_tunnel_host"},
			{"http://" + loopback(ports+2), "true origin_redirects_to_https"},
		} {
			if got := ids(check(c.origin, "-o", "json")); got != c.want {
				t.Errorf("%s: %s, want %s", c.origin, got, c.want)
			}
		}
	})
	t.Run("what cannot be checked", func(t *testing.T) {
		r := check("udp://127.0.0.1:53", "-o", "json")
		if got := ids(r); got != "false" || r.Code != 1 || !strings.Contains(r.Stderr, "preflight_incomplete") {
			t.Errorf("%s, code %d: %s", got, r.Code, r.Stderr)
		}
	})
	t.Run("an agent that is not there", func(t *testing.T) {
		s.Invite("away", "--hostname", "away.localhost")
		if _, code, _ := s.CLI("preflight", good, "--agent", "away", "-o", "json").Problem(t); code != "no_agent" {
			t.Errorf("code %s", code)
		}
		if _, code, _ := s.CLI("preflight", good, "--agent", "nobody", "-o", "json").Problem(t); code != "not_found" {
			t.Errorf("code %s", code)
		}
		if r := s.CLI("preflight", good); r.Code != 2 {
			t.Errorf("without --agent: code %d %s", r.Code, r.Stderr)
		}
	})
}
