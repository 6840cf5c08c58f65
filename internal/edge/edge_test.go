package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

func dialPort(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

func wantEcho(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("read %q, %v", b, err)
	}
}

func TestAllKinds(t *testing.T) {
	tok, ca := linktest.NewToken(t), newAuthority(t)
	leaf := ca.leaf(t, "p.test")
	secure := origin(t, func(c *net.TCPConn) {
		tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{leaf}})
		_, _ = io.Copy(tc, tc)
		_ = tc.CloseWrite()
	})
	var visitor string
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visitor = r.Header.Get("X-Forwarded-For")
		fmt.Fprintf(w, "origin of %s", r.Host)
	})}
	go func() { _ = srv.Serve(web) }()
	t.Cleanup(func() { _ = srv.Close() })
	port := freeport.One(t)
	udpPort := freeport.One(t)
	hub := newHubFeed(credentialOf(tok),
		tunnelOf(named(newTunnel(tok, "pass", wirev1.Kind_KIND_TLS, "tcp://o:1"), "p.test")),
		tunnelOf(named(newTunnel(tok, "web", wirev1.Kind_KIND_HTTP, "http://o:1"), "*.q.test")),
		tunnelOf(onPort(newTunnel(tok, "tcp", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)),
		tunnelOf(onPort(newTunnel(tok, "udp", wirev1.Kind_KIND_UDP, "udp://o:1"), udpPort)),
		ca.resource(t, "*.q.test"), ca.resource(t, linktest.HubHost))
	r := startEdge(t, hub, nil).ready()
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS} {
		t.Run(carrier, func(t *testing.T) {
			a := startAgent(r, tok, carrier, map[string]string{"pass": secure, "web": web.Addr().String(), "tcp": echo(t), "udp": ""})
			for _, id := range []string{"pass", "web", "tcp", "udp"} {
				eventually(t, id+" being served", r.serves(id))
			}
			if v := a.verdict(t, "tcp"); v.Verdict != string(reason.OK) {
				t.Errorf("verdict %v", v)
			}
			t.Run("D16 passthrough and terminated on one port", func(t *testing.T) {
				c, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: "p.test", RootCAs: ca.pool})
				if err != nil {
					t.Fatal(err)
				}
				wantEcho(t, c, "through the edge")
				_ = c.Close()
				tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: ca.pool}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
				}}
				defer tr.CloseIdleConnections()
				resp, err := (&http.Client{Transport: tr}).Get("https://app.q.test/")
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if string(b) != "origin of app.q.test" || resp.ProtoMajor != 2 {
					t.Errorf("%s %s %q", resp.Proto, resp.Status, b)
				}
				if visitor != "127.0.0.1" {
					t.Errorf("I03 the origin heard of visitor %q", visitor)
				}
			})
			t.Run("tcp", func(t *testing.T) { wantEcho(t, dialPort(t, port), "hello") })
			t.Run("udp", func(t *testing.T) {
				c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", udpPort))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				wantEcho(t, c, "datagram")
			})
			t.Run("D01 half-close: the whole answer after the visitor's end", func(t *testing.T) {
				a.mu.Lock()
				was := a.origins["tcp"]
				a.origins["tcp"] = origin(t, func(c *net.TCPConn) {
					b, _ := io.ReadAll(c)
					_, _ = c.Write(bytes.Repeat(b, 10<<20/len(b)))
				})
				a.mu.Unlock()
				c := dialPort(t, port)
				_, _ = io.WriteString(c, "request!")
				_ = c.CloseWrite()
				if n, err := io.Copy(io.Discard, c); n != 10<<20 || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
				a.mu.Lock()
				a.origins["tcp"] = was
				a.mu.Unlock()
			})
			t.Run("D02 checksums both ways", func(t *testing.T) {
				c := dialPort(t, port)
				sent, got := sha256.New(), sha256.New()
				go func() {
					_, _ = io.Copy(io.MultiWriter(c, sent), io.LimitReader(rand.NewChaCha8([32]byte{1}), 100<<20))
					_ = c.CloseWrite()
				}()
				if n, err := io.Copy(got, c); n != 100<<20 || err != nil {
					t.Fatalf("%d bytes, %v", n, err)
				}
				if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
					t.Error("what came back is not what was sent")
				}
			})
			a.stop()
			eventually(t, "the agent leaving", func() bool { return !r.serves("tcp")() })
			t.Run("no agent: new connections are reset, the port stays bound", func(t *testing.T) {
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
				if err == nil {
					_, err = io.ReadAll(c)
					_ = c.Close()
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%v, want a reset", err)
				}
			})
		})
	}
	eventually(t, "no_agent being counted twice", func() bool {
		return testutil.ToFloat64(r.metrics.connections.WithLabelValues("tcp", "no_agent")) == 2
	})
	eventually(t, "streams being closed", func() bool {
		return gauge(t, r, "adit_edge_streams") == 0
	})
}

