package route

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

var local = netip.MustParseAddrPort("192.0.2.1:443")

func web(id, host string) *Entry {
	return NewEntry(&hubv1.Tunnel{Id: id, Kind: wirev1.Kind_KIND_HTTP, Hostname: host})
}

func port(id string, p uint32, addr string) *Entry {
	return NewEntry(&hubv1.Tunnel{Id: id, Kind: wirev1.Kind_KIND_TCP, Port: p, Address: addr})
}

func idOf(e *Entry) string {
	if e == nil {
		return ""
	}
	return e.Tunnel.GetId()
}

func TestHost(t *testing.T) {
	table := Empty().Apply([]*Entry{
		web("exact", "a.example.com"), web("one", "*.example.com"), web("many", "**.example.com"),
		web("deep", "**.eu.example.com"), web("inner", "*.eu.example.com"), web("apex", "other.org"),
	}, nil)
	for _, c := range []struct{ name, host, want string }{
		{"exact first", "a.example.com", "exact"},
		{"R02 a wildcard matches one label", "b.example.com", "one"},
		{"R02 not across a label boundary", "fooexample.com", ""},
		{"R02 the apex is not covered", "example.com", ""},
		{"R02 two labels are for the deep wildcard", "a.b.example.com", "many"},
		{"the longest ** wins", "a.b.eu.example.com", "deep"},
		{"one label wins over **", "a.eu.example.com", "inner"},
		{"the apex of ** is only one label deep here", "eu.example.com", "one"},
		{"labels with an underscore are never matched", "_acme-challenge.example.com", ""},
		{"nor deeper ones", "x._dmarc.example.com", ""},
		{"unknown", "other.net", ""},
		{"one label", "localhost", ""},
		{"empty", "", ""},
		{"exact without wildcard", "other.org", "apex"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := idOf(table.Host(local, c.host)); got != c.want {
				t.Errorf("%s is for %q, want %q", c.host, got, c.want)
			}
		})
	}
	for _, spelling := range []string{"EXAMPLE.com.", "A.Example.COM.", "a.example.com:443"} {
		t.Run("R02 "+spelling, func(t *testing.T) {
			h, err := hostname.FromHost(spelling)
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if strings.HasPrefix(h, "a.") {
				want = "exact"
			}
			if got := idOf(table.Host(local, h)); got != want {
				t.Errorf("%s is for %q, want %q", spelling, got, want)
			}
		})
	}
}

func TestAddressAndPort(t *testing.T) {
	mine := web("mine", "a.example.com")
	mine.address = local.Addr()
	table := Empty().Apply([]*Entry{
		web("all", "a.example.com"), mine,
		port("ssh", 22, ""), port("ssh-here", 22, "192.0.2.1"), port("game", 7777, "192.0.2.9"),
	}, nil)
	other := netip.MustParseAddrPort("198.51.100.1:443")
	if got := idOf(table.Host(local, "a.example.com")); got != "mine" {
		t.Errorf("on its address: %q", got)
	}
	if got := idOf(table.Host(netip.MustParseAddrPort("[::ffff:192.0.2.1]:443"), "a.example.com")); got != "mine" {
		t.Errorf("on its mapped address: %q", got)
	}
	if got := idOf(table.Host(other, "a.example.com")); got != "all" {
		t.Errorf("elsewhere: %q", got)
	}
	for at, want := range map[string]string{"192.0.2.1:22": "ssh-here", "198.51.100.1:22": "ssh", "192.0.2.1:7777": "", "192.0.2.9:7777": "game", "192.0.2.1:23": ""} {
		if got := idOf(table.Port(netip.MustParseAddrPort(at))); got != want {
			t.Errorf("%s is for %q, want %q", at, got, want)
		}
	}
}

func TestRename(t *testing.T) {
	t.Run("R10 the old name is gone at once, the new one works", func(t *testing.T) {
		before := Empty().Apply([]*Entry{web("t", "a.x.test")}, nil)
		after := before.Apply([]*Entry{web("t", "b.x.test")}, nil)
		if got := idOf(after.Host(local, "a.x.test")); got != "" {
			t.Errorf("the old name is for %q", got)
		}
		if got := idOf(after.Host(local, "b.x.test")); got != "t" {
			t.Errorf("the new name is for %q", got)
		}
		if idOf(before.Host(local, "a.x.test")) != "t" || before.Host(local, "b.x.test") != nil {
			t.Error("the older table changed")
		}
		if gone := after.Apply(nil, []string{"t", "unknown"}); gone.Len() != 0 || gone.Host(local, "b.x.test") != nil {
			t.Error("a deleted tunnel answers")
		}
	})
}

