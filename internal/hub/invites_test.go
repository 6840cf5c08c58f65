package hub

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func r(first, last uint32) *hubv1.PortRange { return &hubv1.PortRange{First: first, Last: last} }

func TestCreateInvite(t *testing.T) {
	h := newTestHub(t, func(c *Config) { c.TCPPorts = []*hubv1.PortRange{r(22, 0), r(1024, 65535)} })
	h.report()
	inv, token, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{
		Name: "home", Hostnames: []string{"*.Home.Example.com.", "bücher.example"}, TcpPorts: []*hubv1.PortRange{r(22, 0), r(2000, 2010)},
		UdpPorts: []*hubv1.PortRange{r(3478, 3478)}, MaxReplicas: 3, From: []string{"192.0.2.7/24", "2001:db8::1"},
		ExpiresAt: timestamppb.New(h.clock.now().Add(time.Hour)), ExpiresSessions: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := identity.ParseToken(token)
	if err != nil || tok.Kind != identity.KindInvite || tok.Body.HubUrl != "https://hub.example.com:8443" ||
		string(tok.Body.HubPins[0]) != string(h.Key().Hash()) || len(tok.Body.Edges) != 1 || tok.Body.Edges[0].Id != h.edge.ID() {
		t.Fatalf("%v, %v", tok.Body, err)
	}
	keys := tokenKeys(t, token)
	if keys.Public().HexID() != inv.GetId() {
		t.Error("the token's id is not the invite's")
	}
	got, err := h.GetInvite(t.Context(), "home")
	if err != nil {
		t.Fatal(err)
	}
	g := got.GetGrant()
	if got.GetTenant() != "home" || g.GetHostnames()[0] != "*.home.example.com" || g.GetHostnames()[1] != "xn--bcher-kva.example" ||
		g.GetTcpPorts()[0].GetLast() != 22 || got.GetFrom()[0] != "192.0.2.0/24" || got.GetFrom()[1] != "2001:db8::1/128" || got.GetMaxReplicas() != 3 {
		t.Errorf("%v", got)
	}
	c := h.feed.get("credential/" + inv.GetId()).GetCredential()
	if c.GetKind() != "invite" || len(c.GetMldsa65Public()) != 1952 || !c.GetExpiresSessions() || c.GetExpiresAt() == nil {
		t.Errorf("%v", c)
	}
	if _, err := h.GetInvite(t.Context(), "nobody"); !reason.Is(err, reason.NotFound) {
		t.Error(err)
	}
}

func TestCreateInviteBadInput(t *testing.T) {
	h := newTestHub(t)
	h.report()
	base := func() *hubv1.CreateInviteRequest {
		return &hubv1.CreateInviteRequest{Name: "ok", Hostnames: []string{"a.example.com"}}
	}
	for _, c := range []struct {
		name, field string
		change      func(*hubv1.CreateInviteRequest)
	}{
		{"no name", "name", func(r *hubv1.CreateInviteRequest) { r.Name = "" }},
		{"name with space", "name", func(r *hubv1.CreateInviteRequest) { r.Name = "a b" }},
		{"name too long", "name", func(r *hubv1.CreateInviteRequest) { r.Name = fmt.Sprintf("%064d", 1) }},
		{"tenant with slash", "tenant", func(r *hubv1.CreateInviteRequest) { r.Tenant = "a/b" }},
		{"grants nothing", "hostnames", func(r *hubv1.CreateInviteRequest) { r.Hostnames = nil }},
		{"too many", "hostnames", func(r *hubv1.CreateInviteRequest) { r.Hostnames = make([]string, 300) }},
		{"bad host", "hostnames[1]", func(r *hubv1.CreateInviteRequest) { r.Hostnames = append(r.Hostnames, "a..b") }},
		{"address", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "192.0.2.1" }},
		{"middle wildcard", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "a.*.example.com" }},
		{"all", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "*" }},
		{"hub host", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "HUB.example.com" }},
		{"below hub host", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "x.edge.hub.example.com" }},
		{"wildcard below hub host", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "*.hub.example.com" }},
		{"base domain", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "example.com" }},
		{"underscore", "hostnames[0]", func(r *hubv1.CreateInviteRequest) { r.Hostnames[0] = "_dmarc.example.com" }},
		{"port 0", "tcp_ports[0]", func(r *hubv1.CreateInviteRequest) { r.TcpPorts = []*hubv1.PortRange{{}} }},
		{"port 70000", "tcp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.TcpPorts = []*hubv1.PortRange{r(70000, 0)} }},
		{"backwards", "udp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.UdpPorts = []*hubv1.PortRange{r(3000, 2000)} }},
		{"own port", "tcp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.TcpPorts = []*hubv1.PortRange{r(8443, 8443)} }},
		{"range over own port", "udp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.UdpPorts = []*hubv1.PortRange{r(8000, 9000)} }},
		{"low port", "tcp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.TcpPorts = []*hubv1.PortRange{r(22, 0)} }},
		{"low range", "tcp_ports[0]", func(x *hubv1.CreateInviteRequest) { x.TcpPorts = []*hubv1.PortRange{r(1000, 2000)} }},
		{"past", "expires_at", func(r *hubv1.CreateInviteRequest) {
			r.ExpiresAt = timestamppb.New(h.clock.now().Add(-time.Second))
		}},
		{"sessions without expiry", "expires_sessions", func(r *hubv1.CreateInviteRequest) { r.ExpiresSessions = true }},
		{"replicas", "max_replicas", func(r *hubv1.CreateInviteRequest) { r.MaxReplicas = 1 << 20 }},
		{"from", "from[0]", func(r *hubv1.CreateInviteRequest) { r.From = []string{"10.0.0.0/33"} }},
		{"from host", "from[0]", func(r *hubv1.CreateInviteRequest) { r.From = []string{"home"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := base()
			c.change(req)
			_, _, err := h.CreateInvite(t.Context(), req)
			wantProblem(t, err, reason.Invalid, c.field)
		})
	}
	if l, _, err := h.ListInvites(t.Context(), 0, ""); err != nil || len(l) != 0 {
		t.Errorf("refused invites were stored: %v, %v", l, err)
	}
	t.Run("low ports one by one where the server allows them", func(t *testing.T) {
		h := newTestHub(t, func(c *Config) { c.TCPPorts = []*hubv1.PortRange{r(1, 65535)}; c.OwnPorts = nil })
		req := base()
		req.TcpPorts = []*hubv1.PortRange{r(1, 65535)}
		_, _, err := h.CreateInvite(t.Context(), req)
		wantProblem(t, err, reason.Invalid, "tcp_ports[0]")
		req.TcpPorts = []*hubv1.PortRange{r(22, 22), r(1024, 65535)}
		if _, _, err := h.CreateInvite(t.Context(), req); err != nil {
			t.Error(err)
		}
	})
	t.Run("outside --tcp-ports", func(t *testing.T) {
		h := newTestHub(t, func(c *Config) { c.TCPPorts = []*hubv1.PortRange{r(2000, 2999), r(3000, 3100)} })
		req := base()
		req.TcpPorts = []*hubv1.PortRange{r(2990, 3010)}
		if _, _, err := h.CreateInvite(t.Context(), req); err != nil {
			t.Error(err)
		}
		req.Name, req.Hostnames, req.TcpPorts = "other", nil, []*hubv1.PortRange{r(3050, 3101)}
		_, _, err := h.CreateInvite(t.Context(), req)
		wantProblem(t, err, reason.Invalid, "tcp_ports[0]")
	})
}

func TestTenantsNeverOverlap(t *testing.T) {
	for _, c := range []struct {
		held, asked *hubv1.CreateInviteRequest
		conflict    bool
	}{
		{&hubv1.CreateInviteRequest{Hostnames: []string{"a.x.dev"}}, &hubv1.CreateInviteRequest{Hostnames: []string{"A.x.dev."}}, true},
		{&hubv1.CreateInviteRequest{Hostnames: []string{"*.x.dev"}}, &hubv1.CreateInviteRequest{Hostnames: []string{"a.x.dev"}}, true},
		{&hubv1.CreateInviteRequest{Hostnames: []string{"a.x.dev"}}, &hubv1.CreateInviteRequest{Hostnames: []string{"*.x.dev"}}, true},
		{&hubv1.CreateInviteRequest{Hostnames: []string{"**.dev.net"}}, &hubv1.CreateInviteRequest{Hostnames: []string{"*.a.b.dev.net"}}, true},
		{&hubv1.CreateInviteRequest{Hostnames: []string{"*.x.dev"}}, &hubv1.CreateInviteRequest{Hostnames: []string{"x.dev", "a.b.x.dev", "ax.dev", "*.b.x.dev"}}, false},
		{&hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(2000, 3000)}}, &hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(3000, 3001)}}, true},
		{&hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(2222, 0)}}, &hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(2000, 3000)}}, true},
		{&hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(2222, 0)}}, &hubv1.CreateInviteRequest{UdpPorts: []*hubv1.PortRange{r(2222, 0)}, TcpPorts: []*hubv1.PortRange{r(2223, 0)}}, false},
	} {
		h := newTestHub(t)
		c.held.Name, c.asked.Name = "first", "second"
		if _, _, err := h.CreateInvite(t.Context(), c.held); err != nil {
			t.Fatal(err)
		}
		_, _, err := h.CreateInvite(t.Context(), c.asked)
		if !c.conflict {
			if err != nil {
				t.Errorf("%v beside %v: %v", c.asked, c.held, err)
			}
			continue
		}
		field, code := "hostnames[0]", reason.NameConflict
		if len(c.asked.TcpPorts) > 0 {
			field, code = "tcp_ports[0]", reason.PortConflict
		}
		if p := wantProblem(t, err, code, field); p.Holder != "first" || p.Held == "" {
			t.Errorf("the conflict names no holder: %+v", p)
		}
		// Shared within the tenant.
		c.asked.Tenant = "first"
		if _, _, err := h.CreateInvite(t.Context(), c.asked); err != nil {
			t.Errorf("in the same tenant: %v", err)
		}
		_ = h.Hub.Close()
	}
}

