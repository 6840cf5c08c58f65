package edge

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/test/freeport"
)

// ask sends a request for host over a connection made for sni.
func (r *rig) ask(t *testing.T, sni, host, path string) (*http.Response, string) {
	t.Helper()
	tr := &http.Transport{
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return tls.Dial("tcp", r.addr, &tls.Config{ServerName: sni, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		},
	}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("https://" + host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp, string(b)
}

func TestOwnNames(t *testing.T) {
	tok, ca := linktest.NewToken(t), newAuthority(t)
	hub := newHubFeed(credentialOf(tok),
		tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "q.test")),
		// A tunnel never gets an own name, whatever the hub says.
		tunnelOf(named(newTunnel(tok, "thief", wirev1.Kind_KIND_TLS, "tcp://o:1"), linktest.HubHost)),
		ca.resource(t, "q.test"), ca.resource(t, linktest.HubHost))
	r := startEdge(t, hub, nil).ready()
	t.Run("the hub's host is served by the hub, before any tunnel", func(t *testing.T) {
		if _, body := r.ask(t, linktest.HubHost, linktest.HubHost, "/"); body != "hub" {
			t.Errorf("%q", body)
		}
	})
	t.Run("not over a connection made for a tunnel", func(t *testing.T) {
		resp, body := r.ask(t, "q.test", linktest.HubHost, "/")
		if resp.StatusCode != http.StatusMisdirectedRequest || resp.Header.Get("Adit-Error") != "wrong_host" || body == "hub" {
			t.Errorf("%s %q", resp.Status, body)
		}
	})
	t.Run("the edge's own name has a certificate of its own", func(t *testing.T) {
		c, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: r.name, InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if name := c.ConnectionState().PeerCertificates[0].Subject.CommonName; name != "adit edge" {
			t.Errorf("presented %q", name)
		}
		_ = c.Close()
	})
	t.Run("a name without certificate gets unrecognized_name", func(t *testing.T) {
		hub.put(tunnelOf(named(newTunnel(tok, "bare", wirev1.Kind_KIND_HTTP, "http://o:1"), "bare.test")))
		eventually(t, "the tunnel", func() bool { return r.view.Load().table.Get("bare") != nil })
		_, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: "bare.test", InsecureSkipVerify: true})
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%v", err)
		}
		hub.put(ca.resource(t, "bare.test"))
		eventually(t, "the certificate", func() bool {
			c, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: "bare.test", RootCAs: ca.pool})
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
	})
	t.Run("a session comes in by WebSocket", func(t *testing.T) {
		startAgent(r, tok, link.CarrierWS, map[string]string{"web": ""})
		eventually(t, "the session", r.serves("web"))
		eventually(t, "sessions and lanes not counting as visitors", func() bool { return r.front.Conns().Total() == 0 })
	})
	t.Run("the session path of a tunnel's host is not ours", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		client := &http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return tls.Dial("tcp", r.addr, &tls.Config{ServerName: "q.test", RootCAs: ca.pool})
		}}}
		defer client.CloseIdleConnections()
		_, _, err := websocket.Dial(ctx, "wss://q.test/.adit/session", &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"adit.1"}})
		if err == nil {
			t.Error("a session was opened")
		}
	})
}

func TestPort80(t *testing.T) {
	tok := linktest.NewToken(t)
	hub := newHubFeed(credentialOf(tok),
		tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "*.q.test")),
		tunnelOf(named(newTunnel(tok, "pass", wirev1.Kind_KIND_TLS, "tcp://o:1"), "p.test")),
		&hubv1.Resource{Item: &hubv1.Resource_Challenge{Challenge: &hubv1.Challenge{Name: "q.test", Type: "http-01", Token: "tok", KeyAuthorization: "tok.key"}}})
	r := startEdge(t, hub, func(c *Config) { c.HTTPSPort = 8443 }).ready()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	do := func(method, host, path string) *http.Response {
		req, err := http.NewRequest(method, "http://"+r.front.HTTPAddr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(strings.NewReader(string(b)))
		return resp
	}
	for _, c := range []struct {
		method, host, path string
		status             int
		want               string
	}{
		{"GET", "a.q.test", "/x%2Fy/?q=1", 301, "https://a.q.test:8443/x%2Fy/?q=1"},
		{"GET", "A.Q.test.:80", "/", 301, "https://a.q.test:8443/"},
		{"POST", "p.test", "/form", 308, "https://p.test:8443/form"},
		{"GET", linktest.HubHost, "/", 301, "https://" + linktest.HubHost + ":8443/"},
		{"GET", "nobody.test", "/", 404, ""},
		{"GET", "127.0.0.1", "/", 400, ""},
	} {
		t.Run(c.method+" "+c.host+c.path, func(t *testing.T) {
			resp := do(c.method, c.host, c.path)
			if resp.StatusCode != c.status || resp.Header.Get("Location") != c.want {
				t.Errorf("%s to %q", resp.Status, resp.Header.Get("Location"))
			}
			if c.status >= 400 && resp.Header.Get("Adit-Error") == "" {
				t.Error("without a reason")
			}
		})
	}
	t.Run("a challenge of a certificate authority is answered", func(t *testing.T) {
		b, _ := io.ReadAll(do("GET", "q.test", "/.well-known/acme-challenge/tok").Body)
		if string(b) != "tok.key" {
			t.Errorf("%q", b)
		}
	})
}