func TestChangesTouchNothingElse(t *testing.T) {
	tok := linktest.NewToken(t)
	port := freeport.One(t)
	hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
	r := startEdge(t, hub, nil).ready()
	startAgent(r, tok, link.CarrierQUIC, map[string]string{"a": echo(t)})
	eventually(t, "a being served", r.serves("a"))
	c := dialPort(t, port)
	wantEcho(t, c, "before")
	if n := gauge(t, r, "adit_edge_streams"); n != 1 {
		t.Errorf("%v streams are counted, one is open", n)
	}
	listener := r.ports.bound[place{port: uint16(port)}]
	t.Run("H10 T24 invariant 2: a batch of unrelated changes leaves a running connection alone", func(t *testing.T) {
		for i := range 100 {
			other := tunnelOf(named(newTunnel(tok, fmt.Sprint("other", i), wirev1.Kind_KIND_HTTP, "http://o:1"), fmt.Sprintf("o%d.test", i)))
			hub.put(other)
			if i%2 == 0 {
				hub.delete(other.Key())
			}
		}
		eventually(t, "all changes", func() bool { return r.view.Load().revision == 151 })
		wantEcho(t, c, "after")
		r.ports.mu.Lock()
		same := r.ports.bound[place{port: uint16(port)}] == listener
		r.ports.mu.Unlock()
		if !same {
			t.Error("the port was bound again")
		}
	})
	t.Run("a tunnel that takes a port over leaves it bound", func(t *testing.T) {
		hub.put(tunnelOf(onPort(newTunnel(tok, "b", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
		hub.delete("tunnel/a")
		eventually(t, "the change", func() bool { return r.view.Load().table.Get("a") == nil })
		r.ports.mu.Lock()
		same := r.ports.bound[place{port: uint16(port)}] == listener
		r.ports.mu.Unlock()
		if !same {
			t.Error("the port was bound again")
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a removed tunnel's connection ended cleanly")
		}
	})
	t.Run("a tunnel without any claim frees its port", func(t *testing.T) {
		hub.delete("tunnel/b")
		eventually(t, "the port being free", func() bool {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return false
			}
			_ = l.Close()
			return true
		})
	})
	t.Run("a tunnel that becomes protected ends its connections", func(t *testing.T) {
		tn := onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)
		hub.put(tunnelOf(tn))
		eventually(t, "a being served", r.serves("a"))
		c := dialPort(t, port)
		wantEcho(t, c, "public")
		shut := onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)
		shut.Access.Mode = hubv1.Access_MODE_PROTECTED
		hub.put(tunnelOf(shut))
		if _, err := io.ReadAll(c); err == nil {
			t.Error("ended cleanly")
		}
	})
}

func TestPorts(t *testing.T) {
	t.Run("D13 one of five ports is taken: the others serve, the fifth is reported and comes later", func(t *testing.T) {
		tok := linktest.NewToken(t)
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		res := []*hubv1.Resource{credentialOf(tok)}
		origins, portOf := map[string]string{}, map[string]int{}
		addr := echo(t)
		for i := range 5 {
			id := fmt.Sprint("t", i)
			portOf[id] = freeport.One(t)
			if i == 2 {
				portOf[id] = taken.Addr().(*net.TCPAddr).Port
			}
			origins[id] = addr
			res = append(res, tunnelOf(onPort(newTunnel(tok, id, wirev1.Kind_KIND_TCP, "tcp://o:1"), portOf[id])))
		}
		hub := newHubFeed(res...)
		r := startEdge(t, hub, nil).ready()
		a := startAgent(r, tok, link.CarrierQUIC, origins)
		v := a.verdict(t, "t2")
		if v.Verdict != string(reason.PortUnavailable) || !strings.Contains(v.Detail, fmt.Sprint(portOf["t2"])) {
			t.Errorf("verdict %v", v)
		}
		for id := range origins {
			if id != "t2" {
				eventually(t, id+" being served", r.serves(id))
				wantEcho(t, dialPort(t, portOf[id]), id)
			}
		}
		held := dialPort(t, portOf["t0"])
		wantEcho(t, held, "held")
		rep := hub.reported(t, "the busy port", func(q *hubv1.ReportRequest) bool { return len(q.Ports) == 1 })
		if p := rep.Ports[0]; p.TunnelId != "t2" || int(p.Port) != portOf["t2"] || !strings.Contains(p.Problem, "another program") {
			t.Errorf("reported %v", p)
		}
		_ = taken.Close()
		hub.reported(t, "no busy port", func(q *hubv1.ReportRequest) bool { return len(q.Ports) == 0 })
		wantEcho(t, dialPort(t, portOf["t2"]), "late")
		wantEcho(t, held, "still")
	})
	t.Run("D12 a udp port that was busy is bound when it is free", func(t *testing.T) {
		tok := linktest.NewToken(t)
		busy, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		port := busy.LocalAddr().(*net.UDPAddr).Port
		hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "u", wirev1.Kind_KIND_UDP, "udp://o:1"), port)))
		r := startEdge(t, hub, nil).ready()
		hub.reported(t, "the busy port", func(q *hubv1.ReportRequest) bool {
			return len(q.Ports) == 1 && q.Ports[0].Kind == wirev1.Kind_KIND_UDP && q.Ports[0].TunnelId == "u"
		})
		_ = busy.Close()
		hub.reported(t, "no busy port", func(q *hubv1.ReportRequest) bool { return len(q.Ports) == 0 })
		r.stop()
		again, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			t.Fatalf("the port stays held: %v", err)
		}
		_ = again.Close()
	})
}

