package route

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// numbered is a tunnel whose rule i has origin i, which tells rules apart.
func numbered(matches ...*hubv1.Match) *hubv1.Tunnel {
	t := &hubv1.Tunnel{Id: "t", Hostname: "a.example.com"}
	for i, m := range matches {
		t.Origins = append(t.Origins, &hubv1.Origin{Url: fmt.Sprintf("http://o%d:80", i)})
		t.Rules = append(t.Rules, &hubv1.Rule{Match: m, Origins: []*hubv1.WeightedOrigin{{Origin: uint32(i), Weight: 1}}})
	}
	return t
}

func request(method, target string, h ...string) (*http.Request, Path) {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "a.example.com"
	for i := 0; i+1 < len(h); i += 2 {
		r.Header.Add(h[i], h[i+1])
	}
	raw, _, _ := strings.Cut(target, "?")
	p, err := ParsePath(raw)
	if err != nil {
		panic(err)
	}
	return r, p
}

func TestMatch(t *testing.T) {
	tn := numbered(
		nil,
		&hubv1.Match{PathPrefix: "/api"},
		&hubv1.Match{PathPrefix: "/api/v1/"},
		&hubv1.Match{PathExact: "/api/v1/exact"},
		&hubv1.Match{PathPrefix: "/api", Method: "POST"},
		&hubv1.Match{PathPrefix: "/api", Headers: []*hubv1.ValueMatch{{Name: "x-a", Value: "1"}}},
		&hubv1.Match{PathPrefix: "/api", Headers: []*hubv1.ValueMatch{{Name: "x-a", Value: "1"}, {Name: "x-b", Value: "2"}}},
		&hubv1.Match{PathPrefix: "/api", Query: []*hubv1.ValueMatch{{Name: "q", Value: "1"}}},
		&hubv1.Match{PathPrefix: "/caf\u00e9"},
		&hubv1.Match{PathPrefix: "/h", Headers: []*hubv1.ValueMatch{{Name: "host", Value: "A.example.com"}}},
	)
	tests := []struct {
		method, target string
		headers        []string
		want           uint32
	}{
		{"GET", "/", nil, 0},
		{"GET", "/apix", nil, 0},
		{"GET", "/API", nil, 0},
		{"GET", "/api", nil, 1},
		{"GET", "/api/", nil, 1},
		{"GET", "/api/v10", nil, 1},
		{"GET", "/api/v1", nil, 2},
		{"GET", "/api/v1/x", nil, 2},
		{"GET", "/api/v1/exact", nil, 3},
		{"GET", "/api/v1/exact/", nil, 2},
		{"POST", "/api", nil, 4},
		{"POST", "/api", []string{"X-A", "1"}, 4}, // method before headers
		{"GET", "/api", []string{"X-A", "1"}, 5},
		{"GET", "/api", []string{"X-A", "2"}, 1},
		{"GET", "/api", []string{"X-A", "1", "X-B", "2"}, 6},
		{"GET", "/api?q=1", nil, 7},
		{"GET", "/api?q=1", []string{"X-A", "1"}, 5}, // headers before query
		{"GET", "/api?q=2&q=1", nil, 1},
		{"GET", "/caf%C3%A9/x", nil, 8},
		{"GET", "/h", nil, 9},
	}
	for _, tt := range tests {
		r, p := request(tt.method, tt.target, tt.headers...)
		rule, err := Compile(tn).Match(r, p)
		if err != nil {
			t.Errorf("%s %s: %v", tt.method, tt.target, err)
			continue
		}
		if o, err := rule.Origin(nil); err != nil || o != tt.want {
			t.Errorf("%s %s %v: rule %d, %v, want %d", tt.method, tt.target, tt.headers, o, err, tt.want)
		}
	}
	t.Run("R03 the order of rules does not matter", func(t *testing.T) {
		for range 50 {
			order := rand.Perm(len(tn.GetRules()))
			shuffled := &hubv1.Tunnel{Origins: tn.GetOrigins()}
			for _, i := range order {
				shuffled.Rules = append(shuffled.Rules, tn.GetRules()[i])
			}
			rs := Compile(shuffled)
			for _, tt := range tests {
				r, p := request(tt.method, tt.target, tt.headers...)
				rule, _ := rs.Match(r, p)
				if o, _ := rule.Origin(nil); o != tt.want {
					t.Fatalf("%v: %s %s: rule %d, want %d", order, tt.method, tt.target, o, tt.want)
				}
			}
		}
	})
	t.Run("no rule", func(t *testing.T) {
		r, p := request("GET", "/x")
		if _, err := Compile(numbered(&hubv1.Match{PathPrefix: "/y"})).Match(r, p); err == nil || err.Code != reason.NoRoute {
			t.Errorf("%v", err)
		}
		if _, err := Compile(&hubv1.Tunnel{}).Match(r, p); err == nil || err.Code != reason.NoRoute {
			t.Errorf("%v", err)
		}
	})
	t.Run("equal rules: the first wins", func(t *testing.T) {
		r, p := request("GET", "/x")
		rule, _ := Compile(numbered(&hubv1.Match{PathPrefix: "/x"}, &hubv1.Match{PathPrefix: "/x/"})).Match(r, p)
		if o, _ := rule.Origin(nil); o != 0 {
			t.Errorf("rule %d", o)
		}
	})
}