func TestTLSALPNChallenge(t *testing.T) {
	tok := linktest.NewToken(t)
	challenge := &hubv1.Resource{Item: &hubv1.Resource_Challenge{Challenge: &hubv1.Challenge{Name: "q.test", Type: "tls-alpn-01", Token: "t", KeyAuthorization: "t.key"}}}
	hub := newHubFeed(tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "q.test")), challenge)
	r := startEdge(t, hub, nil).ready()
	dial := func() (*tls.Conn, error) {
		return tls.Dial("tcp", r.addr, &tls.Config{ServerName: "q.test", InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}})
	}
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.ConnectionState().PeerCertificates[0]
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != "q.test" || c.ConnectionState().NegotiatedProtocol != "acme-tls/1" {
		t.Errorf("%v under %q", leaf.DNSNames, c.ConnectionState().NegotiatedProtocol)
	}
	_ = c.Close()
	hub.delete(challenge.Key())
	eventually(t, "the end of the challenge", func() bool { return len(r.view.Load().challenges) == 0 })
	if c, err := dial(); err == nil {
		_ = c.Close()
		t.Error("answered without a challenge")
	}
}

func TestOtherEdge(t *testing.T) {
	tok := linktest.NewToken(t)
	port := freeport.One(t)
	res := []*hubv1.Resource{credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port))}
	right := startEdge(t, newHubFeed(res...), nil).ready()
	self, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	wrongHub := newHubFeed(&hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: &hubv1.Edge{Address: right.cfg.Address}}})
	wrong := startEdge(t, wrongHub, func(c *Config) { c.Key = self }).ready()
	t.Run("a connection for another edge's name is carried to it", func(t *testing.T) {
		key := right.cfg.Key
		mixed := &wirev1.EdgeAddress{Id: key.ID(), KeyHash: key.Hash(), Addresses: []string{wrong.addr}}
		a := startAgentAt(right, mixed, tok, link.CarrierTLS, map[string]string{"a": echo(t)})
		eventually(t, "a being served", right.serves("a"))
		wantEcho(t, dialPort(t, port), "over two edges")
		a.stop()
	})
	t.Run("an advertised address that leads back makes no loop", func(t *testing.T) {
		lost := &wirev1.EdgeAddress{Id: "0123456789abcdef", KeyHash: make([]byte, 32), Addresses: []string{wrong.addr}}
		wrongHub.put(&hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: &hubv1.Edge{Address: lost}}})
		eventually(t, "the edge", func() bool { return len(wrong.view.Load().edges) == 2 })
		c, err := tls.Dial("tcp", wrong.addr, &tls.Config{ServerName: lost.Id + ".edge." + linktest.HubHost, NextProtos: []string{"adit/1"}, InsecureSkipVerify: true})
		if err == nil {
			_ = c.Close()
			t.Error("a handshake came through")
		}
		eventually(t, "the end of it", func() bool {
			wrong.transit.mu.Lock()
			defer wrong.transit.mu.Unlock()
			return wrong.transit.n == 0
		})
	})
	t.Run("edges are told to agents, without those that drain", func(t *testing.T) {
		wrongHub.put(&hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: &hubv1.Edge{Address: right.cfg.Address, Draining: true}}})
		eventually(t, "the list", func() bool {
			for _, e := range wrong.edges() {
				if e.GetId() == right.cfg.Key.ID() {
					return false
				}
			}
			return len(wrong.edges()) == 2
		})
	})
}

func TestDrain(t *testing.T) {
	tok := linktest.NewToken(t)
	port := freeport.One(t)
	hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
	r := startEdge(t, hub, nil).ready()
	startAgent(r, tok, link.CarrierQUIC, map[string]string{"a": echo(t)})
	eventually(t, "a being served", r.serves("a"))
	stays, ends := dialPort(t, port), dialPort(t, port)
	wantEcho(t, stays, "x")
	wantEcho(t, ends, "x")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Drain(ctx) }()
	hub.reported(t, "the drain", func(q *hubv1.ReportRequest) bool { return q.Draining })
	eventually(t, "the port being closed", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	wantEcho(t, ends, "running connections go on")
	_ = ends.CloseWrite()
	if b, err := io.ReadAll(ends); len(b) != 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	wantEcho(t, stays, "until the end of the drain")
	cancel()
	if _, err := io.ReadAll(stays); err == nil {
		t.Error("ended cleanly at the deadline")
	}
	<-done
}

func FuzzSecureURL(f *testing.F) {
	for _, s := range []string{"/", "/a?b=c", "//evil.test/x", "http://evil.test/", "*", "/%2e%2e/", "/a\r\nX: y", "?q", "/\\evil.test"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.ParseRequestURI(s)
		if err != nil {
			return
		}
		target, ok := secureURL("a.test", 8443, u)
		if !ok {
			return
		}
		got, err := url.Parse(target)
		if err != nil {
			return // the client will not follow it either
		}
		if got.Scheme != "https" || got.Host != "a.test:8443" || strings.ContainsAny(target, "\r\n") {
			t.Fatalf("%q leads to %q", s, target)
		}
	})
}