func TestSilentOrigin(t *testing.T) {
	t.Run("D03 an origin that never answers is given up within the limit", func(t *testing.T) {
		tok := linktest.NewToken(t)
		port := freeport.One(t)
		hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
		r := startEdge(t, hub, func(c *Config) { c.DialTimeout = time.Millisecond }).ready()
		startAgent(r, tok, link.CarrierQUIC, map[string]string{"a": silent})
		eventually(t, "a being served", r.serves("a"))
		begin := time.Now()
		if _, err := io.ReadAll(dialPort(t, port)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		eventually(t, "origin_timeout being counted once", func() bool {
			return testutil.ToFloat64(r.metrics.connections.WithLabelValues("tcp", "origin_timeout")) == 1
		})
	})
}

func TestOneBadResourceAffectsNoOther(t *testing.T) {
	t.Run("invariant 5: the good tunnel serves beside every kind of bad one", func(t *testing.T) {
		tok, ca := linktest.NewToken(t), newAuthority(t)
		port := freeport.One(t)
		bad := []*hubv1.Resource{
			{}, // of a kind that only a newer hub knows
			tunnelOf(named(newTunnel(tok, "badhost", wirev1.Kind_KIND_HTTP, "http://o:1"), "..")),
			tunnelOf(named(newTunnel(tok, "badkind", 99, "http://o:1"), "k.test")),
			tunnelOf(named(newTunnel(tok, "badorigin", wirev1.Kind_KIND_HTTP, "::"), "o.test")),
			tunnelOf(onPort(newTunnel(tok, "noport", wirev1.Kind_KIND_TCP, "tcp://o:1"), 0)),
			tunnelOf(onPort(newTunnel(tok, "udpnoport", wirev1.Kind_KIND_UDP, "udp://o:1"), 0)),
			{Item: &hubv1.Resource_Tunnel{Tunnel: &hubv1.Tunnel{Id: "empty"}}},
			{Item: &hubv1.Resource_Certificate{Certificate: &hubv1.Certificate{Name: "badcert.test", ChainPem: []byte("x"), KeyPem: []byte("y")}}},
			tunnelOf(named(newTunnel(tok, "badcert", wirev1.Kind_KIND_HTTP, "http://o:1"), "badcert.test")),
		}
		good := []*hubv1.Resource{
			credentialOf(tok), ca.resource(t, "good.test"),
			tunnelOf(named(newTunnel(tok, "good", wirev1.Kind_KIND_HTTP, "http://o:1"), "good.test")),
			tunnelOf(onPort(newTunnel(tok, "tcp", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)),
		}
		r := startEdge(t, newHubFeed(append(bad, good...)...), nil).ready()
		startAgent(r, tok, link.CarrierQUIC, map[string]string{"tcp": echo(t)})
		eventually(t, "tcp being served", r.serves("tcp"))
		wantEcho(t, dialPort(t, port), "good")
		c, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: "good.test", RootCAs: ca.pool})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if _, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: "badcert.test", RootCAs: ca.pool}); err == nil {
			t.Error("a certificate that does not parse was presented")
		}
	})
}

