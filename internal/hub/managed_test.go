package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// enrol makes an enrolled agent.
func (h *testHub) enrol(name string) *hubv1.Agent {
	h.t.Helper()
	a, token, err := h.CreateAgent(h.t.Context(), &hubv1.CreateAgentRequest{Name: name})
	if err != nil || !strings.HasPrefix(token, "adit_agent_") {
		h.t.Fatal(token, err)
	}
	return a
}

// app is a managed tunnel as a person asks for it.
func app(label string) *hubv1.Tunnel {
	return &hubv1.Tunnel{Kind: wirev1.Kind_KIND_HTTP, Label: label, Origins: []*hubv1.Origin{{Url: "http://10.0.0.5:3000"}}}
}

func portTunnel(kind wirev1.Kind, port uint32) *hubv1.Tunnel {
	scheme := map[wirev1.Kind]string{wirev1.Kind_KIND_TCP: "tcp", wirev1.Kind_KIND_UDP: "udp"}[kind]
	return &hubv1.Tunnel{Kind: kind, Port: port, Origins: []*hubv1.Origin{{Url: scheme + "://10.0.0.5:22"}}}
}

func (h *testHub) create(agent string, t *hubv1.Tunnel) *hubv1.TunnelStatus {
	h.t.Helper()
	s, err := h.CreateTunnel(h.t.Context(), &hubv1.CreateTunnelRequest{Tunnel: t, Agent: agent})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *testHub) set(label string, to *hubv1.Tunnel, fields ...string) (*hubv1.TunnelStatus, error) {
	return h.UpdateTunnel(h.t.Context(), &hubv1.UpdateTunnelRequest{Label: label, Tunnel: to, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
}

func TestSanitiseLabel(t *testing.T) {
	for in, want := range map[string]string{
		"app": "app", "My App": "my-app", "a_b.c d": "a-b-c-d", "--x--": "x", "a---b": "a-b", "Grüße": "gre", "_hidden": "hidden", "...": "", "": "",
		"日本": "", "a\x00b": "ab", strings.Repeat("a", 70): strings.Repeat("a", 63), strings.Repeat("a", 62) + "--b": strings.Repeat("a", 62),
	} {
		if got := sanitiseLabel(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func FuzzSanitiseLabel(f *testing.F) {
	f.Add("My App")
	f.Add("--ä.b_")
	f.Fuzz(func(t *testing.T, s string) {
		l := sanitiseLabel(s)
		if l == "" {
			return
		}
		if len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Contains(l, "--") || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("%q became %q", s, l)
		}
		if sanitiseLabel(l) != l {
			t.Errorf("%q is not stable: %q", l, sanitiseLabel(l))
		}
	})
}

func TestCreateTunnel(t *testing.T) {
	h := newTestHub(t)
	a := h.enrol("home")
	t.Run("a label is sanitised; a dry run stores nothing", func(t *testing.T) {
		s, err := h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: app("My App"), Agent: "home", DryRun: true})
		if err != nil || s.GetTunnel().GetLabel() != "my-app" || s.GetTunnel().GetHostname() != "my-app.example.com" || s.GetUrl() != "https://my-app.example.com:8443" {
			t.Fatal(s, err)
		}
		if l, _, _ := h.ListTunnels(t.Context(), 0, "", ""); len(l) != 0 {
			t.Error(l)
		}
	})
	s := h.create(a.GetTokenId(), app("My App"))
	tun := s.GetTunnel()
	if tun.GetVersion() != 1 || tun.GetSource() != "managed" || tun.GetTenant() != "default" || !slices.Equal(tun.GetTokenIds(), []string{a.GetTokenId()}) || s.GetAgent() != "home" {
		t.Errorf("created: %v", s)
	}
	if tun.GetAccess().GetMode() != hubv1.Access_MODE_PROTECTED || s.GetState() != "offline" || s.GetReason() != "no_agent" {
		t.Errorf("created: %v", s)
	}
	t.Run("every kind, ports chosen", func(t *testing.T) {
		tcp := h.create("home", portTunnel(wirev1.Kind_KIND_TCP, 0)).GetTunnel()
		udp := h.create("home", portTunnel(wirev1.Kind_KIND_UDP, 5000)).GetTunnel()
		pass := h.create("home", &hubv1.Tunnel{Kind: wirev1.Kind_KIND_TLS, Hostname: "*.Secure.test", Origins: []*hubv1.Origin{{Url: "tcp://10.0.0.5:443"}}}).GetTunnel()
		if tcp.GetPort() < 1024 || tcp.GetName() == "" || udp.GetPort() != 5000 || pass.GetHostname() != "*.secure.test" {
			t.Error(tcp, udp, pass)
		}
		// A change of something else keeps the port that was chosen.
		if s, err := h.set(tcp.GetId(), &hubv1.Tunnel{Name: "ssh"}, "name"); err != nil || s.GetTunnel().GetPort() != tcp.GetPort() || s.GetTunnel().GetName() != "ssh" {
			t.Error(s, err)
		}
	})
	t.Run("several origins share the requests; ports that schemes imply are filled in", func(t *testing.T) {
		x := app("many")
		x.Origins = []*hubv1.Origin{{Url: "https://a.lan/"}, {Url: "http://b.lan"}}
		got := h.create("home", x).GetTunnel()
		if got.GetOrigins()[0].GetUrl() != "https://a.lan:443" || got.GetOrigins()[1].GetUrl() != "http://b.lan:80" || len(got.GetRules()[0].GetOrigins()) != 2 {
			t.Error(got)
		}
		s, err := h.set("many", &hubv1.Tunnel{Origins: []*hubv1.Origin{{Url: "http://c.lan"}}}, "origins")
		if err != nil || len(s.GetTunnel().GetRules()[0].GetOrigins()) != 1 {
			t.Error(s, err)
		}
	})
	t.Run("a conflict says who holds it", func(t *testing.T) {
		_, err := h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: app("my app"), Agent: "home"})
		p := wantProblem(t, err, reason.NameConflict, "label")
		if p.Holder != "default" || p.Held != tun.GetId() || !strings.Contains(p.Error(), `of the agent "home"`) {
			t.Error(p)
		}
		_, err = h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: portTunnel(wirev1.Kind_KIND_UDP, 5000), Agent: "home"})
		wantProblem(t, err, reason.PortConflict, "port")
	})
	t.Run("names and ports of other tenants are theirs, both ways", func(t *testing.T) {
		h.grant("lab", &hubv1.CreateInviteRequest{Hostnames: []string{"*.lab.test"}, TcpPorts: []*hubv1.PortRange{r(7000, 7010)}})
		_, err := h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: &hubv1.Tunnel{Kind: wirev1.Kind_KIND_HTTP, Hostname: "a.lab.test", Origins: app("x").Origins}, Agent: "home"})
		if p := wantProblem(t, err, reason.NameConflict, "hostname"); p.Holder != "lab" {
			t.Error(p)
		}
		_, err = h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: portTunnel(wirev1.Kind_KIND_TCP, 7005), Agent: "home"})
		if p := wantProblem(t, err, reason.PortConflict, "port"); p.Holder != "lab" {
			t.Error(p)
		}
		_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "greedy", Hostnames: []string{"*.example.com"}})
		if p := wantProblem(t, err, reason.NameConflict, "hostnames[0]"); p.Held == "" || p.Holder != "default" {
			t.Error(p)
		}
	})
}