func TestWeights(t *testing.T) {
	tn := &hubv1.Tunnel{
		Origins: []*hubv1.Origin{{Url: "http://a:1"}, {Url: "https://b:1"}, {Url: "tcp://c:1"}},
		Rules:   []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 0, Weight: 2}, {Origin: 1, Weight: 3}, {Origin: 2, Weight: 1}, {Origin: 9, Weight: 1}, {Origin: 1}}}},
	}
	r, p := request("GET", "/")
	rule, err := Compile(tn).Match(r, p)
	if err != nil {
		t.Fatal(err)
	}
	want := []int{0, 0, 1, 1, 1, -1, -1}
	for at, w := range want {
		o, err := rule.Origin(func(n uint64) uint64 {
			if n != uint64(len(want)) {
				t.Errorf("total %d", n)
			}
			return uint64(at)
		})
		if w < 0 {
			if err == nil || err.Code != reason.OriginUnresolved || !err.Untouched {
				t.Errorf("%d: origin %d, %v", at, o, err)
			}
			continue
		}
		if err != nil || int(o) != w {
			t.Errorf("%d: origin %d, %v, want %d", at, o, err, w)
		}
	}
	tn.Rules[0].Origins = []*hubv1.WeightedOrigin{{Origin: 0}, {Origin: 1}}
	rule, _ = Compile(tn).Match(r, p)
	if _, err := rule.Origin(nil); err == nil || err.Code != reason.OriginUnresolved || err.Hop != reason.HopEdge {
		t.Errorf("all weights 0: %v", err)
	}
}

func TestLocation(t *testing.T) {
	prefix := &hubv1.Match{PathPrefix: "/old/"}
	tests := []struct {
		name         string
		match        *hubv1.Match
		rd           *hubv1.Redirect
		scheme, host string
		target       string
		want         string
		status       int
	}{
		{"https", nil, &hubv1.Redirect{Scheme: "https"}, "http", "a.example.com:80", "/x?y", "https://a.example.com/x?y", 302},
		{"same scheme keeps the port", nil, &hubv1.Redirect{Hostname: "b.example.com"}, "https", "a.example.com:8443", "/x", "https://b.example.com:8443/x", 302},
		{"usual ports are not written", nil, &hubv1.Redirect{Port: 443, Scheme: "https"}, "http", "a", "/", "https://a/", 302},
		{"port", nil, &hubv1.Redirect{Port: 444}, "https", "a", "/", "https://a:444/", 302},
		{"status", nil, &hubv1.Redirect{Status: 308, Hostname: "b"}, "https", "a", "/", "https://b/", 308},
		{"odd status", nil, &hubv1.Redirect{Status: 200, Hostname: "b"}, "https", "a", "/", "https://b/", 302},
		{"whole path", nil, &hubv1.Redirect{Path: "/new path"}, "https", "a", "/x/y", "https://a/new%20path", 302},
		{"prefix", prefix, &hubv1.Redirect{PathPrefix: "/new"}, "https", "a", "/old/a%2Fb/", "https://a/new/a%2Fb/", 302},
		{"prefix itself", prefix, &hubv1.Redirect{PathPrefix: "/new"}, "https", "a", "/old", "https://a/new", 302},
		{"prefix with slash", prefix, &hubv1.Redirect{PathPrefix: "/new/"}, "https", "a", "/old/", "https://a/new/", 302},
		{"to the root", prefix, &hubv1.Redirect{PathPrefix: "/"}, "https", "a", "/old", "https://a/", 302},
		{"to the root, below", prefix, &hubv1.Redirect{PathPrefix: "/"}, "https", "a", "/old/x", "https://a/x", 302},
		{"from the root", nil, &hubv1.Redirect{PathPrefix: "/new"}, "https", "a", "/x", "https://a/new/x", 302},
		{"a path is never a host", prefix, &hubv1.Redirect{PathPrefix: "/"}, "https", "a", "/old//evil.example", "https://a//evil.example", 302},
		{"IPv6", nil, &hubv1.Redirect{Scheme: "https"}, "http", "[::1]:80", "/", "https://[::1]/", 302},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tn := &hubv1.Tunnel{Rules: []*hubv1.Rule{{Match: tt.match, Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Redirect{Redirect: tt.rd}}}}}}
			raw, q, _ := strings.Cut(tt.target, "?")
			p, err := ParsePath(raw)
			if err != nil {
				t.Fatal(err)
			}
			rule := Compile(tn).rules[0]
			if rule.Problem() != nil {
				t.Fatal(rule.Problem())
			}
			if got, status := rule.Location(tt.rd, tt.scheme, tt.host, p, q); got != tt.want || status != tt.status {
				t.Errorf("%d %s, want %d %s", status, got, tt.status, tt.want)
			}
		})
	}
}