func TestRename(t *testing.T) {
	t.Run("R10 the old name is gone at once, the new one works", func(t *testing.T) {
		tok, ca := linktest.NewToken(t), newAuthority(t)
		hub := newHubFeed(ca.resource(t, "a.x.test"), ca.resource(t, "b.x.test"), tunnelOf(named(newTunnel(tok, "t", wirev1.Kind_KIND_HTTP, "http://o:1"), "a.x.test")))
		r := startEdge(t, hub, nil).ready()
		hub.put(tunnelOf(named(newTunnel(tok, "t", wirev1.Kind_KIND_HTTP, "http://o:1"), "b.x.test")))
		dial := func(name string) error {
			c, err := tls.Dial("tcp", r.addr, &tls.Config{ServerName: name, RootCAs: ca.pool})
			if err == nil {
				_ = c.Close()
			}
			return err
		}
		eventually(t, "the new name", func() bool { return dial("b.x.test") == nil })
		if dial("a.x.test") == nil {
			t.Error("the old name still answers")
		}
	})
}

func TestSessions(t *testing.T) {
	tok, other := linktest.NewToken(t), linktest.NewToken(t)
	port := freeport.One(t)
	hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
	r := startEdge(t, hub, nil).ready()
	t.Run("a token that is not known is refused", func(t *testing.T) {
		a := startAgent(r, other, link.CarrierQUIC, nil)
		if err := <-a.refused; !reason.Is(err, reason.TokenUnknown) {
			t.Errorf("%v", err)
		}
		a.stop()
	})
	t.Run("another token's tunnel is refused, an unknown one is pending and comes by the feed", func(t *testing.T) {
		hub.put(credentialOf(other))
		eventually(t, "the token", func() bool { return r.view.Load().credentials[other.Credential.TokenId] != nil })
		a := startAgent(r, other, link.CarrierQUIC, map[string]string{"a": echo(t), "new": echo(t)})
		if v := a.verdict(t, "a"); v.Verdict != string(reason.GrantMissing) {
			t.Errorf("another's tunnel: %v", v)
		}
		if r.serves("a")() {
			t.Error("another's tunnel is served")
		}
		late := freeport.One(t)
		hub.put(tunnelOf(onPort(newTunnel(other, "new", wirev1.Kind_KIND_TCP, "tcp://o:1"), late)))
		eventually(t, "the new tunnel being served", r.serves("new"))
		wantEcho(t, dialPort(t, late), "new")
		rep := hub.reported(t, "the session", func(q *hubv1.ReportRequest) bool { return len(q.Sessions) == 1 && len(q.Sessions[0].TunnelIds) == 2 })
		s := rep.Sessions[0]
		if s.TokenId != other.Credential.TokenId || s.HostName != "home" || s.Carrier != "quic" || rep.Edge.GetId() != r.cfg.Key.ID() {
			t.Errorf("reported %v", rep)
		}
		a.stop()
		hub.reported(t, "no session", func(q *hubv1.ReportRequest) bool { return len(q.Sessions) == 0 })
	})
	t.Run("a revoked token's sessions end, and with them its connections", func(t *testing.T) {
		a := startAgent(r, tok, link.CarrierQUIC, map[string]string{"a": echo(t)})
		eventually(t, "a being served", r.serves("a"))
		c := dialPort(t, port)
		wantEcho(t, c, "x")
		revoked := &hubv1.Credential{TokenId: tok.Credential.TokenId, Name: "gone", Ed25519Public: tok.Credential.Ed25519Public, Mldsa65Public: tok.Credential.Mldsa65Public, Revoked: true}
		hub.put(&hubv1.Resource{Item: &hubv1.Resource_Credential{Credential: revoked}})
		begin := time.Now()
		if _, err := io.ReadAll(c); err == nil || time.Since(begin) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		eventually(t, "the refusal", func() bool { err, _ := a.LastError(); return reason.Is(err, reason.TokenRevoked) })
		a.stop()
		hub.put(credentialOf(tok))
		eventually(t, "the token's return", func() bool { return !r.view.Load().credentials[tok.Credential.TokenId].GetRevoked() })
	})
	for _, c := range []struct {
		name   string
		change func(*hubv1.Credential)
		want   reason.Code
	}{
		{"from another network", func(c *hubv1.Credential) { c.From = []string{"192.0.2.0/24"} }, reason.SourceDenied},
		{"from a network that does not parse", func(c *hubv1.Credential) { c.From = []string{"home"} }, reason.SourceDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			strict := linktest.NewToken(t)
			c.change(strict.Credential)
			hub.put(credentialOf(strict))
			eventually(t, "the token", func() bool { return r.view.Load().credentials[strict.Credential.TokenId] != nil })
			a := startAgent(r, strict, link.CarrierQUIC, nil)
			if err := <-a.refused; !reason.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("more replicas than the invite allows", func(t *testing.T) {
		strict := linktest.NewToken(t)
		strict.Credential.MaxReplicas = 1
		hub.put(credentialOf(strict))
		eventually(t, "the token", func() bool { return r.view.Load().credentials[strict.Credential.TokenId] != nil })
		first := startAgent(r, strict, link.CarrierQUIC, nil)
		eventually(t, "the first replica", func() bool { return len(first.Sessions()) > 0 })
		second := startAgent(r, strict, link.CarrierQUIC, nil)
		if err := <-second.refused; !reason.Is(err, reason.TooManyReplicas) {
			t.Errorf("%v", err)
		}
	})
	t.Run("an edge that has heard nothing yet does not call a token unknown", func(t *testing.T) {
		away := newHubFeed()
		away.down = true
		fresh := startEdge(t, away, nil)
		a := startAgent(fresh, tok, link.CarrierQUIC, nil)
		if err := <-a.refused; !reason.Is(err, reason.HubUnreachable) {
			t.Errorf("%v", err)
		}
	})
}