// TestTunnelBadInput has one row for each thing that can be wrong with a field.
func TestTunnelBadInput(t *testing.T) {
	h := newTestHub(t)
	h.enrol("home")
	change := func(f func(*hubv1.Tunnel)) *hubv1.Tunnel {
		x := app("app")
		f(x)
		return x
	}
	port := func(f func(*hubv1.Tunnel)) *hubv1.Tunnel {
		x := portTunnel(wirev1.Kind_KIND_TCP, 2222)
		f(x)
		return x
	}
	origin := func(o *hubv1.Origin) *hubv1.Tunnel {
		return change(func(t *hubv1.Tunnel) { t.Origins = []*hubv1.Origin{o} })
	}
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name, field string
		t           *hubv1.Tunnel
	}{
		{"no kind", "kind", change(func(t *hubv1.Tunnel) { t.Kind = 0 })},
		{"unknown kind", "kind", change(func(t *hubv1.Tunnel) { t.Kind = 99 })},
		{"no name", "label", change(func(t *hubv1.Tunnel) { t.Label = "" })},
		{"label of nothing", "label", change(func(t *hubv1.Tunnel) { t.Label = "!!!" })},
		{"label and another hostname", "hostname", change(func(t *hubv1.Tunnel) { t.Hostname = "b.example.com" })},
		{"hostname", "hostname", change(func(t *hubv1.Tunnel) { t.Label, t.Hostname = "", "a..b" })},
		{"label for a port", "label", port(func(t *hubv1.Tunnel) { t.Label = "x" })},
		{"hostname for a port", "hostname", port(func(t *hubv1.Tunnel) { t.Hostname = "a.test" })},
		{"reserved", "hostname", change(func(t *hubv1.Tunnel) { t.Label, t.Hostname = "", "hub.example.com" })},
		{"reserved label", "label", change(func(t *hubv1.Tunnel) { t.Label = "hub" })},
		{"port of a host", "port", change(func(t *hubv1.Tunnel) { t.Port = 80 })},
		{"port", "port", port(func(t *hubv1.Tunnel) { t.Port = 70000 })},
		{"the server's own port", "port", port(func(t *hubv1.Tunnel) { t.Port = 8443 })},
		{"port outside what is granted", "port", port(func(t *hubv1.Tunnel) { t.Port = 22 })},
		{"a range of tcp", "port", port(func(t *hubv1.Tunnel) { t.PortLast = 2230 })},
		{"address", "address", change(func(t *hubv1.Tunnel) { t.Address = "10.0.0.1" })},
		{"name", "name", change(func(t *hubv1.Tunnel) { t.Name = long })},
		{"no origins", "origins", change(func(t *hubv1.Tunnel) { t.Origins = nil })},
		{"origin", "origins[0]", origin(&hubv1.Origin{Url: "nonsense"})},
		{"origin with a path", "origins[0]", origin(&hubv1.Origin{Url: "http://a:1/x"})},
		{"origin with a password", "origins[0]", origin(&hubv1.Origin{Url: "http://u:p@a:1"})},
		{"scheme", "origins[0]", origin(&hubv1.Origin{Url: "tcp://a:1"})},
		{"proxy protocol", "origins[0].proxy_protocol", origin(&hubv1.Origin{Url: "http://a:1", ProxyProtocol: "v3"})},
		{"idle time-out", "origins[0].idle_timeout_seconds", origin(&hubv1.Origin{Url: "http://a:1", IdleTimeoutSeconds: 5})},
		{"host header", "origins[0].host_header", origin(&hubv1.Origin{Url: "http://a:1", HostHeader: "a b"})},
		{"host header of tcp", "origins[0].host_header", port(func(t *hubv1.Tunnel) { t.Origins[0].HostHeader = "origin" })},
		{"server name without TLS", "origins[0].server_name", origin(&hubv1.Origin{Url: "http://a:1", ServerName: "a"})},
		{"server name", "origins[0].server_name", origin(&hubv1.Origin{Url: "https://a:1", ServerName: "a b"})},
		{"insecure without TLS", "origins[0].insecure_skip_verify", origin(&hubv1.Origin{Url: "http://a:1", InsecureSkipVerify: true})},
		{"CA without TLS", "origins[0].ca_pem", origin(&hubv1.Origin{Url: "http://a:1", CaPem: []byte("x")})},
		{"CA", "origins[0].ca_pem", origin(&hubv1.Origin{Url: "https://a:1", CaPem: []byte("x")})},
		{"CA beside insecure", "origins[0].ca_pem", origin(&hubv1.Origin{Url: "https://a:1", CaPem: []byte("x"), InsecureSkipVerify: true})},
		{"rule without origin", "rules[0].origins[0]", change(func(t *hubv1.Tunnel) { t.Rules = []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 7}}}} })},
		{"access", "access.mode", change(func(t *hubv1.Tunnel) { t.Access = &hubv1.Access{Mode: 9} })},
		{"rules of a public one", "access.mode", change(func(t *hubv1.Tunnel) {
			t.Access = &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC, Rules: []*hubv1.AccessRule{{From: []string{"10.0.0.0/8"}}}}
		})},
		{"sign-in for tcp", "access.rules[0].email", port(func(t *hubv1.Tunnel) {
			t.Access = &hubv1.Access{Rules: []*hubv1.AccessRule{{Email: "a@b.test"}}}
		})},
		{"policy", "access.policies[0]", change(func(t *hubv1.Tunnel) { t.Access = &hubv1.Access{Policies: []string{"none"}} })},
		{"carrier policy", "carrier_policy", change(func(t *hubv1.Tunnel) { t.CarrierPolicy = 99 })},
		{"raw for http", "carrier_policy", change(func(t *hubv1.Tunnel) { t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_RAW })},
		{"raw for a protected one", "carrier_policy", &hubv1.Tunnel{Kind: wirev1.Kind_KIND_TLS, Label: "raw", Origins: []*hubv1.Origin{{Url: "tcp://a:443"}},
			CarrierPolicy: hubv1.CarrierPolicy_CARRIER_POLICY_RAW}},
		{"response time-out", "response_timeout_seconds", change(func(t *hubv1.Tunnel) { t.ResponseTimeoutSeconds = 1201 })},
		{"response time-out of tcp", "response_timeout_seconds", port(func(t *hubv1.Tunnel) { t.ResponseTimeoutSeconds = 5 })},
		{"WebSocket of tcp", "websocket_off", port(func(t *hubv1.Tunnel) { t.WebsocketOff = true })},
		{"user", "upstream_basic_auth.user", change(func(t *hubv1.Tunnel) { t.UpstreamBasicAuth = &hubv1.BasicCredential{User: "a:b", Password: "x"} })},
		{"no user", "upstream_basic_auth.user", change(func(t *hubv1.Tunnel) { t.UpstreamBasicAuth = &hubv1.BasicCredential{Password: "x"} })},
		{"no password", "upstream_basic_auth.password", change(func(t *hubv1.Tunnel) { t.UpstreamBasicAuth = &hubv1.BasicCredential{User: "a"} })},
		{"password", "upstream_basic_auth.password", change(func(t *hubv1.Tunnel) { t.UpstreamBasicAuth = &hubv1.BasicCredential{User: "a", Password: "a\nb"} })},
		{"basic auth of tcp", "upstream_basic_auth", port(func(t *hubv1.Tunnel) { t.UpstreamBasicAuth = &hubv1.BasicCredential{User: "a", Password: "b"} })},
		{"health path", "health_check.path", change(func(t *hubv1.Tunnel) { t.HealthCheck = &hubv1.HealthCheck{Path: "x"} })},
		{"health path of tcp", "health_check.path", port(func(t *hubv1.Tunnel) { t.HealthCheck = &hubv1.HealthCheck{Path: "/x"} })},
		{"health interval", "health_check.interval_seconds", change(func(t *hubv1.Tunnel) { t.HealthCheck = &hubv1.HealthCheck{IntervalSeconds: 4} })},
		{"health time-out", "health_check.timeout_seconds", change(func(t *hubv1.Tunnel) { t.HealthCheck = &hubv1.HealthCheck{TimeoutSeconds: 61} })},
		{"health of udp", "health_check", &hubv1.Tunnel{Kind: wirev1.Kind_KIND_UDP, Port: 5000, Origins: []*hubv1.Origin{{Url: "udp://a:1"}}, HealthCheck: &hubv1.HealthCheck{}}},
		{"clear ports of tcp", "http_ports", port(func(t *hubv1.Tunnel) { t.HttpPorts = []uint32{8000} })},
		{"clear port", "http_ports[0]", change(func(t *hubv1.Tunnel) { t.HttpPorts = []uint32{8443} })},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: c.t, Agent: "home"})
			var p *Problem
			if !errors.As(err, &p) || p.Field != c.field || p.Remedy == "" {
				t.Fatalf("got %#v (%v), want a problem of %s", p, err, c.field)
			}
			if pw := c.t.GetUpstreamBasicAuth().GetPassword(); len(pw) > 1 && strings.Contains(err.Error(), pw) {
				t.Errorf("the error repeats the password: %v", err)
			}
		})
	}
	if l, _, _ := h.ListTunnels(t.Context(), 0, "", ""); len(l) != 0 {
		t.Errorf("%d tunnels were stored", len(l))
	}
	_, err := h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: app("x")})
	wantProblem(t, err, reason.Invalid, "agent")
	_, err = h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Tunnel: app("x"), Agent: "nobody"})
	wantProblem(t, err, reason.NotFound, "agent")
	_, err = h.CreateTunnel(t.Context(), &hubv1.CreateTunnelRequest{Agent: "home"})
	wantProblem(t, err, reason.Invalid, "tunnel")
}

