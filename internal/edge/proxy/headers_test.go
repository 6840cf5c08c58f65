package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// mirror is an origin that answers with the headers it got.
func mirror(t *testing.T) string {
	return origin(t, func(w http.ResponseWriter, q *http.Request) { _ = json.NewEncoder(w).Encode(q.Header) })
}

func (r *rig) headers(t *testing.T, version string, h http.Header) http.Header {
	t.Helper()
	req, _ := http.NewRequest("GET", "https://a.example.test/", nil)
	req.Header = h
	res, err := r.client(version).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got http.Header
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatalf("%d: %v", res.StatusCode, err)
	}
	return got
}

func TestForwardedHeaders(t *testing.T) {
	o := mirror(t)
	for _, v := range versions {
		t.Run("I01 what a stranger says about itself is replaced: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", o)
			got := r.headers(t, v, http.Header{
				"X-Forwarded-For": {"10.0.0.1", "10.0.0.2:80"}, "X-Forwarded-Proto": {"gopher"}, "X-Forwarded-Host": {"evil"},
				"X-Real-Ip": {"10.0.0.1"}, "Forwarded": {"for=10.0.0.1"}, "X-Forwarded-Port": {"1"}, "Via": {"1.1 cdn"},
			})
			version := map[string]string{"h1": "1.1", "h2": "2", "h3": "3"}[v]
			for name, want := range map[string]string{
				"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "a.example.test", "X-Real-Ip": "127.0.0.1",
				"Forwarded": `for=127.0.0.1;host="a.example.test";proto=https`, "X-Forwarded-Port": "", "Via": "1.1 cdn, " + version + " adit",
			} {
				if s := strings.Join(got[name], "|"); s != want {
					t.Errorf("%s: %q, want %q", name, s, want)
				}
			}
		})
		t.Run("I04 I05 invariant 8 identity headers never come from a visitor: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", o)
			h := http.Header{}
			for _, n := range []string{
				"X-Adit-User", "X-Adit-Email", "X-Adit-Groups", "X-Adit-Anything", "Adit-Assertion", "X_Adit_User", "x_adit_user",
				"X.Adit.User", "X-Adit_User", "x_adit-email", "Adit_Assertion", "adit.assertion", "X_Forwarded_For", "X.Forwarded.For", "X_Real_IP",
			} {
				h[n] = []string{"admin"}
			}
			h["X_Custom"] = []string{"mine"}
			got := r.headers(t, v, h)
			for n, vs := range got {
				if strings.Contains(strings.Join(vs, ""), "admin") {
					t.Errorf("%s: %v reached the origin", n, vs)
				}
			}
			if got.Get("X_custom") != "mine" {
				t.Errorf("a header of the visitor's own is lost: %v", got)
			}
		})
	}
	t.Run("I01 trusted proxies are walked from right to left", func(t *testing.T) {
		tests := []struct {
			name string
			xff  []string
			want string // X-Forwarded-For; the visitor is its first
		}{
			{"none", nil, "127.0.0.1"},
			{"one", []string{"198.51.100.7"}, "198.51.100.7, 127.0.0.1"},
			{"forged left of it", []string{"10.0.0.1, 198.51.100.7"}, "198.51.100.7, 127.0.0.1"},
			{"several lines", []string{"10.0.0.1", "198.51.100.7, 192.0.2.8"}, "198.51.100.7, 192.0.2.8, 127.0.0.1"},
			{"with ports", []string{"198.51.100.7:1234, [2001:db8::9]:5"}, "2001:db8::9, 127.0.0.1"},
			{"zone", []string{"fe80::1%eth0"}, "fe80::1, 127.0.0.1"},
			{"mapped", []string{"::ffff:198.51.100.7"}, "198.51.100.7, 127.0.0.1"},
			{"garbage ends the walk", []string{"198.51.100.7, unknown, 192.0.2.8"}, "192.0.2.8, 127.0.0.1"},
			{"all trusted", []string{"192.0.2.9, 192.0.2.8"}, "192.0.2.9, 192.0.2.8, 127.0.0.1"},
		}
		r := newRig(t, func(c *Config) {
			c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")}
		})
		r.put("a.example.test", o)
		for _, tt := range tests {
			h := http.Header{"X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"pub.example.com"}, "X-Forwarded-Port": {"8443"}}
			if tt.xff != nil {
				h["X-Forwarded-For"] = tt.xff
			}
			got := r.headers(t, "h1", h)
			visitor, _, _ := strings.Cut(tt.want, ",")
			if got.Get("X-Forwarded-For") != tt.want || got.Get("X-Real-Ip") != visitor {
				t.Errorf("%s: %q, %q", tt.name, got["X-Forwarded-For"], got["X-Real-Ip"])
			}
			if got.Get("X-Forwarded-Proto") != "http" || got.Get("X-Forwarded-Host") != "pub.example.com" || got.Get("X-Forwarded-Port") != "8443" {
				t.Errorf("%s: %v", tt.name, got)
			}
			// I03: the same address in the stream's header (for PROXY) and in the log.
			if a := r.agent.Last().GetVisitorAddress(); tt.name == "none" && !strings.HasPrefix(a, "127.0.0.1:") {
				t.Errorf("stream header %q", a)
			}
			r.giveUpIdle()
		}
	})
	t.Run("I03 invariant 8 one resolved address for headers, log and the agent", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
		r.put("a.example.test", o)
		got := r.headers(t, "h2", http.Header{"X-Forwarded-For": {"198.51.100.7"}})
		if got.Get("X-Real-Ip") != "198.51.100.7" || r.agent.Last().GetVisitorAddress() != "198.51.100.7:0" {
			t.Errorf("header %q, agent %q", got.Get("X-Real-Ip"), r.agent.Last().GetVisitorAddress())
		}
		eventually(t, "the log", func() bool { return strings.Contains(r.logs.String(), `"visitor":"198.51.100.7"`) })
	})
	t.Run("I06 Connection cannot strip what we add", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		res := r.raw(t, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: X-Forwarded-For, X-Real-Ip, Via, Forwarded, X-Forwarded-Proto, X-Mine\r\nX-Mine: 1\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n")
		var got http.Header
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if got.Get("X-Forwarded-For") != "127.0.0.1" || got.Get("Via") == "" || got.Get("Forwarded") == "" || got.Get("X-Forwarded-Proto") != "https" || got.Get("X-Mine") != "" {
			t.Errorf("%v", got)
		}
	})
	t.Run("I05 an identity header as a trailer is refused", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		res := r.raw(t, "POST / HTTP/1.1\r\nHost: a.example.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Adit-User\r\n\r\n0\r\nX-Adit-User: admin\r\n\r\n")
		if res.StatusCode != 400 {
			t.Errorf("status %d", res.StatusCode)
		}
	})
	t.Run("I10 a peer without an IP address", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: r.Proxy} //nolint:gosec // loopback
		go func() { _ = s.Serve(l) }()
		defer s.Close()
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got http.Header
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 || got["X-Forwarded-For"] != nil || got["X-Real-Ip"] != nil || !strings.HasPrefix(got.Get("Forwarded"), "for=unknown;") {
			t.Errorf("%d %v", res.StatusCode, got)
		}
	})
}

