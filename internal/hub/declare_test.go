package hub

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

func (h *testHub) grant(name string, req *hubv1.CreateInviteRequest) *hubv1.Invite {
	h.t.Helper()
	req.Name = name
	i, _, err := h.CreateInvite(h.t.Context(), req)
	if err != nil {
		h.t.Fatal(err)
	}
	return i
}

func TestDeclareVerdicts(t *testing.T) {
	h := newTestHub(t, func(c *Config) { c.TCPPorts = []*hubv1.PortRange{r(22, 0), r(1024, 65535)} })
	h.report()
	a := h.replica(h.grant("a", &hubv1.CreateInviteRequest{
		Hostnames: []string{"*.a.example.com", "exact.example.com", "**.deep.example.com", "*.example.com"},
		TcpPorts:  []*hubv1.PortRange{r(22, 0), r(2000, 2010)}, UdpPorts: []*hubv1.PortRange{r(3000, 3100), r(3101, 3200)},
	}))
	with := func(d *hubv1.DeclaredTunnel, f func(*hubv1.DeclaredTunnel)) *hubv1.DeclaredTunnel { f(d); return d }
	for _, c := range []struct {
		name string
		d    *hubv1.DeclaredTunnel
		want string
		url  string
	}{
		{"exact", pass("exact.example.com"), "ok", "https://exact.example.com:8443"},
		{"upper case and dot", pass("EXACT.example.com."), "ok", "https://exact.example.com:8443"},
		{"international", web("bücher.a.example.com"), "ok", "https://xn--bcher-kva.a.example.com:8443"},
		{"within a wildcard", web("x.a.example.com"), "ok", "https://x.a.example.com:8443"},
		{"the wildcard", pass("*.a.example.com"), "ok", "https://*.a.example.com:8443"},
		{"R02 its apex is not covered", pass("deep.example.com"), "ok", ""}, // by *.example.com
		{"R02 the apex of its only wildcard", pass("a.a.a.example.com"), "grant_missing", ""},
		{"R02 no label boundary", pass("xexample.com"), "grant_missing", ""},
		{"one label only", pass("x.y.a.example.com"), "grant_missing", ""},
		{"deep", pass("x.y.deep.example.com"), "ok", ""},
		{"wildcard below a deep one", pass("*.y.deep.example.com"), "ok", ""},
		{"deep wildcard by one-label grant", pass("**.a.example.com"), "grant_missing", ""},
		{"reserved under a wildcard", web("hub.example.com"), "name_conflict", ""},
		{"below the hub host", web("x.hub.example.com"), "name_conflict", ""},
		{"no name", web(""), "invalid", ""},
		{"address", web("10.0.0.1"), "invalid", ""},
		{"tcp", tcp(22), "ok", "tcp://hub.example.com:22"},
		{"tcp not granted", tcp(23), "grant_missing", ""},
		{"tcp range", with(tcp(2000), func(d *hubv1.DeclaredTunnel) { d.PortLast = 2001 }), "invalid", ""},
		{"udp range over two grants", udp(3050, 3150), "ok", "udp://hub.example.com:3050-3150"},
		{"udp range not granted", udp(3150, 3201), "grant_missing", ""},
		{"udp backwards", with(udp(3150, 3160), func(d *hubv1.DeclaredTunnel) { d.PortLast = 3000 }), "invalid", ""},
		{"port 0", tcp(0), "invalid", ""},
		{"port and name", with(tcp(22), func(d *hubv1.DeclaredTunnel) { d.Hostname = "a.b" }), "invalid", ""},
		{"name and port", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Port = 1 }), "invalid", ""},
		{"no kind", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Kind = 0 }), "invalid", ""},
		{"no origin", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Origin = nil }), "invalid", ""},
		{"origin without port", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Origin.Url = "http://x" }), "invalid", ""},
		{"origin with path", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Origin.Url = "http://x:80/y" }), "invalid", ""},
		{"origin of another kind", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Origin.Url = "udp://x:80" }), "invalid", ""},
		{"origin port 0", with(tcp(22), func(d *hubv1.DeclaredTunnel) { d.Origin.Url = "tcp://x:0" }), "invalid", ""},
		{"PROXY v3", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Origin.ProxyProtocol = "v3" }), "invalid", ""},
		{"PROXY v1 for udp", with(udp(3000, 0), func(d *hubv1.DeclaredTunnel) { d.Origin.ProxyProtocol = "v1" }), "invalid", ""},
		{"PROXY v2 for udp", with(udp(3000, 0), func(d *hubv1.DeclaredTunnel) { d.Origin.ProxyProtocol = "v2" }), "ok", ""},
		{"raw for http", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_RAW }), "invalid", ""},
		{"raw for passthrough", with(pass("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_RAW }), "ok", ""},
		{"unknown access", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Access = 77 }), "invalid", ""},
		{"mirror", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) {
			d.Rules = []*hubv1.Rule{{Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Mirror{Mirror: &hubv1.Mirror{}}}}}}
		}), "invalid", ""},
		{"filter from the future", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) { d.Rules = []*hubv1.Rule{{Filters: []*hubv1.Filter{{}}}} }), "invalid", ""},
		{"rule without origin", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) {
			d.Rules = []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 1, Weight: 1}}}}
		}), "invalid", ""},
		{"rules", with(web("x.a.example.com"), func(d *hubv1.DeclaredTunnel) {
			d.Origins, d.Origin = []*hubv1.Origin{{Url: "http://a:80"}, {Url: "https://b:443"}}, nil
			d.Rules = []*hubv1.Rule{{Match: &hubv1.Match{PathPrefix: "/api"}, Origins: []*hubv1.WeightedOrigin{{Origin: 1, Weight: 1}},
				Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Redirect{Redirect: &hubv1.Redirect{Scheme: "https"}}}}}}
		}), "ok", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.d.Key = "x[0]"
			v := a.declare(c.d)[0]
			if v.GetCode() != c.want || v.GetKey() != "x[0]" {
				t.Fatalf("%v, want %s", v, c.want)
			}
			if c.want != "ok" {
				if v.GetTunnelId() != "" || v.GetDetail() == "" {
					t.Errorf("%v", v)
				}
				return
			}
			if tun := h.tunnel(v.GetTunnelId()); tun == nil || len(tun.GetRules()) == 0 || tun.GetTokenIds()[0] != a.key().token || tun.GetSource() != "declared" {
				t.Errorf("%v", tun)
			}
			if c.url != "" && v.GetUrl() != c.url {
				t.Errorf("url %s, want %s", v.GetUrl(), c.url)
			}
		})
	}
	t.Run("defaults", func(t *testing.T) {
		w, p := web("w.a.example.com"), pass("p.a.example.com")
		w.Access = 0
		ids := a.ok(w, p, tcp(22))
		if h.tunnel(ids[0]).GetAccess().GetMode() != hubv1.Access_MODE_PROTECTED || h.tunnel(ids[1]).GetAccess().GetMode() != hubv1.Access_MODE_PUBLIC {
			t.Error("http is protected unless it says otherwise, the others public")
		}
		if want := hubv1.DeclaredID(wirev1.Kind_KIND_TCP, "", 22, 0); ids[2] != want {
			t.Errorf("id %s, want %s", ids[2], want)
		}
	})
	t.Run("twice in one list", func(t *testing.T) {
		v := a.declare(tcp(22), tcp(22))
		if v[0].GetCode() != "ok" || v[1].GetCode() != "invalid" {
			t.Errorf("%v", v)
		}
	})
	t.Run("one bad entry harms no other", func(t *testing.T) {
		v := a.declare(tcp(23), web("y.a.example.com"), web(""))
		if v[0].GetCode() != "grant_missing" || v[1].GetCode() != "ok" || v[2].GetCode() != "invalid" {
			t.Errorf("%v", v)
		}
	})
	t.Run("too many", func(t *testing.T) {
		_, err := h.Declare(t.Context(), a.caller, &hubv1.DeclareRequest{Tunnels: make([]*hubv1.DeclaredTunnel, maxDeclared+1)})
		wantProblem(t, err, reason.Invalid, "tunnels")
	})
}

