package hub

import (
	"slices"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// clearWeb is web with clear HTTP ports.
func clearWeb(host string, ports ...uint32) *hubv1.DeclaredTunnel {
	d := web(host)
	d.HttpPorts = ports
	return d
}

func TestHTTPPorts(t *testing.T) {
	h := newTestHub(t, func(c *Config) {
		c.HTTPPort = 8880
		c.OwnPorts = append(c.OwnPorts, OwnPort{wirev1.Kind_KIND_TCP, 8880})
	})
	a := h.replica(h.grant("a", &hubv1.CreateInviteRequest{Hostnames: []string{"*.a.test"}, TcpPorts: []*hubv1.PortRange{r(2000, 2100)}}))
	b := h.replica(h.grant("b", &hubv1.CreateInviteRequest{Hostnames: []string{"*.b.test"}, TcpPorts: []*hubv1.PortRange{r(3000, 3100)}}))
	live := func() { h.report(a.session(), b.session()) }
	live()
	many := make([]uint32, maxHTTPPorts+1)
	for i := range many {
		many[i] = 2000 + uint32(i)
	}
	tls := pass("p.a.test")
	tls.HttpPorts = []uint32{2000}
	for _, c := range []struct {
		name string
		d    *hubv1.DeclaredTunnel
		want string
		text string
	}{
		{"granted", clearWeb("x.a.test", 2000, 2001, 2000), "ok", ""},
		{"the plain HTTP listener needs no grant", clearWeb("x.a.test", 80, 8880), "ok", ""},
		{"not granted", clearWeb("x.a.test", 2000, 2101), "grant_missing", `http_ports "2101"`},
		{"the server's own", clearWeb("x.a.test", 8443), "grant_missing", `http_ports "8443"`},
		{"no port", clearWeb("x.a.test", 0), "invalid", `http_ports "0"`},
		{"beyond the last port", clearWeb("x.a.test", 65536), "invalid", `http_ports "65536"`},
		{"too many", clearWeb("x.a.test", many...), "invalid", "at most 16"},
		{"passthrough", tls, "invalid", "only http tunnels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := a.declare(c.d)[0]
			if v.GetCode() != c.want || !contains(v.GetDetail(), c.text) {
				t.Fatal(v)
			}
			if got := h.tunnel(v.GetTunnelId()).GetHttpPorts(); c.want == "ok" && (len(got) != 2 || !slices.IsSorted(got)) {
				t.Errorf("ports %v", got)
			}
		})
	}
	t.Run("without a plain HTTP listener 80 is a port as any", func(t *testing.T) {
		h := newTestHub(t)
		a := h.replica(h.grant("a", &hubv1.CreateInviteRequest{Hostnames: []string{"*.a.test"}}))
		if v := a.declare(clearWeb("x.a.test", 80))[0]; v.GetCode() != "grant_missing" {
			t.Error(v)
		}
	})
	t.Run("hosts of one tenant share a port, and 80 those of all", func(t *testing.T) {
		a.ok(clearWeb("x.a.test", 2000, 80), clearWeb("y.a.test", 2000, 80))
		b.ok(clearWeb("x.b.test", 80))
		list, _, err := h.ListPorts(t.Context(), 0, "")
		n := 0
		for _, p := range list {
			if p.GetKind() == wirev1.Kind_KIND_HTTP {
				n++
			}
		}
		if err != nil || n != 5 {
			t.Errorf("%v, %v", list, err)
		}
	})
	t.Run("not with a tcp tunnel, whoever came first", func(t *testing.T) {
		if v := a.declare(clearWeb("x.a.test", 2000), tcp(2000))[1]; v.GetCode() != "port_conflict" {
			t.Error(v)
		}
		if v := a.declare(tcp(2000), clearWeb("x.a.test", 2000), clearWeb("y.a.test", 2001))[1]; v.GetCode() != "port_conflict" || !contains(v.GetDetail(), `http_ports "2000"`) {
			t.Error(v)
		}
		a.ok(tcp(2001), clearWeb("y.a.test", 2002))
	})
	t.Run("nobody is granted a port that a tunnel of another tenant has", func(t *testing.T) {
		if _, err := h.RevokeInvite(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		_, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "c", TcpPorts: []*hubv1.PortRange{r(2002, 0)}})
		wantProblem(t, err, "port_conflict", "tcp_ports[0]")
	})
	t.Run("ports that are not named any more are free", func(t *testing.T) {
		a.ok(clearWeb("y.a.test", 2003))
		a.ok(clearWeb("y.a.test"), tcp(2003))
		a.ok(clearWeb("y.a.test", 2003))
	})
	t.Run("what only dead replicas have gives way", func(t *testing.T) {
		h.clock.add(time.Minute)
		c := h.replica(h.grant("a2", &hubv1.CreateInviteRequest{Tenant: "a", TcpPorts: []*hubv1.PortRange{r(2000, 2100)}}))
		c.ok(tcp(2003))
		if _, err := h.GetTunnel(t.Context(), "y.a.test"); err == nil {
			t.Error("the offline tunnel kept its port")
		}
	})
}

func TestHTTPPortUnavailable(t *testing.T) {
	h := newTestHub(t)
	a := h.replica(h.grant("a", &hubv1.CreateInviteRequest{Hostnames: []string{"*.a.test"}, TcpPorts: []*hubv1.PortRange{r(2222, 0)}}))
	id := a.ok(clearWeb("x.a.test", 2222))[0]
	err := h.LocalFeed(h.edge.Public()).Report(t.Context(), &hubv1.ReportRequest{Edge: h.address(), Sessions: []*hubv1.SessionReport{a.session(id)},
		Ports: []*hubv1.PortReport{{Kind: wirev1.Kind_KIND_HTTP, Port: 2222, TunnelId: id, Problem: "address already in use by sshd"}}})
	if err != nil {
		t.Fatal(err)
	}
	// TLS is left, so it is served and the problem is only told.
	if v := a.declare(clearWeb("x.a.test", 2222))[0]; v.GetCode() != "ok" || !contains(v.GetDetail(), "sshd") {
		t.Error(v)
	}
	if s, err := h.GetTunnel(t.Context(), "x.a.test"); err != nil || s.GetState() != "online" || !contains(s.GetDetail(), "over TLS only") {
		t.Errorf("%v, %v", s, err)
	}
}