func TestUpdateTunnel(t *testing.T) {
	h := newTestHub(t)
	a := h.enrol("home")
	x := app("app")
	x.UpstreamBasicAuth = &hubv1.BasicCredential{User: "u", Password: "hunter2"}
	h.create("home", x)
	t.Run("a secret is never shown, sealed at rest, kept by changes, and reaches edges only", func(t *testing.T) {
		s, err := h.set("app", &hubv1.Tunnel{ResponseTimeoutSeconds: 300}, "response_timeout_seconds")
		if err != nil || s.GetTunnel().GetUpstreamBasicAuth().GetPassword() != "" || s.GetTunnel().GetUpstreamBasicAuth().GetUser() != "u" {
			t.Fatal(s, err)
		}
		l, _, _ := h.ListTunnels(t.Context(), 0, "", "")
		if l[0].GetTunnel().GetUpstreamBasicAuth().GetPassword() != "" {
			t.Error("the list shows the password")
		}
		id := s.GetTunnel().GetId()
		if got := h.tunnel(id).GetUpstreamBasicAuth().GetPassword(); got != "hunter2" {
			t.Errorf("edges get %q", got)
		}
		h.restart()
		if got := h.tunnel(id).GetUpstreamBasicAuth().GetPassword(); got != "hunter2" {
			t.Errorf("after a restart edges get %q", got)
		}
		h.watch(Watcher{TokenID: a.GetTokenId()}, 0, func(m *hubv1.WatchResponse) {
			for _, r := range m.GetPuts() {
				if x := r.GetTunnel(); x.GetUpstreamBasicAuth() != nil || len(x.GetAccess().GetRules()) > 0 {
					t.Errorf("the agent gets %v", x)
				}
			}
		})(h.feed.at())
		b, _ := proto.Marshal(h.feed.get("tunnel/" + id))
		if !containsBytes(b, "hunter2") {
			t.Error("the test looks at the wrong thing")
		}
	})
	t.Run("two writers", func(t *testing.T) {
		v := h.create("home", app("two")).GetTunnel().GetVersion()
		up := func(name string) error {
			_, err := h.UpdateTunnel(t.Context(), &hubv1.UpdateTunnelRequest{Label: "two", Version: v, Tunnel: &hubv1.Tunnel{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"name"}}})
			return err
		}
		if err := up("first"); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, up("second"), reason.VersionConflict, "version")
		if got, _ := h.GetTunnel(t.Context(), "two"); got.GetTunnel().GetName() != "first" {
			t.Error(got)
		}
	})
	t.Run("a new name follows the label and keeps the id; the old one is kept for the tenant", func(t *testing.T) {
		old := h.create("home", app("before")).GetTunnel()
		s, err := h.set("before", &hubv1.Tunnel{Label: "after"}, "label")
		if err != nil || s.GetTunnel().GetHostname() != "after.example.com" || s.GetTunnel().GetId() != old.GetId() {
			t.Fatal(s, err)
		}
		_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "late", Hostnames: []string{"before.example.com"}})
		wantProblem(t, err, reason.NameConflict, "hostnames[0]")
		if err := h.ReleaseName(t.Context(), "before.example.com"); err != nil {
			t.Fatal(err)
		}
		h.grant("late", &hubv1.CreateInviteRequest{Hostnames: []string{"before.example.com"}})
		_, err = h.set("after", &hubv1.Tunnel{Label: "before"}, "label")
		wantProblem(t, err, reason.NameConflict, "label")
	})
	t.Run("masks", func(t *testing.T) {
		_, err := h.set("app", &hubv1.Tunnel{})
		wantProblem(t, err, reason.Invalid, "update_mask")
		_, err = h.set("app", &hubv1.Tunnel{Kind: wirev1.Kind_KIND_TLS}, "kind")
		wantProblem(t, err, reason.Invalid, "update_mask")
		_, err = h.set("nothing", &hubv1.Tunnel{}, "name")
		wantProblem(t, err, reason.NotFound, "")
	})
	t.Run("nothing changed is no change", func(t *testing.T) {
		at := h.feed.at()
		s, err := h.set("app", &hubv1.Tunnel{ResponseTimeoutSeconds: 300}, "response_timeout_seconds")
		if err != nil || h.feed.at() != at {
			t.Error(s.GetTunnel().GetVersion(), err)
		}
	})
	t.Run("deleted with --release the name is free", func(t *testing.T) {
		h.create("home", app("gone"))
		if err := h.DeleteTunnel(t.Context(), "gone", true); err != nil {
			t.Fatal(err)
		}
		h.grant("taker", &hubv1.CreateInviteRequest{Hostnames: []string{"gone.example.com"}})
	})
}

