package origin

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// known is a cluster as discovery may know it.
type known struct {
	api, selected []string
	behind        map[string][]string
}

func (k known) APIServer(at netip.AddrPort) bool { return slices.Contains(k.api, at.String()) }
func (k known) Selected(at netip.AddrPort) bool  { return slices.Contains(k.selected, at.String()) }

func (k known) APIHost(a netip.Addr) bool {
	return slices.ContainsFunc(k.api, func(s string) bool { return netip.MustParseAddrPort(s).Addr() == a })
}

func (k known) Behind(at netip.AddrPort) (out []netip.AddrPort) {
	for _, s := range k.behind[at.String()] {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

func TestGuardWithCluster(t *testing.T) {
	cluster := known{
		api:      []string{"192.168.7.1:6443"},
		selected: []string{"192.168.7.1:443", "192.168.7.10:443", "192.168.7.11:8080"},
		behind: map[string][]string{
			"10.96.2.1:443": {"192.168.7.1:6443"}, "10.96.2.2:443": {"10.0.0.9:80", "192.168.7.10:10250"}, "10.96.2.3:80": {"100.100.100.200:80"},
			"10.96.2.4:80": {"10.0.0.9:80"}, "10.96.2.5:80": {"[::ffff:127.0.0.1]:80"},
		},
	}
	node := func(a netip.Addr) bool { return a == netip.MustParseAddr("192.168.7.11") }
	for _, c := range []struct {
		name, url, want string
	}{
		{"the API server's own address", "tcp://192.168.7.1:6443", "is the Kubernetes API server"},
		{"its address in another spelling", "tcp://[::ffff:192.168.7.1]:6443", "is the Kubernetes API server"},
		{"the kubelet beside it", "https://192.168.7.1:10250", "a node that the Kubernetes API server runs on"},
		{"a selected Pod in the host network of that node", "https://192.168.7.1:443", ""},
		{"the agent's node", "https://192.168.7.10:10250", "the node the agent runs on"},
		{"a selected Pod in its host network", "https://192.168.7.10:443", ""},
		{"the node's external address", "http://192.168.7.11:10255", "the node the agent runs on"},
		{"a selected Pod at it", "http://192.168.7.11:8080", ""},
		{"the Service of the API server stays refused", "https://10.96.0.1:443", "the Kubernetes API server"},
		{"a Service written by hand for the API server", "https://10.96.2.1:443", "leads to 192.168.7.1, which is the Kubernetes API server"},
		{"one that leads to a kubelet too", "https://10.96.2.2:443", "leads to 192.168.7.10, which is the node"},
		{"one that leads to metadata", "http://10.96.2.3:80", "metadata"},
		{"one that leads to loopback", "http://10.96.2.5:80", "loopback"},
		{"one that leads to a Pod", "http://10.96.2.4:80", ""},
		{"another Service", "http://10.96.3.1:80", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := New(Config{Getenv: pod, Cluster: cluster, Node: node})
			if err != nil {
				t.Fatal(err)
			}
			s, err := Parse(&hubv1.Origin{Url: c.url})
			if err != nil {
				t.Fatal(err)
			}
			s.Declared = true
			wantDenied(t, d, s, c.want)
		})
	}
	t.Run("outside of Kubernetes it counts for nothing", func(t *testing.T) {
		d, err := New(Config{Getenv: laptop, Cluster: cluster, Node: node})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := Parse(&hubv1.Origin{Url: "tcp://192.168.7.1:6443"})
		wantDenied(t, d, s, "")
	})
}

func wantDenied(t *testing.T, d *Dialer, s *Spec, want string) {
	t.Helper()
	addrs, e := d.resolve(t.Context(), s)
	for _, a := range addrs {
		if e == nil {
			e = d.guard.check(s, a.Addr())
		}
	}
	switch {
	case want == "" && e != nil:
		t.Errorf("denied: %v", e)
	case want != "" && e == nil:
		t.Errorf("permitted %v", addrs)
	case want != "" && !strings.Contains(e.Error(), want):
		t.Errorf("%v, want %q", e, want)
	}
}