func TestDeclareConflicts(t *testing.T) {
	h := newTestHub(t)
	inv := h.grant("a", &hubv1.CreateInviteRequest{Hostnames: []string{"*.example.com"}, TcpPorts: []*hubv1.PortRange{r(2000, 2100)}, UdpPorts: []*hubv1.PortRange{r(2000, 2100)}})
	a, b := h.replica(inv), h.replica(inv)
	id := a.ok(web("x.example.com"))[0]
	live := func() { h.report(a.session(), b.session()) }
	live()

	t.Run("equal lists are copies", func(t *testing.T) {
		if got := b.ok(web("x.example.com"))[0]; got != id {
			t.Errorf("id %s, want %s", got, id)
		}
		if n := len(h.feed.tunnels()); n != 1 {
			t.Errorf("%d tunnels", n)
		}
	})
	t.Run("another access is a conflict", func(t *testing.T) {
		d := web("x.example.com")
		d.Access = hubv1.Access_MODE_PROTECTED
		v := b.declare(d)[0]
		if v.GetCode() != "name_conflict" {
			t.Fatal(v)
		}
		if h.tunnel(id).GetAccess().GetMode() != hubv1.Access_MODE_PUBLIC {
			t.Error("the loser changed the tunnel")
		}
		s, err := h.GetTunnel(t.Context(), "x.example.com")
		if err != nil || len(s.GetConflicts()) != 1 {
			t.Errorf("the conflict is not shown: %v, %v", s, err)
		}
	})
	t.Run("another kind is a conflict", func(t *testing.T) {
		if v := b.declare(pass("x.example.com"))[0]; v.GetCode() != "name_conflict" {
			t.Error(v)
		}
	})
	t.Run("the only live declarer may change both", func(t *testing.T) {
		b.declare()
		newID := a.ok(pass("x.example.com"))[0]
		if newID == id || h.tunnel(id) != nil || h.tunnel(newID).GetKind() != wirev1.Kind_KIND_TLS {
			t.Errorf("%v", h.feed.tunnels())
		}
	})
	t.Run("what only dead replicas declare may be replaced", func(t *testing.T) {
		h.clock.add(time.Minute)
		h.report(b.session())
		d := web("x.example.com")
		d.Access = hubv1.Access_MODE_PROTECTED
		got := b.ok(d)[0]
		if h.tunnel(got).GetAccess().GetMode() != hubv1.Access_MODE_PROTECTED || len(h.feed.tunnels()) != 1 {
			t.Errorf("%v", h.feed.tunnels())
		}
		b.declare()
	})
	t.Run("ranges that overlap", func(t *testing.T) {
		live()
		a.ok(udp(2000, 2010))
		if v := b.declare(udp(2010, 2020))[0]; v.GetCode() != "port_conflict" {
			t.Error(v)
		}
		b.ok(udp(2011, 2020), tcp(2000))
		b.declare()
	})
	t.Run("a renamed service takes over its own port", func(t *testing.T) {
		one := tcp(2001)
		one.Name = "old"
		a.ok(one)
		two := tcp(2001)
		two.Name, two.Origin = "new", &hubv1.Origin{Url: "tcp://other:22"}
		got := a.ok(two)[0]
		if h.tunnel(got).GetName() != "new" || h.tunnel(got).GetOrigins()[0].GetUrl() != "tcp://other:22" {
			t.Errorf("%v", h.tunnel(got))
		}
		a.ok(udp(2001, 2005))
		a.ok(udp(2001, 2006))
	})
	t.Run("reserved for another tenant", func(t *testing.T) {
		// A reservation cannot be made over a grant, so this is one that was there first.
		h.grant("other", &hubv1.CreateInviteRequest{Hostnames: []string{"o.test"}})
		if _, err := h.ReservePort(t.Context(), &hubv1.ReservePortRequest{Kind: wirev1.Kind_KIND_TCP, Port: 2050, Tenant: "a"}); err != nil {
			t.Fatal(err)
		}
		a.ok(tcp(2050))
	})
}