func TestConflictNamesAllHolders(t *testing.T) {
	h := newTestHub(t)
	for i := range 7 {
		h.invite_(fmt.Sprintf("t%d", i), fmt.Sprintf("h%d.x.test", i))
	}
	_, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "all", Hostnames: []string{"*.x.test"}})
	p := wantProblem(t, err, reason.NameConflict, "hostnames[0]")
	if !contains(p.Text, `tenant "t4"`) || !contains(p.Text, "2 more") {
		t.Error(p.Text)
	}
}

func TestTenantsAndNames(t *testing.T) {
	h := newTestHub(t)
	h.invite_("home", "a.example.com")
	_, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "home", Hostnames: []string{"b.example.com"}})
	wantProblem(t, err, reason.NameConflict, "name")
	_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "home", Tenant: "home", Hostnames: []string{"b.example.com"}})
	wantProblem(t, err, reason.NameConflict, "name")
	_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "x", Tenant: "nobody", Hostnames: []string{"b.example.com"}})
	wantProblem(t, err, reason.NotFound, "tenant")
	_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "default", Hostnames: []string{"b.example.com"}})
	wantProblem(t, err, reason.NameConflict, "name")

	// After a revocation the name is free, and the tenant takes up its own names again.
	if _, err := h.RevokeInvite(t.Context(), "home"); err != nil {
		t.Fatal(err)
	}
	again := h.invite_("home", "a.example.com")
	got, err := h.GetInvite(t.Context(), "home")
	if err != nil || got.GetId() != again.GetId() || got.GetRevokedAt() != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestListInvitesPages(t *testing.T) {
	h := newTestHub(t)
	for i := range 25 {
		h.invite_(fmt.Sprintf("i%02d", i), fmt.Sprintf("h%d.example.com", i))
	}
	var names []string
	page := ""
	for {
		l, next, err := h.ListInvites(t.Context(), 10, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range l {
			names = append(names, i.GetName())
		}
		if page = next; page == "" {
			break
		}
	}
	if len(names) != 25 || names[0] != "i00" || names[24] != "i24" {
		t.Errorf("%v", names)
	}
	_, _, err := h.ListInvites(t.Context(), 10, "%%%")
	wantProblem(t, err, reason.Invalid, "page_token")
}

func TestParallelCreates(t *testing.T) {
	for _, conns := range []int{1, 4} {
		t.Run(fmt.Sprintf("T22 50 at once with %d connections", conns), func(t *testing.T) {
			h := newTestHub(t, func(c *Config) { c.MaxStoreConns = conns })
			run := func(host func(i int) string) (won int) {
				var mu sync.Mutex
				var wg sync.WaitGroup
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				for i := range 50 {
					wg.Go(func() {
						_, _, err := h.CreateInvite(ctx, &hubv1.CreateInviteRequest{Name: fmt.Sprintf("%s-%d", host(0)[:1], i), Hostnames: []string{host(i)}})
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							won++
						case !reason.Is(err, reason.NameConflict):
							t.Errorf("%v", err)
						}
					})
				}
				wg.Wait()
				return won
			}
			if won := run(func(int) string { return "same.example.com" }); won != 1 {
				t.Errorf("%d of 50 got one name", won)
			}
			if won := run(func(i int) string { return fmt.Sprintf("n%d.example.com", i) }); won != 50 {
				t.Errorf("%d of 50 got their own name", won)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	h := newTestHub(t)
	h.invite_("home", "a.example.com")
	if _, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "p", TcpPorts: []*hubv1.PortRange{r(2000, 2010)}}); err != nil {
		t.Fatal(err)
	}
	tcp := wirev1.Kind_KIND_TCP
	reserve := func(port, last uint32, tenant string) (*hubv1.Port, error) {
		return h.ReservePort(t.Context(), &hubv1.ReservePortRequest{Kind: tcp, Port: port, Last: last, Tenant: tenant})
	}
	p, err := reserve(2500, 2600, "home")
	if err != nil || p.GetFirst() != 2500 || p.GetLast() != 2600 || p.GetSource() != "reservation" {
		t.Fatalf("%v, %v", p, err)
	}
	for _, c := range []struct {
		port, last uint32
		tenant     string
		code       reason.Code
		field      string
	}{
		{2600, 0, "home", reason.PortConflict, "port"}, {2005, 0, "home", reason.PortConflict, "port"}, {2600, 2700, "", reason.PortConflict, "port"},
		{8443, 0, "home", reason.Invalid, "port"}, {3000, 0, "nobody", reason.NotFound, "tenant"}, {0, 10, "home", reason.Invalid, "last"},
	} {
		_, err := reserve(c.port, c.last, c.tenant)
		wantProblem(t, err, c.code, c.field)
	}
	_, _, err = h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "q", TcpPorts: []*hubv1.PortRange{r(2550, 0)}})
	if p := wantProblem(t, err, reason.PortConflict, "tcp_ports[0]"); p.Holder != "home" {
		t.Errorf("%+v", p)
	}
	free, err := reserve(0, 0, "")
	if err != nil || free.GetFirst() < 1024 || free.GetTenant() != "default" {
		t.Fatalf("%v, %v", free, err)
	}
	l, _, err := h.ListPorts(t.Context(), 0, "")
	if err != nil || len(l) != 3 {
		t.Fatalf("%v, %v", l, err)
	}
	if err := h.ReleasePort(t.Context(), tcp, 2555); err != nil {
		t.Fatal(err)
	}
	if err := h.ReleasePort(t.Context(), tcp, 2555); !reason.Is(err, reason.NotFound) {
		t.Error(err)
	}
	if _, err := reserve(2600, 0, "home"); err != nil {
		t.Error(err)
	}
	t.Run("none free", func(t *testing.T) {
		h := newTestHub(t, func(c *Config) { c.UDPPorts = []*hubv1.PortRange{r(5000, 5001)} })
		for i := range 3 {
			_, err := h.ReservePort(t.Context(), &hubv1.ReservePortRequest{Kind: wirev1.Kind_KIND_UDP})
			if (err != nil) != (i == 2) {
				t.Errorf("reservation %d: %v", i, err)
			}
		}
	})
}
