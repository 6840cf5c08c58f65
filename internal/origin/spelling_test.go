package origin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// libc resolves numbers as C libraries do: decimal, octal and hexadecimal, with fewer parts too.
func libc(_ context.Context, host string) ([]net.IPAddr, error) {
	known := map[string]string{
		"2852039166": "169.254.169.254", "0xa9fea9fe": "169.254.169.254", "025177524776": "169.254.169.254",
		"0251.0376.0251.0376": "169.254.169.254", "0xa9.0xfe.0xa9.0xfe": "169.254.169.254", "169.254.43518": "169.254.169.254", "169.16689662": "169.254.169.254",
		"169.254.169.254.": "169.254.169.254", "metadata.google.internal.": "169.254.169.254", "instance-data": "169.254.169.254",
		"2130706433": "127.0.0.1", "127.1": "127.0.0.1", "0x7f000001": "127.0.0.1", "017700000001": "127.0.0.1",
	}
	if a, ok := known[strings.ToLower(host)]; ok {
		return []net.IPAddr{{IP: net.ParseIP(a)}}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// Whatever way an address is written, it is judged.
func TestSpellings(t *testing.T) {
	metadata := []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "025177524776", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "169.254.43518", "169.16689662",
		"169.254.169.254.", "metadata.google.internal.", "INSTANCE-DATA",
		"[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::169.254.169.254]", "[64:ff9b:1::a9fe:a9fe]",
		"[::ffff:0:a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[2001:0:1:2:3:4:5601:5601]", "[fd00:ec2::254]", "[fd00:ec2::254%25eth0]", "[fe80::a9fe:a9fe%25eth0]", "[FE80::1]",
		"100.100.100.200", "[::ffff:100.100.100.200]", "168.63.129.16", "192.0.0.192",
	}
	loopback := []string{"127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "2130706433", "127.1", "0x7f000001", "017700000001", "[::1]", "[::ffff:127.0.0.1]", "127.255.255.254", "[::ffff:7f00:1]"}
	for _, c := range []struct {
		name  string
		env   func(string) string
		hosts []string
		want  bool // permitted
	}{
		{"metadata on a laptop", laptop, metadata, false}, {"metadata in a Pod", pod, metadata, false},
		{"loopback in a Pod", pod, loopback, false}, {"loopback on a laptop", laptop, loopback, true},
	} {
		for _, host := range c.hosts {
			t.Run(c.name+" "+host, func(t *testing.T) {
				d, err := New(Config{Getenv: c.env, Lookup: libc})
				if err != nil {
					t.Fatal(err)
				}
				s, err := Parse(&hubv1.Origin{Url: "http://" + host + ":1"})
				if err != nil {
					t.Fatal(err)
				}
				_, err = d.Dial(t.Context(), s, &wirev1.StreamHeader{})
				if denied := reason.Is(err, reason.OriginDenied); denied == c.want {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// A name that answers with another address the second time is judged by what is dialled.
func TestRebinding(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	asked := 0
	d, err := New(Config{Getenv: pod, Lookup: func(context.Context, string) ([]net.IPAddr, error) {
		if asked++; asked == 1 {
			return []net.IPAddr{{IP: net.IPv4(10, 0, 0, 5)}}, nil
		}
		return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := Parse(&hubv1.Origin{Url: "http://rebind.example:" + port})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, first := d.Dial(ctx, spec, &wirev1.StreamHeader{})
	if asked != 1 || reason.Is(first, reason.OriginDenied) {
		t.Errorf("asked %d times, %v", asked, first)
	}
	if _, err := d.Dial(t.Context(), spec, &wirev1.StreamHeader{}); !reason.Is(err, reason.OriginDenied) {
		t.Errorf("got %v, want origin_denied", err)
	}
}

func TestForwardTargets(t *testing.T) {
	for _, c := range []struct {
		name                 string
		env                  func(string) string
		forward, allow, deny []string
		host                 string
		want                 string // part of the detail; "" = permitted
	}{
		{"nothing by default", laptop, nil, nil, nil, "10.0.0.5", "permits no forwards"},
		{"nothing by default, whatever origins may be", laptop, nil, []string{"0.0.0.0/0"}, nil, "10.0.0.5", "permits no forwards"},
		{"named address", laptop, []string{"10.0.0.5"}, nil, nil, "10.0.0.5", ""},
		{"named address and port", laptop, []string{"10.0.0.5:22"}, nil, nil, "10.0.0.5", ""},
		{"another port", laptop, []string{"10.0.0.5:23"}, nil, nil, "10.0.0.5", "no --allow-forward covers"},
		{"network", laptop, []string{"10.0.0.0/8"}, nil, nil, "10.0.0.5", ""},
		{"mapped", laptop, []string{"10.0.0.0/8"}, nil, nil, "::ffff:10.0.0.5", ""},
		{"name", laptop, []string{"*.lan"}, nil, nil, "db.lan", ""},
		{"name below another", laptop, []string{"*.lan"}, nil, nil, "db.lan.example", "no --allow-forward covers"},
		{"denied besides", laptop, []string{"10.0.0.0/8"}, nil, []string{"10.0.0.5"}, "10.0.0.5", "--deny-target"},
		{"not among the targets", laptop, []string{"10.0.0.0/8"}, []string{"10.1.0.0/16"}, nil, "10.0.0.5", "no --allow-target"},
		{"metadata although named", laptop, []string{"0.0.0.0/0", "::/0"}, nil, nil, "169.254.169.254", "link-local or metadata"},
		{"metadata by a named name", laptop, []string{"*.lan"}, nil, nil, "evil.lan", "link-local or metadata"},
		{"API server although named", pod, []string{"0.0.0.0/0"}, nil, nil, "10.96.0.1", "API server"},
		{"API server by name", pod, []string{"*.svc"}, nil, nil, "kubernetes.default.svc", "API server"},
		{"node although named", pod, []string{"0.0.0.0/0"}, nil, nil, "192.168.7.10", "node"},
		{"loopback in a Pod although named", pod, []string{"127.0.0.0/8"}, nil, nil, "127.0.0.1", "loopback"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := New(Config{Allow: c.allow, Deny: c.deny, AllowForward: c.forward, Getenv: c.env, Lookup: func(_ context.Context, host string) ([]net.IPAddr, error) {
				if host == "evil.lan" {
					return []net.IPAddr{{IP: net.IPv4(169, 254, 169, 254)}}, nil
				}
				return []net.IPAddr{{IP: net.IPv4(10, 0, 0, 5)}}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			s := &Spec{Scheme: SchemeTCP, Host: c.host, Port: 22, Forward: true}
			addrs, e := d.resolve(t.Context(), s)
			for _, a := range addrs {
				if e == nil {
					e = d.guard.check(s, a.Addr())
				}
			}
			var got error
			if e != nil {
				got = e
			}
			switch {
			case c.want == "" && got != nil:
				t.Errorf("denied: %v", got)
			case c.want != "" && (!reason.Is(got, reason.OriginDenied) || !strings.Contains(got.Error(), c.want)):
				t.Errorf("got %v, want origin_denied with %q", got, c.want)
			}
		})
	}
}

// FuzzGuard looks at every address for one that is refused in another form.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{"169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:0:a9fe:a9fe", "2001:0:1:2:3:4:5601:5601", "fe80::1%x", "10.0.0.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return
		}
		g, err := newGuard(Config{Getenv: laptop})
		if err != nil {
			t.Fatal(err)
		}
		s := &Spec{Scheme: SchemeTCP, Host: text, Port: 1}
		e := g.check(s, a)
		for _, other := range embedded(a) {
			if o := g.check(s, other); o != nil && e == nil {
				t.Errorf("%v is permitted, %v within it is not", a, other)
			}
		}
		err = g.control(s)("tcp", netip.AddrPortFrom(a, 1).String(), nil)
		if (err != nil) != (e != nil) && !errors.Is(err, e) {
			t.Errorf("%v: %v before the dial, %v at it", a, e, err)
		}
	})
}