func TestRename(t *testing.T) {
	t.Run("R10 the old name goes at once, the new one works, a second owner is refused", func(t *testing.T) {
		h := newTestHub(t)
		a := h.replica(h.invite_("a", "*.a.example.com"))
		b := h.replica(h.invite_("b", "*.b.example.com"))
		var got []string
		stop := h.watch(Watcher{Edge: true}, 0, func(m *hubv1.WatchResponse) {
			for range m.GetDeletes() {
				got = append(got, "-")
			}
			for _, p := range m.GetPuts() {
				if p.GetTunnel() != nil {
					got = append(got, "+"+p.GetTunnel().GetHostname())
				}
			}
		})
		a.ok(web("a.a.example.com"))
		between := h.feed.at()
		a.ok(web("b.a.example.com"))
		stop(h.feed.at())
		want := uint64(2)
		if h.store.Shared() {
			want++ // other hubs hear of a declaration
		}
		if n := h.feed.at() - between; n != want {
			t.Errorf("%d changes for a rename, want %d", n, want)
		}
		if want := []string{"+a.a.example.com", "-", "+b.a.example.com"}; !slices.Equal(got, want) {
			t.Errorf("the edge heard %v, want %v", got, want)
		}
		if v := b.declare(web("b.a.example.com"))[0]; v.GetCode() != "grant_missing" {
			t.Error(v)
		}
	})
	t.Run("R10 two accounts claim one name at the same moment", func(t *testing.T) {
		h := newTestHub(t, func(c *Config) { c.MaxStoreConns = 4 })
		inv := h.invite_("a", "*.example.com")
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := map[string]int{}
		for i := range 20 {
			a := h.replica(inv)
			h.presence.agent(a.key(), h.clock.now(), func(p *agentPresence) { p.watches++ })
			d := web("b.example.com")
			if i%2 == 1 {
				d = pass("b.example.com")
			}
			wg.Go(func() {
				v, err := h.Declare(t.Context(), a.caller, &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{d}})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				codes[v[0].GetCode()]++
			})
		}
		wg.Wait()
		if n := len(h.feed.tunnels()); n != 1 || codes["ok"] != 10 || codes["name_conflict"] != 10 {
			t.Errorf("%d tunnels, %v", n, codes)
		}
	})
}