// TestOptionsOnEveryPath is R09: there is one code path for one replica and for several, so that
// what a tunnel asks for is there on both.
func TestOptionsOnEveryPath(t *testing.T) {
	o := mirror(t)
	for _, replicas := range []int{1, 3} {
		for _, px := range []string{"", "none", "v1", "v2"} {
			for _, scheme := range []string{"http", "h2c"} {
				t.Run(fmt.Sprintf("R09 proxy_protocol %q, %d replicas, %s", px, replicas, scheme), func(t *testing.T) {
					r := newRig(t)
					url := strings.Replace(o, "http", scheme, 1)
					tn := r.put("a.example.test", url)
					tn.Origins[0].ProxyProtocol = px
					r.putTunnel(tn)
					r.replicate(replicas, url)
					one, two := r.client("h1"), r.client("h1")
					for range 3 {
						get(t, one, "https://a.example.test/")
						get(t, two, "https://a.example.test/")
					}
					opened := r.opened()
					shared := px == "" || px == "none"
					if !shared && opened < 2 {
						t.Errorf("two visitors share %d connection although it names one of them", opened)
					}
					if shared && opened > int64(replicas) {
						t.Errorf("%d connections for requests in sequence", opened)
					}
				})
			}
		}
	}
}

func TestSignedConnections(t *testing.T) {
	// An origin that signs connections in, as NTLM does: who owns the connection is whoever
	// signed in on it first.
	var mu sync.Mutex
	owners := map[string]string{}
	o := origin(t, func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if a, ok := strings.CutPrefix(q.Header.Get("Authorization"), "NTLM "); ok {
			owners[q.RemoteAddr] = a
		}
		if owners[q.RemoteAddr] == "" {
			w.Header().Set("Www-Authenticate", "NTLM")
			w.WriteHeader(401)
			return
		}
		fmt.Fprint(w, owners[q.RemoteAddr])
	})
	ask := func(t *testing.T, c *http.Client, auth string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest("GET", "https://a.example.test/", nil)
		if auth != "" {
			req.Header.Set("Authorization", "NTLM "+auth)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b := make([]byte, 100)
		n, _ := res.Body.Read(b)
		return res.StatusCode, string(b[:n])
	}
	for _, v := range versions {
		t.Run("a signed-in origin connection serves one visitor only: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", o)
			alice, bob, carol := r.client(v), r.client("h1"), r.client(v)
			if s, _ := ask(t, alice, ""); s != 401 {
				t.Fatalf("status %d before sign-in", s)
			}
			ask(t, alice, "alice")
			for range 3 {
				if s, who := ask(t, alice, ""); s != 200 || who != "alice" {
					t.Errorf("alice is %d %q", s, who)
				}
				if s, who := ask(t, bob, ""); s != 401 {
					t.Errorf("bob is %d %q", s, who)
				}
			}
			if _, who := ask(t, carol, "carol"); who != "carol" {
				t.Errorf("carol is %q", who)
			}
			alice.CloseIdleConnections()
			carol.CloseIdleConnections()
			bob.CloseIdleConnections()
			if v != "h3" {
				eventually(t, "the end of their connections", func() bool { return r.agent.Active() <= 1 })
			}
		})
	}
}