// TestParallelTunnels has the database decide: T22 with one connection.
func TestParallelTunnels(t *testing.T) {
	h := newTestHub(t)
	h.enrol("home")
	race := func(make func(int) *hubv1.Tunnel) (won int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, err := h.CreateTunnel(context.WithoutCancel(t.Context()), &hubv1.CreateTunnelRequest{Tunnel: make(i), Agent: "home"})
				var p *Problem
				switch {
				case err == nil:
					mu.Lock()
					won++
					mu.Unlock()
				case !errors.As(err, &p) || p.Code != reason.NameConflict && p.Code != reason.PortConflict || p.Held == "":
					t.Errorf("loser: %v", err)
				}
			})
		}
		wg.Wait()
		return won
	}
	t.Run("T22 50 creates of one hostname, one port, and 50 of any", func(t *testing.T) {
		if n := race(func(int) *hubv1.Tunnel { return app("same") }); n != 1 {
			t.Errorf("%d won the name", n)
		}
		if n := race(func(int) *hubv1.Tunnel { return portTunnel(wirev1.Kind_KIND_TCP, 4000) }); n != 1 {
			t.Errorf("%d won the port", n)
		}
		if n := race(func(i int) *hubv1.Tunnel { return app(fmt.Sprint("own", i)) }); n != 50 {
			t.Errorf("%d of 50 got their own name", n)
		}
		if n := race(func(int) *hubv1.Tunnel { return portTunnel(wirev1.Kind_KIND_UDP, 0) }); n != 50 {
			t.Errorf("%d of 50 got a port", n)
		}
	})
}