// watch runs a watch; the returned function waits until a revision was seen and ends it.
func (h *testHub) watch(w Watcher, from uint64, see func(*hubv1.WatchResponse)) func(until uint64) {
	h.t.Helper()
	ctx, cancel := newCancel(h.t)
	var mu sync.Mutex
	seen, moved := uint64(0), make(chan struct{}, 1)
	started := make(chan struct{})
	var once sync.Once
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Watch(ctx, w, from, func(m *hubv1.WatchResponse) error {
			see(proto.CloneOf(m))
			mu.Lock()
			seen = max(seen, m.GetRevision())
			mu.Unlock()
			once.Do(func() { close(started) })
			select {
			case moved <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	if from == 0 {
		<-started
	}
	return func(until uint64) {
		h.t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			mu.Lock()
			ok := seen >= until
			mu.Unlock()
			if ok {
				break
			}
			select {
			case <-moved:
			case <-deadline:
				h.t.Fatalf("revision %d was not seen", until)
			}
		}
		cancel()
		<-done
	}
}

func TestWithdrawal(t *testing.T) {
	setup := func(t *testing.T) (*testHub, *replica, *replica) {
		h := newTestHub(t)
		inv := h.invite_("a", "*.example.com")
		return h, h.replica(inv), h.replica(inv)
	}
	t.Run("withdrawn by its last live declarer: gone at once", func(t *testing.T) {
		h, a, b := setup(t)
		ids := a.ok(web("x.example.com"), web("y.example.com"))
		h.report(a.session(ids...), b.session())
		b.ok(web("y.example.com"))
		a.ok()
		if h.tunnel(ids[0]) != nil {
			t.Error("x lives on")
		}
		if h.tunnel(ids[1]) == nil {
			t.Error("y went although another live replica declares it")
		}
		b.ok()
		if h.tunnel(ids[1]) != nil {
			t.Error("y lives on")
		}
	})
	t.Run("a dead copy does not keep it", func(t *testing.T) {
		h, a, b := setup(t)
		id := a.ok(web("x.example.com"))[0]
		b.ok(web("x.example.com"))
		h.pass(time.Minute, a.session(id)) // b is dead
		a.ok()
		if h.tunnel(id) != nil {
			t.Error("x lives on")
		}
	})
	t.Run("last declarer lost while another replica lives: after 60 s", func(t *testing.T) {
		h, a, b := setup(t)
		ids := a.ok(web("x.example.com"), web("y.example.com"))
		b.ok(web("y.example.com"))
		h.pass(5*time.Second, a.session(ids...), b.session(ids[1]))
		h.pass(58*time.Second, b.session(ids[1]))
		if h.tunnel(ids[0]) == nil {
			t.Fatal("x went too early")
		}
		h.pass(8*time.Second, b.session(ids[1]))
		if h.tunnel(ids[0]) != nil {
			t.Error("x lives on")
		}
		if h.tunnel(ids[1]) == nil {
			t.Error("y went")
		}
		h.ticked()
		if n := len(h.reap.replicas); n != 1 {
			t.Errorf("%d replicas are kept, want 1", n)
		}
	})
	t.Run("no replica alive: 30 days offline", func(t *testing.T) {
		h, a, _ := setup(t)
		h.reap.step = 6 * time.Hour
		id := a.ok(web("x.example.com"))[0]
		h.pass(2*time.Second, a.session(id))
		h.pass(2 * time.Minute)
		if h.tunnel(id).GetOrphanedAt() == nil {
			t.Error("not marked as offline")
		}
		if s, _ := h.GetTunnel(t.Context(), "x.example.com"); s.GetState() != "offline" || s.GetReason() != "no_agent" {
			t.Errorf("%v", s)
		}
		day := func(n int) {
			for range n * 4 {
				h.clock.add(6 * time.Hour)
				h.report()
				h.ticked()
			}
		}
		day(29)
		if h.tunnel(id) == nil {
			t.Fatal("went before 30 days")
		}
		day(2)
		if h.tunnel(id) != nil {
			t.Error("lives on after 30 days")
		}
	})
	t.Run("time in which no edge was heard does not count", func(t *testing.T) {
		h, a, b := setup(t)
		id := a.ok(web("x.example.com"))[0]
		h.pass(2*time.Second, a.session(id), b.session())
		h.pass(30*time.Second, b.session())
		for range 600 { // ten minutes deaf
			h.clock.add(time.Second)
			h.ticked()
		}
		if h.tunnel(id) == nil {
			t.Fatal("withdrawn while the hub was deaf")
		}
		h.restart() // nor does a restart count
		h.ticked()
		h.pass(20*time.Second, b.session())
		if h.tunnel(id) == nil {
			t.Fatal("withdrawn too early")
		}
		h.pass(50*time.Second, b.session())
		if h.tunnel(id) != nil {
			t.Error("lives on")
		}
	})
	t.Run("T21 a long pause of the hub loses nothing that lives", func(t *testing.T) {
		h, a, b := setup(t)
		id := a.ok(web("x.example.com"))[0]
		b.ok()
		h.pass(3*time.Second, a.session(id), b.session())
		h.clock.add(5 * time.Minute)
		h.restart()
		h.ticked()
		h.pass(90*time.Second, a.session(id), b.session())
		if tun := h.tunnel(id); tun == nil || tun.GetOrphanedAt() != nil {
			t.Errorf("%v", tun)
		}
	})
	t.Run("a restarted agent that declares less", func(t *testing.T) {
		h, a, b := setup(t)
		ids := a.ok(web("x.example.com"), web("y.example.com"))
		h.pass(2*time.Second, a.session(ids...))
		h.pass(5 * time.Minute) // long gone: offline
		b.ok(web("y.example.com"))
		h.pass(30*time.Second, b.session(ids[1]))
		if h.tunnel(ids[0]) == nil {
			t.Fatal("x went before the new replica had lived for a while")
		}
		h.pass(40*time.Second, b.session(ids[1]))
		if h.tunnel(ids[0]) != nil || h.tunnel(ids[1]) == nil || h.tunnel(ids[1]).GetOrphanedAt() != nil {
			t.Errorf("x %v, y %v", h.tunnel(ids[0]), h.tunnel(ids[1]))
		}
	})
	t.Run("a replica that never reached the hub keeps what an edge says it serves", func(t *testing.T) {
		h, a, b := setup(t)
		id := a.ok(web("x.example.com"))[0]
		h.pass(2*time.Second, a.session(id))
		h.pass(3*time.Minute, b.session(id))
		if h.tunnel(id) == nil {
			t.Error("withdrawn although it is served")
		}
	})
	t.Run("T04 20 restarts leave one live record", func(t *testing.T) {
		h, _, _ := setup(t)
		inv, err := h.GetInvite(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			x := h.replica(inv)
			id := x.ok(web("x.example.com"))[0]
			h.pass(15*time.Second, x.session(id))
		}
		last := h.replica(inv)
		id := last.ok(web("x.example.com"))[0]
		h.pass(90*time.Second, last.session(id))
		if n := len(h.feed.tunnels()); n != 1 {
			t.Errorf("%d tunnels", n)
		}
		h.ticked()
		if n := len(h.reap.replicas); n != 1 {
			t.Errorf("%d replicas are kept", n)
		}
	})
}

func TestRevokeInvite(t *testing.T) {
	h := newTestHub(t)
	inv := h.invite_("a", "*.example.com")
	a := h.replica(inv)
	id := a.ok(web("x.example.com"))[0]
	var closed []string
	h.OnRevoke(func(id string) { closed = append(closed, id) })
	from := h.feed.at()
	var got []string
	stop := h.watch(Watcher{Edge: true}, from, func(m *hubv1.WatchResponse) {
		for _, p := range m.GetPuts() {
			if c := p.GetCredential(); c.GetRevoked() {
				got = append(got, "revoked "+c.GetName())
			}
		}
		got = append(got, m.GetDeletes()...)
	})
	if _, err := h.RevokeInvite(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	stop(h.feed.at())
	if want := []string{"revoked a", "tunnel/" + id}; !slices.Equal(got, want) {
		t.Errorf("edges hear %v, want %v", got, want)
	}
	if !slices.Equal(closed, []string{inv.GetId()}) {
		t.Errorf("closed %v", closed)
	}
	if _, err := h.Declare(t.Context(), a.caller, &hubv1.DeclareRequest{}); !reason.Is(err, reason.TokenRevoked) {
		t.Errorf("declare: %v", err)
	}
	// The name stays with the tenant for 30 days.
	_, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "b", Hostnames: []string{"*.example.com"}})
	if p := wantProblem(t, err, reason.NameConflict, "hostnames[0]"); p.Holder != "a" || p.Held != "x.example.com" {
		t.Errorf("%+v", p)
	}
	h.grant("b", &hubv1.CreateInviteRequest{Tenant: "a", Hostnames: []string{"*.example.com"}})
	if _, err := h.RevokeInvite(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	h.clock.add(31 * 24 * time.Hour)
	h.invite_("c", "*.example.com")
	if ag, err := h.GetAgent(t.Context(), inv.GetId()); err != nil || ag.GetState() != "disabled" {
		t.Errorf("%v, %v", ag, err)
	}
	if _, err := h.RevokeInvite(t.Context(), inv.GetId()); err != nil {
		t.Errorf("revoking again: %v", err)
	}
}

func TestSharedTunnelOutlivesOneToken(t *testing.T) {
	h := newTestHub(t)
	one := h.invite_("a", "*.example.com")
	two := h.grant("b", &hubv1.CreateInviteRequest{Tenant: "a", Hostnames: []string{"x.example.com"}})
	a, b := h.replica(one), h.replica(two)
	id := a.ok(web("x.example.com"))[0]
	b.ok(web("x.example.com"))
	if n := len(h.tunnel(id).GetTokenIds()); n != 2 {
		t.Fatalf("%d tokens may serve it", n)
	}
	if _, err := h.RevokeInvite(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if tun := h.tunnel(id); tun == nil || !slices.Equal(tun.GetTokenIds(), []string{two.GetId()}) {
		t.Errorf("%v", tun)
	}
}

func TestPortUnavailable(t *testing.T) {
	h := newTestHub(t)
	inv := h.grant("a", &hubv1.CreateInviteRequest{TcpPorts: []*hubv1.PortRange{r(2222, 0)}})
	a := h.replica(inv)
	id := a.ok(tcp(2222))[0]
	problem := func(p string) {
		err := h.LocalFeed(h.edge.Public()).Report(t.Context(), &hubv1.ReportRequest{Edge: h.address(), Sessions: []*hubv1.SessionReport{a.session(id)},
			Ports: []*hubv1.PortReport{{Kind: wirev1.Kind_KIND_TCP, Port: 2222, TunnelId: id, Problem: p}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	problem("address already in use by sshd")
	if v := a.declare(tcp(2222))[0]; v.GetCode() != "port_unavailable" || v.GetTunnelId() != id || !contains(v.GetDetail(), "sshd") {
		t.Error(v)
	}
	s, err := h.GetTunnel(t.Context(), "tcp:2222")
	if err != nil || s.GetState() != "problem" || s.GetReason() != "port_unavailable" {
		t.Errorf("%v, %v", s, err)
	}
	l, _, err := h.ListPorts(t.Context(), 0, "")
	if err != nil || len(l) != 2 || l[1].GetProblem() == "" {
		t.Errorf("%v, %v", l, err)
	}
	ag, err := h.GetAgent(t.Context(), "a")
	if err != nil || ag.GetState() != "online" || ag.GetReplicas()[0].GetVerdicts()[0].GetCode() != "port_unavailable" || len(ag.GetReplicas()[0].GetSessions()) != 1 {
		t.Errorf("%v, %v", ag, err)
	}
	t.Run("a replica that ended is shown as such", func(t *testing.T) {
		gone := h.replica(inv)
		gone.declare(tcp(2222))
		h.clock.add(declareGrace)
		h.report(a.session(id))
		ag, err := h.GetAgent(t.Context(), "a")
		if err != nil || len(ag.GetReplicas()) != 2 {
			t.Fatalf("%v, %v", ag, err)
		}
		for _, r := range ag.GetReplicas() {
			if want := map[bool]string{true: "offline", false: "online"}[r.GetId() == gone.key().replica]; r.GetState() != want {
				t.Errorf("%v, want %s", r, want)
			}
			for _, s := range r.GetSessions() {
				if s.GetEdgeId() != h.edge.ID() {
					t.Errorf("%v names no edge", s)
				}
			}
		}
		problem("address already in use by sshd")
	})
	t.Run("D13 an edge that cannot bind a port takes it from no other", func(t *testing.T) {
		h.presence.edge("0123456789abcdef", h.clock.now(), &hubv1.ReportRequest{})
		if v := a.declare(tcp(2222))[0]; v.GetCode() != "ok" || !contains(v.GetDetail(), "sshd") {
			t.Error(v)
		}
		if s, _ := h.GetTunnel(t.Context(), id); s.GetState() != "online" || !contains(s.GetDetail(), "sshd") {
			t.Errorf("%v", s)
		}
	})
	problem("")
	if v := a.declare(tcp(2222))[0]; v.GetCode() != "ok" || v.GetDetail() != "" {
		t.Error(v)
	}
	if s, _ := h.GetTunnel(t.Context(), id); s.GetState() != "online" || s.GetReplicas() != 1 {
		t.Errorf("%v", s)
	}
}

func TestListTunnels(t *testing.T) {
	h := newTestHub(t)
	a := h.replica(h.grant("a", &hubv1.CreateInviteRequest{Hostnames: []string{"*.example.com", "**.deep.test"}, TcpPorts: []*hubv1.PortRange{r(2000, 2100)}, UdpPorts: []*hubv1.PortRange{r(2000, 2100)}}))
	var ds []*hubv1.DeclaredTunnel
	for i := range 30 {
		ds = append(ds, web(fmt.Sprintf("h%02d.example.com", i)))
	}
	ssh := tcp(2000)
	ssh.Name = "ssh"
	ds = append(ds, ssh, udp(2000, 2010), pass("*.a.deep.test"))
	a.ok(ds...)
	var all []string
	for page := ""; ; {
		l, next, err := h.ListTunnels(t.Context(), 7, page, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l {
			all = append(all, s.GetTunnel().GetId())
		}
		if page = next; page == "" {
			break
		}
	}
	if len(all) != 33 || len(slices.Compact(all)) != 33 {
		t.Errorf("%d tunnels over all pages", len(all))
	}
	if l, _, err := h.ListTunnels(t.Context(), 0, "", "H07.EX"); err != nil || len(l) != 1 || l[0].GetState() != "pending" {
		t.Errorf("%v, %v", l, err)
	}
	for label, want := range map[string]string{
		"ssh": "tcp://hub.example.com:2000", "udp:2005": "udp://hub.example.com:2000-2010", "tcp:2000": "tcp://hub.example.com:2000",
		"H01.example.com.": "https://h01.example.com:8443", "*.a.deep.test": "https://*.a.deep.test:8443", "h01": "https://h01.example.com:8443",
	} {
		if s, err := h.GetTunnel(t.Context(), label); err != nil || s.GetUrl() != want {
			t.Errorf("%s: %v, %v", label, s, err)
		}
	}
	for _, label := range []string{"nobody", "udp:1", "z.example.com"} {
		if _, err := h.GetTunnel(t.Context(), label); !reason.Is(err, reason.NotFound) {
			t.Errorf("%s: %v", label, err)
		}
	}
	_, err := h.GetTunnel(t.Context(), "tcp:x")
	wantProblem(t, err, reason.Invalid, "label")
	t.Run("where an edge that joined is the only one, addresses are its", func(t *testing.T) {
		edge := &hubv1.Edge{Address: &wirev1.EdgeAddress{Id: "0123456789abcdef", Addresses: []string{"edge1.example.net:9443"}}}
		h.feed.apply(nil, map[string]*hubv1.Resource{"edge/0123456789abcdef": {Item: &hubv1.Resource_Edge{Edge: edge}}})
		for label, want := range map[string]string{"ssh": "tcp://edge1.example.net:2000", "h01": "https://h01.example.com:9443"} {
			if s, err := h.GetTunnel(t.Context(), label); err != nil || s.GetUrl() != want {
				t.Errorf("%s: %v, %v", label, s, err)
			}
		}
	})
}

func TestStoreUnavailable(t *testing.T) {
	h := newTestHub(t)
	if h.store.Shared() {
		return // the store's own tests have this on PostgreSQL
	}
	a := h.replica(h.invite_("a", "*.example.com"))
	id := a.ok(web("x.example.com"))[0]
	before := h.feed.at()
	if err := h.store.Exec(t.Context(), "PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	_, err := h.Declare(t.Context(), a.caller, &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("y.example.com")}})
	if !reason.Is(err, reason.StoreUnavailable) {
		t.Errorf("declare: %v", err)
	}
	if _, _, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "b", Hostnames: []string{"b.test"}}); !reason.Is(err, reason.StoreUnavailable) {
		t.Errorf("create: %v", err)
	}
	if h.feed.at() != before || h.tunnel(id) == nil {
		t.Error("half applied")
	}
	// What only reads goes on.
	if _, err := h.GetTunnel(t.Context(), "x.example.com"); err != nil {
		t.Error(err)
	}
	if err := h.store.Exec(t.Context(), "PRAGMA query_only = 0"); err != nil {
		t.Fatal(err)
	}
	a.ok(web("y.example.com"))
}