func TestWeights(t *testing.T) {
	one := origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "1") })
	two := origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "2") })
	r := newRig(t)
	tn := r.put("a.example.test", one, two)
	tn.Rules[0].Origins = []*hubv1.WeightedOrigin{{Origin: 0, Weight: 1}, {Origin: 1, Weight: 3}, {Origin: 7, Weight: 0}}
	r.putTunnel(proto.Clone(tn).(*hubv1.Tunnel))
	c := r.client("h2")
	n := map[string]int{}
	for range 400 {
		_, b := get(t, c, "https://a.example.test/")
		n[b]++
	}
	if n["1"]+n["2"] != 400 || n["1"] < 60 || n["1"] > 140 {
		t.Errorf("%v, want about 100 to 300", n)
	}
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"a.example.test", "A.B:443", "[::1]:80", "1.2.3.4", "a@b", "", "a b", "ä.de", "a..b", "x:99999", "xn--a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		r := &http.Request{Method: "GET", Host: host, RequestURI: "/", ProtoMajor: 1}
		got, err := requestHost(r)
		if (got == "") == (err == nil) {
			t.Fatalf("%q gives %q and %v", host, got, err)
		}
		if got != strings.ToLower(got) || strings.HasSuffix(got, ".") || strings.ContainsAny(got, ":@/ ") {
			t.Fatalf("%q gives %q", host, got)
		}
	})
}

func FuzzVisitor(f *testing.F) {
	f.Add("10.0.0.1, 192.0.2.1", "192.0.2.1:1")
	f.Add("unknown,,[::1]:4, fe80::1%x", "[2001:db8::1]:2")
	f.Add("", "@")
	f.Fuzz(func(t *testing.T, xff, remote string) {
		trusted := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		r := (&http.Request{Header: http.Header{"X-Forwarded-For": {xff}}, RemoteAddr: remote, Host: "h", TLS: &tls.ConnectionState{}}).WithContext(context.Background())
		v := resolveVisitor(r, trusted)
		if len(v.chain) > 0 {
			for _, a := range v.chain[1:] {
				if !trusted[0].Contains(a) {
					t.Fatalf("%s is behind the visitor %s but not trusted", a, v.String())
				}
			}
			if v.chain[0] != v.addr.Addr() || v.addr.Addr().Zone() != "" || v.addr.Addr().Is4In6() {
				t.Fatalf("visitor %v, chain %v", v.addr, v.chain)
			}
		}
	})
}
