package origin

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

func pod(name string) string {
	return map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOST_IPS": "192.168.7.10,fd00:7::10"}[name]
}

func laptop(string) string { return "" }

func TestGuard(t *testing.T) {
	for _, c := range []struct {
		name        string
		env         func(string) string
		allow, deny []string
		declared    bool
		url         string
		resolves    string // what the host name resolves to, if it is one
		want        string // part of the detail; "" = permitted
	}{
		{"metadata", laptop, nil, nil, true, "http://169.254.169.254:80", "", "link-local or metadata"},
		{"metadata, mapped", laptop, nil, nil, true, "http://[::ffff:169.254.169.254]:80", "", "link-local or metadata"},
		{"metadata, mapped in hex", laptop, nil, nil, true, "http://[::ffff:a9fe:a9fe]:80", "", "link-local or metadata"},
		{"metadata, compatible", laptop, nil, nil, true, "http://[::a9fe:a9fe]:80", "", "link-local or metadata"},
		{"metadata, NAT64", laptop, nil, nil, true, "http://[64:ff9b::a9fe:a9fe]:80", "", "link-local or metadata"},
		{"metadata, 6to4", laptop, nil, nil, true, "http://[2002:a9fe:a9fe::1]:80", "", "link-local or metadata"},
		{"metadata by name", laptop, nil, nil, true, "http://metadata.google.internal:80", "169.254.169.254", "link-local or metadata"},
		{"metadata, number resolved by a C library", laptop, nil, nil, true, "http://2852039166:80", "169.254.169.254", "link-local or metadata"},
		{"metadata over IPv6", laptop, nil, nil, true, "http://[fd00:ec2::254]:80", "", "link-local or metadata"},
		{"metadata over IPv6, long", laptop, nil, nil, true, "http://[fd00:0ec2:0:0:0:0:0:0254]:80", "", "link-local or metadata"},
		{"metadata elsewhere", laptop, nil, nil, true, "http://100.100.100.200:80", "", "link-local or metadata"},
		{"metadata although allowed", laptop, []string{"169.254.0.0/16", "*"}[:1], nil, true, "http://169.254.169.254:80", "", "link-local or metadata"},
		{"link-local", laptop, nil, nil, true, "tcp://169.254.1.1:22", "", "link-local"},
		{"link-local v6 with zone", laptop, nil, nil, true, "tcp://[fe80::1%25eth0]:22", "", "link-local"},
		{"unspecified", laptop, nil, nil, true, "tcp://0.0.0.0:22", "", "write 127.0.0.1"},
		{"unspecified v6", laptop, nil, nil, true, "tcp://[::]:22", "", "write 127.0.0.1"},
		{"this network", laptop, nil, nil, true, "tcp://0.1.2.3:22", "", "no address of a host"},
		{"multicast", laptop, nil, nil, true, "udp://224.0.0.1:22", "", "group"},
		{"broadcast", laptop, nil, nil, true, "udp://255.255.255.255:22", "", "group"},
		{"loopback on a laptop", laptop, nil, nil, false, "tcp://127.0.0.1:22", "", ""},
		{"loopback by name", laptop, nil, nil, false, "tcp://localhost:22", "", ""},
		{"private network", laptop, nil, nil, false, "tcp://10.0.0.5:22", "", ""},
		{"loopback in Kubernetes", pod, nil, nil, false, "tcp://127.0.0.1:22", "", "sidecars"},
		{"loopback in Kubernetes, 127/8", pod, nil, nil, false, "tcp://127.9.9.9:22", "", "sidecars"},
		{"loopback in Kubernetes, mapped", pod, nil, nil, false, "tcp://[::ffff:127.0.0.1]:22", "", "sidecars"},
		{"loopback in Kubernetes by name", pod, nil, nil, false, "tcp://evil.example:22", "127.0.0.1", "sidecars"},
		{"sidecar declared", pod, nil, nil, true, "tcp://127.0.0.1:22", "", ""},
		{"API server", pod, nil, nil, true, "tcp://10.96.0.1:443", "", "API server"},
		{"API server, another port", pod, nil, nil, true, "tcp://10.96.0.1:80", "", "API server"},
		{"API server by alias", pod, nil, nil, true, "tcp://api.example:443", "10.96.0.1", "API server"},
		{"API server by name", pod, nil, nil, true, "tcp://kubernetes.default:443", "10.0.0.1", "API server"},
		{"API server by long name", pod, nil, nil, true, "tcp://Kubernetes.Default.svc.cluster.local.:443", "10.0.0.1", "API server"},
		{"a service called kubernetes-dashboard", pod, nil, nil, true, "tcp://kubernetes-dashboard.default.svc:443", "10.0.0.1", ""},
		{"node", pod, nil, nil, true, "tcp://192.168.7.10:10250", "", "node"},
		{"node over IPv6", pod, nil, nil, true, "tcp://[fd00:7::10]:10250", "", "node"},
		{"service in Kubernetes", pod, nil, nil, false, "tcp://10.0.0.5:22", "", ""},
		{"denied network", laptop, nil, []string{"10.0.0.0/8"}, true, "tcp://10.0.0.5:22", "", "--deny-target 10.0.0.0/8"},
		{"denied network, mapped", laptop, nil, []string{"10.0.0.0/8"}, true, "tcp://[::ffff:10.0.0.5]:22", "", "--deny-target 10.0.0.0/8"},
		{"denied network by name", laptop, nil, []string{"10.0.0.0/8"}, true, "tcp://db.example:22", "10.0.0.5", "--deny-target"},
		{"denied port", laptop, nil, []string{"10.0.0.0/8:22"}, true, "tcp://10.0.0.5:22", "", "--deny-target"},
		{"other port than the denied", laptop, nil, []string{"10.0.0.0/8:22"}, true, "tcp://10.0.0.5:23", "", ""},
		{"denied name", laptop, nil, []string{"*.corp.example"}, true, "tcp://DB.corp.example.:22", "10.0.0.5", "--deny-target"},
		{"denied v6 with port", laptop, nil, []string{"[fd00::1]:80-90"}, true, "tcp://[fd00::1]:85", "", "--deny-target"},
		{"not allowed", laptop, []string{"10.1.0.0/16"}, nil, true, "tcp://10.0.0.5:22", "", "no --allow-target covers 10.0.0.5 port 22"},
		{"allowed network", laptop, []string{"10.1.0.0/16"}, nil, true, "tcp://10.1.0.5:22", "", ""},
		{"allowed name", laptop, []string{"db.example:22"}, nil, true, "tcp://db.example:22", "10.0.0.5", ""},
		{"allowed name, other port", laptop, []string{"db.example:22"}, nil, true, "tcp://db.example:23", "10.0.0.5", "no --allow-target"},
		{"allowed name that turns to metadata", laptop, []string{"db.example"}, nil, true, "tcp://db.example:22", "169.254.169.254", "link-local or metadata"},
		{"deny wins over allow", laptop, []string{"10.0.0.0/8"}, []string{"10.0.0.5"}, true, "tcp://10.0.0.5:22", "", "--deny-target"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := New(Config{Allow: c.allow, Deny: c.deny, Getenv: c.env, Lookup: func(context.Context, string) ([]net.IPAddr, error) {
				return []net.IPAddr{{IP: net.ParseIP(c.resolves)}}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := Parse(&hubv1.Origin{Url: c.url})
			if err != nil {
				t.Fatal(err)
			}
			s.Declared = c.declared
			addrs, e := d.resolve(t.Context(), s)
			for _, a := range addrs {
				if e == nil {
					e = d.guard.check(s, a.Addr())
				}
			}
			switch {
			case c.want == "" && e != nil:
				t.Errorf("denied: %v", e)
			case c.want != "" && e == nil:
				t.Errorf("permitted %v", addrs)
			case c.want != "" && (e.Code != reason.OriginDenied || !e.Untouched || !strings.Contains(e.Detail, c.want)):
				t.Errorf("error %v, want origin_denied with %q", e, c.want)
			}
		})
	}
}

// What is refused is refused at dial as well: an address that changes between lookup and dial
// does not help.
func TestGuardAtDial(t *testing.T) {
	d, err := New(Config{Getenv: laptop})
	if err != nil {
		t.Fatal(err)
	}
	s := &Spec{Scheme: SchemeTCP, Host: "x", Port: 80}
	err = d.guard.control(s)("tcp4", "169.254.169.254:80", nil)
	if !reason.Is(err, reason.OriginDenied) {
		t.Errorf("got %v, want origin_denied", err)
	}
	if err := d.guard.control(s)("tcp6", "[2001:db8::1]:80", nil); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

func TestDialDenied(t *testing.T) {
	d, err := New(Config{Getenv: laptop})
	if err != nil {
		t.Fatal(err)
	}
	s := &Spec{Scheme: SchemeTCP, Host: "169.254.169.254", Port: 80}
	if _, err := d.Dial(t.Context(), s, &wirev1.StreamHeader{}); !reason.Is(err, reason.OriginDenied) {
		t.Errorf("Dial: %v, want origin_denied", err)
	}
	if _, err := d.DialUDP(t.Context(), &Spec{Scheme: SchemeUDP, Host: "169.254.169.254"}, 80); !reason.Is(err, reason.OriginDenied) {
		t.Errorf("DialUDP: %v, want origin_denied", err)
	}
}

func TestPatternErrors(t *testing.T) {
	for _, text := range []string{"", "*", "a/b", "10.0.0.0/40", "host:0", "host:9-2", "host:x", "*.*.x", "::ffff:10.0.0.0/104"} {
		if _, err := New(Config{Allow: []string{text}}); err == nil || !strings.Contains(err.Error(), "allow-target") {
			t.Errorf("%q: %v, want an error that names allow-target", text, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		origin *hubv1.Origin
		want   string
	}{
		{&hubv1.Origin{Url: "http://a"}, "http://a:80"},
		{&hubv1.Origin{Url: "https://a/"}, "https://a:443"},
		{&hubv1.Origin{Url: "tls://[::1]:9", ProxyProtocol: "v2"}, "tls://[::1]:9"},
		{&hubv1.Origin{Url: "udp://a:0"}, "udp://a"},
		{&hubv1.Origin{Url: "tcp://a"}, ""},
		{&hubv1.Origin{Url: "tcp://a:0"}, ""},
		{&hubv1.Origin{Url: "tcp://:80"}, ""},
		{&hubv1.Origin{Url: "ftp://a:80"}, ""},
		{&hubv1.Origin{Url: "http://u@a:80"}, ""},
		{&hubv1.Origin{Url: "http://a:80/x"}, ""},
		{&hubv1.Origin{Url: "a:80"}, ""},
		{&hubv1.Origin{Url: ""}, ""},
		{&hubv1.Origin{Url: "tcp://a:99999"}, ""},
		{&hubv1.Origin{Url: "tcp://a:80", ProxyProtocol: "v3"}, ""},
	} {
		s, err := Parse(c.origin)
		if (err == nil) != (c.want != "") || err == nil && s.String() != c.want {
			t.Errorf("%v: %v, %v, want %q", c.origin, s, err, c.want)
		}
	}
}

func FuzzTarget(f *testing.F) {
	f.Add("10.0.0.0/8:1-2", "http://[::ffff:169.254.169.254]:80")
	f.Add("[fd00::1]:80", "tcp://169.254.169.254:1")
	f.Add("*.x:9", "udp://[fe80::1%25e]:0")
	f.Fuzz(func(t *testing.T, pattern, url string) {
		_, _ = parsePattern(pattern)
		s, err := Parse(&hubv1.Origin{Url: url})
		if err != nil {
			return
		}
		g, err := newGuard(Config{Getenv: laptop})
		if err != nil {
			t.Fatal(err)
		}
		a, err := netip.ParseAddr(s.Host)
		if err != nil {
			return
		}
		v4 := a.Unmap()
		if v4.IsLinkLocalUnicast() && g.check(s, a) == nil {
			t.Errorf("link-local %v is permitted", a)
		}
	})
}