// TestOrderOfChangesDoesNotMatter applies the same tunnels in all orders, with detours.
func TestOrderOfChangesDoesNotMatter(t *testing.T) {
	t.Run("R03 identical answers for every permutation", func(t *testing.T) {
		old, young := web("b-old", "dup.x.test"), web("a-young", "dup.x.test")
		old.Tunnel.CreatedAt = timestamppb.New(time.Unix(1, 0))
		young.Tunnel.CreatedAt = timestamppb.New(time.Unix(2, 0))
		entries := []*Entry{web("exact", "a.internal.x.test"), web("narrow", "*.internal.x.test"), web("broad", "*.x.test"), web("all", "**.x.test"), old, young}
		hosts := []string{"a.internal.x.test", "b.internal.x.test", "b.x.test", "c.b.x.test", "dup.x.test", "internal.x.test", "x.test"}
		answers := func(tb *Table) (out []string) {
			for _, h := range hosts {
				out = append(out, idOf(tb.Host(local, h)))
			}
			return out
		}
		want := []string{"exact", "narrow", "broad", "all", "b-old", "broad", ""}
		permute(entries, 0, func(p []*Entry) {
			tb := Empty()
			for i, e := range p {
				tb = tb.Apply([]*Entry{web("detour", "dup.x.test"), e}, nil)
				if i%2 == 0 {
					tb = tb.Apply([]*Entry{e}, []string{"detour"})
				}
			}
			tb = tb.Apply(nil, []string{"detour"})
			if got := answers(tb); !slices.Equal(got, want) {
				t.Fatalf("order %v gives %v, want %v", ids(p), got, want)
			}
		})
		if got := answers(Empty().Apply(entries, nil)); !slices.Equal(got, want) {
			t.Fatalf("at once gives %v", got)
		}
	})
}

func ids(es []*Entry) (out []string) {
	for _, e := range es {
		out = append(out, idOf(e))
	}
	return out
}

func permute(es []*Entry, k int, visit func([]*Entry)) {
	if k == len(es) {
		visit(es)
		return
	}
	for i := k; i < len(es); i++ {
		es[k], es[i] = es[i], es[k]
		permute(es, k+1, visit)
		es[k], es[i] = es[i], es[k]
	}
}

// TestAgainstTheSimpleRule compares random tables with a linear search by the rule for claims.
func TestAgainstTheSimpleRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	name := func() string {
		var labels []string
		for range 1 + rnd.IntN(4) {
			labels = append(labels, string(rune('a'+rnd.IntN(3))))
		}
		return strings.Join(labels, ".") + ".t"
	}
	for range 200 {
		live := map[string]*Entry{}
		tb := Empty()
		for i := range 30 {
			id := fmt.Sprint(rnd.IntN(12))
			if rnd.IntN(4) == 0 {
				delete(live, id)
				tb = tb.Apply(nil, []string{id})
				continue
			}
			e := web(id, []string{"", "*.", "**."}[rnd.IntN(3)]+name())
			if e.pattern.Name == "" {
				continue
			}
			e.Tunnel.CreatedAt = timestamppb.New(time.Unix(int64(i), 0))
			live[id] = e
			tb = tb.Apply([]*Entry{e}, nil)
		}
		if tb.Len() != len(live) {
			t.Fatalf("%d entries, want %d", tb.Len(), len(live))
		}
		for range 40 {
			h := name()
			if got, want := idOf(tb.Host(local, h)), idOf(simple(live, h)); got != want {
				t.Fatalf("%s is for %q, want %q of %v", h, got, want, live)
			}
		}
	}
}

func simple(live map[string]*Entry, host string) (best *Entry) {
	for _, e := range live {
		if !e.pattern.Match(host) {
			continue
		}
		if best == nil || e.pattern.Depth < best.pattern.Depth ||
			e.pattern.Depth == best.pattern.Depth && len(e.pattern.Name) > len(best.pattern.Name) ||
			e.pattern == best.pattern && order(e, best) < 0 {
			best = e
		}
	}
	return best
}

func FuzzHost(f *testing.F) {
	tb := Empty().Apply([]*Entry{web("exact", "a.example.com"), web("one", "*.example.com"), web("many", "**.example.com")}, nil)
	for _, s := range []string{"a.example.com", "EXAMPLE.com.", "a.example.com:443", "..", "*.example.com", "\x00.example.com", "münchen.example.com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := hostname.FromHost(s)
		if err != nil {
			return
		}
		e := tb.Host(local, h)
		if e == nil {
			if strings.HasSuffix(h, ".example.com") && !strings.HasPrefix(h, "_") && !strings.Contains(h, "._") {
				t.Fatalf("%q matches nothing", h)
			}
			return
		}
		if !e.pattern.Match(h) {
			t.Fatalf("%q is for %q", h, idOf(e))
		}
	})
}

func many(n int) []*Entry {
	out := make([]*Entry, n)
	for i := range out {
		host := fmt.Sprintf("app-%06d.example.com", i)
		switch i % 10 {
		case 1:
			host = "*." + host
		case 2:
			host = "**." + host
		}
		out[i] = web(fmt.Sprintf("%032x", i), host)
	}
	return out
}

// TestBudget: 100,000 routes cost at most 60 MiB beside the tunnels themselves.
func TestBudget(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	tunnels := many(100_000)
	before := heap()
	tb := Empty().Apply(tunnels, nil)
	cost := int64(heap()) - int64(before)
	if cost > 60<<20 {
		t.Errorf("the table takes %d MiB", cost>>20)
	}
	t.Logf("%d routes: %.1f MiB beside the tunnels", tb.Len(), float64(cost)/(1<<20))
	runtime.KeepAlive(tunnels)
	runtime.KeepAlive(tb)
}

func BenchmarkHost(b *testing.B) {
	tb := Empty().Apply(many(100_000), nil)
	for name, host := range map[string]string{"exact": "app-000033.example.com", "one": "x.app-000041.example.com", "many": "a.b.c.app-000042.example.com", "none": "a.b.c.d.nobody.test"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tb.Host(local, host)
			}
		})
	}
}

func BenchmarkReplaceOne(b *testing.B) {
	tb := Empty().Apply(many(100_000), nil)
	e := many(1)
	b.ReportAllocs()
	for b.Loop() {
		tb = tb.Apply(e, nil)
	}
}
