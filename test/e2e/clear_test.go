package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

// getClear asks an address for a host in clear text and follows no redirect.
func getClear(t *testing.T, addr, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", "http://"+addr+"/path", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = host, true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestClearHTTP(t *testing.T) {
	origin := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s by %s", r.Host, r.Header.Get("X-Forwarded-Proto"))
	}), false)
	shared, foreign := freeport.One(t), freeport.One(t)
	s := stack.StartServer(t, stack.ServerConfig{})
	invite := s.Invite("home", "--hostname", "*.localhost", "--tcp-port", fmt.Sprint(shared))
	web := func(name string) stack.Service { return stack.HTTP(name+".localhost", "http://"+origin) }
	a := stack.StartAgent(t, invite.File, stack.AgentConfig{Services: []stack.Service{
		web("a").With("http_ports", []int{80, shared}),
		web("b").With("http_ports", []int{shared}),
		web("secret").With("http_ports", []int{80, shared}).With("access", "protected"),
		web("refused").With("http_ports", []int{foreign}),
	}})
	s.WaitOnline(1, "a.localhost", "b.localhost", "secret.localhost")
	on := loopback(shared)
	for _, c := range []struct {
		name, addr, host string
		status           int
		body, reason     string
	}{
		{"a host on its port", on, "a.localhost", 200, "a.localhost by http", ""},
		{"another host on the same port", on, "b.localhost", 200, "b.localhost by http", ""},
		{"port 80 serves who asked for it", s.HTTP, "a.localhost", 200, "a.localhost by http", ""},
		{"port 80 redirects the others", s.HTTP, "b.localhost", 301, "", ""},
		{"what is protected is refused in clear text", on, "secret.localhost", 403, "", "access_denied"},
		{"what is protected is refused on port 80", s.HTTP, "secret.localhost", 403, "", "access_denied"},
		{"nobody's name", on, "nobody.localhost", 404, "", "no_route"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := getClear(t, c.addr, c.host)
			if resp.StatusCode != c.status || c.body != "" && body != c.body || resp.Header.Get("Adit-Error") != c.reason {
				t.Errorf("%s, %q, %q", resp.Status, body, resp.Header.Get("Adit-Error"))
			}
		})
	}
	t.Run("TLS is served beside it", func(t *testing.T) {
		if body, err := getOK(s.Client(), s.URL("a.localhost", "/")); err != nil || !strings.Contains(body, "by https") {
			t.Errorf("%q, %v", body, err)
		}
	})
	t.Run("a port without a grant is refused by name", func(t *testing.T) {
		a.WaitLog(10*time.Second, "grant_missing", "http_ports", fmt.Sprint(foreign))
	})
}