func TestReadings(t *testing.T) {
	tests := []struct {
		raw  string
		want []string // nil = refused
	}{
		{"/", []string{"/"}},
		{"/x/", []string{"/x/"}},
		{"/a%20b", []string{"/a b"}},
		{"/a%2fb", []string{"/a%2Fb", "/a/b"}},
		{"/a%252Fb", []string{"/a%252Fb"}},
		{"//a", []string{"//a", "/a"}},
		{`/a\b`, []string{`/a\b`, "/a/b"}},
		{"/a;x/b", []string{"/a;x/b", "/a/b"}},
		{"/.hidden/..x/x..", []string{"/.hidden/..x/x.."}},
		{"/a/..", nil}, {"/./a", nil}, {"/%2e%2E/a", nil}, {"/a/..%2fb", nil}, {`/a\..\b`, nil}, {"/..;x/a", nil},
		{"/a%", nil}, {"/a%zz", nil}, {"/%00", nil}, {"", nil}, {"a", nil}, {"*", nil},
	}
	for _, tt := range tests {
		t.Run("R04 "+tt.raw, func(t *testing.T) {
			p, err := ParsePath(tt.raw)
			if (err != nil) != (tt.want == nil) || strings.Join(p.Readings, " ") != strings.Join(tt.want, " ") {
				t.Errorf("%q, %v, want %q", p.Readings, err, tt.want)
			}
		})
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/a/../b", "/%2e%2e/x", "//a//", "/a%2Fb", "/a;x=1/b", `/a\b`, "/a%252e", "/\xff", "/%e4/;/%5c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := ParsePath(raw)
		if err != nil {
			return
		}
		if p.Raw != raw || len(p.Readings) == 0 || len(p.Readings) > 16 {
			t.Fatalf("%q: %q", raw, p)
		}
		for _, r := range p.Readings {
			if !strings.HasPrefix(r, "/") || dotted(r) {
				t.Fatalf("%q reads as %q", raw, r)
			}
		}
		// What a cautious and what a careless server makes of it are among the readings.
		if u, err := url.PathUnescape(raw); err == nil {
			flat := mergeSlashes(dropParameters(strings.ReplaceAll(u, `\`, "/")))
			if !strings.Contains(raw, "%25") && !strings.Contains(strings.Join(p.Readings, "\x00")+"\x00", flat+"\x00") {
				t.Fatalf("%q: the reading %q is missing from %q", raw, flat, p.Readings)
			}
		}
		// Whatever is served below a prefix is below it in every reading, or the request is refused.
		rs := Compile(numbered(nil, &hubv1.Match{PathPrefix: "/admin"}))
		rule, refused := rs.Match(&http.Request{Method: "GET", URL: &url.URL{}}, p)
		if refused == nil {
			for _, r := range p.Readings {
				if below(r, "/admin") != (rule == rs.rules[0]) {
					t.Fatalf("%q: reading %q is served by another rule", raw, r)
				}
			}
		}
	})
}

func FuzzLocation(f *testing.F) {
	f.Add("/old//evil", "a.example.com", "/new", "q=1")
	f.Add("/old/%0d%0aX:1", "a:1", "//x", "")
	f.Add("/old", "[::1", "", "?")
	f.Fuzz(func(t *testing.T, raw, host, prefix, query string) {
		p, err := ParsePath(raw)
		if err != nil || strings.ContainsAny(host, "/?#\\@ \x00") || strings.ContainsAny(query, "\r\n") || strings.ContainsAny(raw, "\r\n?#") {
			return // none of these pass an HTTP server
		}
		rd := &hubv1.Redirect{PathPrefix: prefix, Scheme: "https", Hostname: "b.example.com"}
		tn := &hubv1.Tunnel{Rules: []*hubv1.Rule{{Match: &hubv1.Match{PathPrefix: "/old"}, Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Redirect{Redirect: rd}}}}}}
		got, _ := Compile(tn).rules[0].Location(rd, "https", host, p, query)
		if strings.ContainsAny(got, "\r\n") {
			t.Fatalf("%q splits the header", got)
		}
		if !strings.HasPrefix(got, "https://b.example.com/") && !strings.HasPrefix(got, "https://b.example.com:") {
			t.Fatalf("%q leaves the host", got)
		}
	})
}