func TestAgents(t *testing.T) {
	h := newTestHub(t)
	a := h.enrol("home")
	t.Run("one name once, no bad names", func(t *testing.T) {
		_, _, err := h.CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: "home"})
		wantProblem(t, err, reason.NameConflict, "name")
		_, _, err = h.CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: "a b"})
		wantProblem(t, err, reason.Invalid, "name")
		_, _, err = h.CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: "x", From: []string{"nowhere"}})
		wantProblem(t, err, reason.Invalid, "from[0]")
		_, _, err = h.CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: "x", Grant: &hubv1.Grant{Hostnames: []string{"hub.example.com"}}})
		wantProblem(t, err, reason.Invalid, "grant.hostnames[0]")
	})
	t.Run("rotated: both tokens are one agent for a while", func(t *testing.T) {
		h.create("home", app("app"))
		_, token, ends, err := h.RotateAgent(t.Context(), &hubv1.RotateAgentRequest{Id: "home"})
		if err != nil || ends.Sub(h.clock.now()) != 24*time.Hour {
			t.Fatal(ends, err)
		}
		keys := tokenKeys(t, token)
		id := keys.Public().HexID()
		c := h.feed.get("credential/" + id).GetCredential()
		old := h.feed.get("credential/" + a.GetTokenId()).GetCredential()
		if c.GetMemberOf() != a.GetTokenId() || c.GetExpiresAt() != nil || !old.GetExpiresSessions() || !old.GetExpiresAt().AsTime().Equal(ends) {
			t.Error(c, old)
		}
		got, err := h.GetAgent(t.Context(), "home")
		if err != nil || got.GetTokenId() != a.GetTokenId() || got.GetOldTokenExpiresAt() == nil {
			t.Error(got, err)
		}
		all, _, _ := h.ListAgents(t.Context(), 0, "")
		if len(all) != 1 {
			t.Errorf("%d agents", len(all))
		}
		// Again, after the first has ended: it stays the agent, a spent one goes.
		h.clock.add(48 * time.Hour)
		if _, _, _, err := h.RotateAgent(t.Context(), &hubv1.RotateAgentRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		h.clock.add(48 * time.Hour)
		if _, _, _, err := h.RotateAgent(t.Context(), &hubv1.RotateAgentRequest{Id: "home"}); err != nil {
			t.Fatal(err)
		}
		if h.feed.get("credential/"+id) != nil || h.feed.get("credential/"+a.GetTokenId()) == nil {
			t.Error("the spent token is still there, or the agent is not")
		}
	})
	t.Run("switched off: every token, and it says so", func(t *testing.T) {
		var ended []string
		h.OnRevoke(func(id string) { ended = append(ended, id) })
		got, err := h.SetAgentEnabled(t.Context(), "home", false)
		if err != nil || got.GetState() != "disabled" || len(ended) < 2 {
			t.Error(got, ended, err)
		}
		s, _ := h.GetTunnel(t.Context(), "app")
		if s.GetReason() != "disabled" {
			t.Error(s)
		}
		if got, err := h.SetAgentEnabled(t.Context(), "home", true); err != nil || got.GetState() == "disabled" {
			t.Error(got, err)
		}
	})
	t.Run("deleted only without tunnels, or with them", func(t *testing.T) {
		wantProblem(t, h.DeleteAgent(t.Context(), "home", false), reason.InUse, "id")
		if err := h.DeleteAgent(t.Context(), "home", true); err != nil {
			t.Fatal(err)
		}
		if l, _, _ := h.ListTunnels(t.Context(), 0, "", ""); len(l) != 0 {
			t.Error(l)
		}
		if c := h.feed.get("credential/" + a.GetTokenId()).GetCredential(); !c.GetRevoked() {
			t.Error(c)
		}
		h.enrol("home")
	})
}
