package hub

import (
	"testing"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
)

// FuzzDeclaredEntry: whatever an agent declares is refused or becomes one valid claim, which the
// grants then decide by the same rule as edges match.
func FuzzDeclaredEntry(f *testing.F) {
	for _, d := range []*hubv1.DeclaredTunnel{web("a.example.com"), pass("*.Example.com."), pass("**.bücher.example"), tcp(22), udp(3000, 3100), web("_a.b"), {}} {
		b, err := proto.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "*.example.com", "b.example.com")
	}
	f.Fuzz(func(t *testing.T, b []byte, grant, host string) {
		d := &hubv1.DeclaredTunnel{}
		if proto.Unmarshal(b, d) != nil {
			return
		}
		c, p := parseEntry(d)
		if p != nil {
			if p.Text == "" || p.Error() == "" {
				t.Fatalf("refused without a word: %+v", p)
			}
			return
		}
		if len(c.tunnel.Rules) == 0 || len(c.tunnel.Origins) == 0 || c.tunnel.Access.Mode == 0 || c.tunnel.CarrierPolicy == 0 {
			t.Fatalf("incomplete: %v", c.tunnel)
		}
		if c.protocol != "" {
			if c.first < 1 || c.last > 65535 || c.last < c.first || c.last-c.first >= maxRange {
				t.Fatalf("ports %d-%d", c.first, c.last)
			}
			return
		}
		if !hostname.Valid(c.tunnel.Hostname) {
			t.Fatalf("host name %q is not in its one spelling", c.tunnel.Hostname)
		}
		g, err := hostname.Parse(grant)
		if err != nil {
			return
		}
		h := &Hub{cfg: Config{HubHost: "hub.test", Domain: "test"}, feed: newFeed()}
		tok := &store.Token{Grants: []store.Grant{{Protocol: store.Host, Pattern: g.String()}}}
		name, err := hostname.FromHost(host)
		if err == nil && h.granted(tok, c) == nil && c.pattern.Match(name) && !g.Match(name) {
			t.Fatalf("%s was granted %s and would take %s", g, c.pattern, name)
		}
	})
}
