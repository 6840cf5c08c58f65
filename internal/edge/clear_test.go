package edge

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

func onClear(t *hubv1.Tunnel, ports ...int) *hubv1.Tunnel {
	for _, p := range ports {
		t.HttpPorts = append(t.HttpPorts, uint32(p))
	}
	return t
}

// getClear asks for a host on a port in clear text, never following a redirect.
func getClear(t *testing.T, client *http.Client, port int, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d/path", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := client.Do(req)
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
	tok := linktest.NewToken(t)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Host, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-For"))
	})}
	go func() { _ = srv.Serve(web) }()
	t.Cleanup(func() { _ = srv.Close() })
	shared, own, raw := freeport.One(t), freeport.One(t), freeport.One(t)
	secret := onClear(named(newTunnel(tok, "secret", wirev1.Kind_KIND_HTTP, "http://o:1"), "secret.test"), shared, 80)
	secret.Access.Mode = hubv1.Access_MODE_PROTECTED
	a := onClear(named(newTunnel(tok, "a", wirev1.Kind_KIND_HTTP, "http://o:1"), "a.test"), shared, own, 80)
	b := onClear(named(newTunnel(tok, "b", wirev1.Kind_KIND_HTTP, "http://o:1"), "*.b.test"), shared)
	hub := newHubFeed(credentialOf(tok), tunnelOf(a), tunnelOf(b), tunnelOf(secret),
		tunnelOf(onPort(newTunnel(tok, "raw", wirev1.Kind_KIND_TCP, "tcp://o:1"), raw)))
	r := startEdge(t, hub, func(c *Config) { c.MaxConnsPerTunnel = 2 }).ready()
	origins := map[string]string{"a": web.Addr().String(), "b": web.Addr().String(), "secret": web.Addr().String(), "raw": echo(t)}
	startAgent(r, tok, link.CarrierQUIC, origins)
	for id := range origins {
		eventually(t, id+" being served", r.serves(id))
	}
	plain := int(r.front.HTTPAddr().Port())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, c := range []struct {
		name   string
		port   int
		host   string
		status int
		body   string
		reason reason.Code
	}{
		{"a host on a shared port", shared, "a.test", 200, "a.test http 127.0.0.1", ""},
		{"another host on it", shared, "x.b.test", 200, "x.b.test http 127.0.0.1", ""},
		{"a host on its own port", own, "A.test:80", 200, "A.test:80 http 127.0.0.1", ""},
		{"a host that has not that port", own, "x.b.test", 404, "", reason.NoRoute},
		{"nobody's host", shared, "nobody.test", 404, "", reason.NoRoute},
		{"the hub's host", shared, linktest.HubHost, 404, "", reason.NoRoute},
		{"no host", shared, "127.0.0.1", 400, "", reason.BadRequest},
		{"port 80 serves who asked for it", plain, "a.test", 200, "a.test http 127.0.0.1", ""},
		{"port 80 redirects the others", plain, "x.b.test", 301, "", ""},
		{"protected is refused", shared, "secret.test", 403, "", reason.AccessDenied},
		{"protected is refused on port 80", plain, "secret.test", 403, "", reason.AccessDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := getClear(t, client, c.port, c.host)
			if resp.StatusCode != c.status || c.body != "" && body != c.body || resp.Header.Get("Adit-Error") != string(c.reason) {
				t.Errorf("%s, %q, %q", resp.Status, body, resp.Header.Get("Adit-Error"))
			}
			if resp.Header.Get("Alt-Svc") != "" {
				t.Error("HTTP/3 is offered in clear text")
			}
		})
	}
	t.Run("HTTP/2 by prior knowledge", func(t *testing.T) {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		defer tr.CloseIdleConnections()
		resp, body := getClear(t, &http.Client{Transport: tr}, shared, "a.test")
		if resp.ProtoMajor != 2 || body != "a.test http 127.0.0.1" {
			t.Errorf("%s %q", resp.Proto, body)
		}
	})
	t.Run("a raw port stays raw", func(t *testing.T) { wantEcho(t, dialPort(t, raw), "GET / HTTP/1.1\r\n\r\n") })

	eventually(t, "connections being given back", func() bool { return r.front.Conns().Total() == 0 })
	t.Run("connections count for the tunnel of their first request", func(t *testing.T) {
		var held []net.Conn
		ask := func() string {
			c := dialPort(t, shared)
			held = append(held, c)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
			b := make([]byte, 512)
			n, _ := c.Read(b)
			return string(b[:n])
		}
		for range 2 {
			if got := ask(); !strings.HasPrefix(got, "HTTP/1.1 200") {
				t.Errorf("%q", got)
			}
		}
		if got := ask(); !strings.Contains(got, string(reason.RateLimited)) {
			t.Errorf("the third: %q", got)
		}
		for _, c := range held {
			_ = c.Close()
		}
		eventually(t, "room again", func() bool { return r.front.Conns().Total() == 0 })
		if got := ask(); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("afterwards: %q", got)
		}
	})
	t.Run("a port that is given up is closed, the others serve on", func(t *testing.T) {
		kept := dialPort(t, shared)
		hub.put(tunnelOf(onClear(named(newTunnel(tok, "a", wirev1.Kind_KIND_HTTP, "http://o:1"), "a.test"), shared)))
		eventually(t, "the port being closed", func() bool {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", own))
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
		_, _ = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
		if got, err := io.ReadAll(kept); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("a busy port is told and costs nothing else", func(t *testing.T) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		busy := taken.Addr().(*net.TCPAddr).Port
		hub.put(tunnelOf(onClear(named(newTunnel(tok, "a", wirev1.Kind_KIND_HTTP, "http://o:1"), "a.test"), shared, busy)))
		rep := hub.reported(t, "the busy port", func(q *hubv1.ReportRequest) bool { return len(q.Ports) == 1 })
		if p := rep.Ports[0]; p.TunnelId != "a" || int(p.Port) != busy || p.Kind != wirev1.Kind_KIND_HTTP {
			t.Errorf("reported %v", p)
		}
		if resp, _ := getClear(t, client, shared, "a.test"); resp.StatusCode != 200 {
			t.Error(resp.Status)
		}
		_ = taken.Close()
		hub.reported(t, "no busy port", func(q *hubv1.ReportRequest) bool { return len(q.Ports) == 0 })
		if resp, _ := getClear(t, client, busy, "a.test"); resp.StatusCode != 200 {
			t.Error(resp.Status)
		}
	})
}
