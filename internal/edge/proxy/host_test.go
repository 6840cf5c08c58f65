package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// raw sends bytes over HTTP/1.1 in TLS and returns the answer.
func (r *rig) raw(t *testing.T, request string) *http.Response {
	t.Helper()
	c := r.dialTLS(t)
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return res
}

func TestTargets(t *testing.T) {
	reached := false
	o := origin(t, func(http.ResponseWriter, *http.Request) { reached = true })
	r := newRig(t)
	r.put("a.example.test", o)
	const host = "Host: a.example.test\r\n\r\n"
	tests := []struct {
		name, request string
		status        []int
	}{
		{"R05 OPTIONS *", "OPTIONS * HTTP/1.1\r\n" + host, []int{200, 400}},
		{"R05 GET *", "GET * HTTP/1.1\r\n" + host, []int{400}},
		{"R05 CONNECT", "CONNECT a.example.test:443 HTTP/1.1\r\n" + host, []int{400, 405}},
		{"R05 absolute form", "GET https://a.example.test/ HTTP/1.1\r\n" + host, []int{400}},
		{"R05 empty path", "GET  HTTP/1.1\r\n" + host, []int{400}},
		{"R05 no slash", "GET x HTTP/1.1\r\n" + host, []int{400}},
		{"R06 empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", []int{400}},
		{"R06 no Host", "GET / HTTP/1.1\r\n\r\n", []int{400}},
		{"R06 Host with a space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", []int{400}},
		{"R06 Host with @", "GET / HTTP/1.1\r\nHost: x@a.example.test\r\n\r\n", []int{400}},
		{"R06 Host with a slash", "GET / HTTP/1.1\r\nHost: a.example.test/x\r\n\r\n", []int{400}},
		{"R06 two Hosts", "GET / HTTP/1.1\r\nHost: a.example.test\r\n" + host, []int{400}},
		{"R06 Host differs from the absolute URI", "GET https://a.example.test/ HTTP/1.1\r\nHost: b.example.test\r\n\r\n", []int{400}},
		{"R06 port is no number", "GET / HTTP/1.1\r\nHost: a.example.test:x\r\n\r\n", []int{400}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reached = false
			res := r.raw(t, tt.request)
			ok := false
			for _, s := range tt.status {
				ok = ok || res.StatusCode == s
			}
			if !ok || reached {
				t.Errorf("status %d, want %v; origin reached: %v", res.StatusCode, tt.status, reached)
			}
		})
	}
	for _, h := range []string{"a.example.test", "A.Example.TEST.", "a.example.test:443"} {
		if res := r.raw(t, "GET / HTTP/1.1\r\nHost: "+h+"\r\n\r\n"); res.StatusCode != 200 {
			t.Errorf("Host %q: %d", h, res.StatusCode)
		}
	}
}

func TestPaths(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, q *http.Request) { w.Header().Set("X-Target", q.RequestURI) })
	forbidden := origin(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Admin", "1") })
	r := newRig(t)
	tn := r.put("a.example.test", o, forbidden)
	tn.Rules = append(tn.Rules, &hubv1.Rule{
		Match: &hubv1.Match{PathPrefix: "/admin"}, Origins: []*hubv1.WeightedOrigin{{Origin: 1, Weight: 1}},
	})
	r.putTunnel(tn)
	tests := []struct {
		path, want string // want "" = 400
	}{
		{"/x/", "/x/"},
		{"/x", "/x"},
		{"/a%2Fb", "/a%2Fb"},
		{"/a%2fb%20c?q=%2F", "/a%2fb%20c?q=%2F"},
		{"/fetch/https://example.com/y", "/fetch/https://example.com/y"},
		{"//x//", "//x//"},
		{"/a;v=1/b", "/a;v=1/b"},
		{"/a|b\"c^", "/a|b\"c^"},
		{"/%7Euser", "/%7Euser"},
		{"/a?", "/a?"},
		{"/a?x=1;y=%zz&&=", "/a?x=1;y=%zz&&="},
		{"/administrator", "/administrator"},
		{"/.well-known/x", "/.well-known/x"},
		{"/a/../admin", ""},
		{"/a/%2e%2e/admin", ""},
		{"/a/.%2E/admin", ""},
		{"/a/..;/admin", ""},
		{"/./admin", ""},
		{"/a%2F..%2Fadmin", ""},
		{"//admin", ""},
		{"/%2Fadmin", ""},
		{"/%5Cadmin", ""},
		{"/admin%2Fx", ""},
		{"/admin;x/y", ""},
		{"/;x/admin", ""},
		{"/a%00b", ""},
		{"//.adit/x", ""},
		{"/%2Eadit;/x", ""},
	}
	for _, tt := range tests {
		t.Run("R04 "+tt.path, func(t *testing.T) {
			res := r.raw(t, "GET "+tt.path+" HTTP/1.1\r\nHost: a.example.test\r\n\r\n")
			if tt.want == "" {
				if res.StatusCode != 400 {
					t.Errorf("status %d, admin %q", res.StatusCode, res.Header.Get("X-Admin"))
				}
				return
			}
			if res.StatusCode != 200 || res.Header.Get("X-Target") != tt.want {
				t.Errorf("status %d, origin saw %q", res.StatusCode, res.Header.Get("X-Target"))
			}
		})
	}
	for _, p := range []string{"/admin", "/admin/", "/%61dmin/x"} {
		if res := r.raw(t, "GET "+p+" HTTP/1.1\r\nHost: a.example.test\r\n\r\n"); res.Header.Get("X-Admin") == "" {
			t.Errorf("%s did not reach its rule: %d", p, res.StatusCode)
		}
	}
	for _, p := range []string{"/.adit/", "/.adit", "/.adit/session", "/%2eadit/x"} {
		if res := r.raw(t, "GET "+p+" HTTP/1.1\r\nHost: a.example.test\r\n\r\n"); res.StatusCode != 404 || res.Header.Get("X-Target") != "" {
			t.Errorf("%s: %d", p, res.StatusCode)
		}
	}
}

func TestWrongHost(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	r := newRig(t, func(c *Config) {
		// One certificate for a and b, none of them for c; p is covered but passed through.
		c.Covers = func(sni, host string) bool {
			set := "a.example.test b.example.test p.example.test"
			return strings.Contains(set, sni) && strings.Contains(set, host)
		}
	})
	for _, h := range []string{"a", "b", "c"} {
		r.put(h+".example.test", o)
	}
	p := r.put("p.example.test", o)
	p.Kind = wirev1.Kind_KIND_TLS
	r.putTunnel(p)
	tests := []struct {
		sni, host string
		status    int
	}{
		{"a.example.test", "a.example.test", 200},
		{"A.example.test", "a.example.test.", 200},
		{"a.example.test", "b.example.test", 200},
		{"a.example.test", "c.example.test", 421},
		{"a.example.test", "nowhere.example.test", 421},
		{"a.example.test", "p.example.test", 421}, // passthrough beside it under one certificate
		{"p.example.test", "a.example.test", 421},
		{"nowhere.example.test", "nowhere.example.test", 404},
	}
	for _, tt := range tests {
		t.Run("421 "+tt.sni+" "+tt.host, func(t *testing.T) {
			c, err := tls.Dial("tcp", r.addr, &tls.Config{RootCAs: r.roots, ServerName: tt.sni})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", tt.host)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != tt.status {
				t.Errorf("%v %v, want %d", res, err, tt.status)
			}
		})
	}
	t.Run("421 no server name", func(t *testing.T) {
		c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // no name to verify
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 421 || res.Header.Get("Adit-Error") != "wrong_host" {
			t.Errorf("%v %v", res, err)
		}
	})
	t.Run("a passthrough name in clear", func(t *testing.T) {
		c, err := net.Dial("tcp", r.plain)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: p.example.test\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 421 {
			t.Errorf("%v %v", res, err)
		}
	})
}

func TestAccess(t *testing.T) {
	o := origin(t, func(http.ResponseWriter, *http.Request) { t.Error("the origin was reached") })
	for _, mode := range []*hubv1.Access{nil, {}, {Mode: hubv1.Access_MODE_PROTECTED}, {Mode: 77}} {
		r := newRig(t)
		tn := r.put("a.example.test", o)
		tn.Access = mode
		r.putTunnel(tn)
		t.Run(fmt.Sprintf("invariant 10 nobody gets in with access %v", mode), func(t *testing.T) {
			for _, v := range versions {
				res, _ := get(t, r.client(v), "https://a.example.test/")
				if res.StatusCode != 403 || res.Header.Get("Adit-Error") != "access_denied" {
					t.Errorf("%d %v", res.StatusCode, res.Header)
				}
			}
			res, _, err := r.extended(t, "h3", "websocket")
			if err != nil || res.StatusCode != 403 {
				t.Errorf("extended CONNECT: %v %v", res, err)
			}
		})
	}
}

func TestLoop(t *testing.T) {
	t.Run("R11 a tunnel to itself ends with 508 at the third pass", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", "https://"+r.addr)
		r.agent.Origins = []string{"https://" + r.addr}
		// The fake agent sends no server name; the edge in clear is the same edge.
		r.put("a.example.test", "http://"+r.plain)
		res, _ := get(t, r.client("h1"), "https://a.example.test/")
		if res.StatusCode != 508 || res.Header.Get("Adit-Error") != "loop_detected" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		if n := r.agent.Opened.Load(); n != 2 {
			t.Errorf("%d streams before it was noticed", n)
		}
	})
	t.Run("R11 a service that calls another tunnel is no loop", func(t *testing.T) {
		o := origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "deep") })
		r := newRig(t)
		r.put("b.example.test", "http://unused", o)
		front := origin(t, func(w http.ResponseWriter, q *http.Request) {
			out, _ := http.NewRequest("GET", "http://"+r.plain+"/", nil)
			out.Host = "b.example.test"
			out.Header.Set("Via", q.Header.Get("Via"))
			res, err := http.DefaultClient.Do(out)
			if err == nil {
				_, _ = io.Copy(w, res.Body)
				res.Body.Close()
			}
			http.DefaultClient.CloseIdleConnections()
		})
		tb := r.put("b.example.test", "http://unused", o)
		tb.Rules[0].Origins[0].Origin = 1
		tb.Origins[0].Url = front
		r.putTunnel(tb)
		r.put("a.example.test", front, o)
		r.agent.Origins = []string{front, o}
		if res, b := get(t, r.client("h1"), "https://a.example.test/"); b != "deep" {
			t.Errorf("%d %q", res.StatusCode, b)
		}
	})
}

func TestHostHeader(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, q.Host) })
	for mode, want := range map[string]string{
		"": "a.example.test", "origin": strings.TrimPrefix(o, "http://"), "fixed.internal:81": "fixed.internal:81",
	} {
		r := newRig(t)
		tn := r.put("a.example.test", o)
		tn.Origins[0].HostHeader = mode
		r.putTunnel(tn)
		if _, b := get(t, r.client("h2"), "https://a.example.test/"); b != want {
			t.Errorf("host_header %q: origin saw %q, want %q", mode, b, want)
		}
	}
}

func TestFilters(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Old", "1")
		fmt.Fprintf(w, "%s %s %v %q %q", q.Host, q.RequestURI, q.Header["X-Add"], q.Header.Get("X-Gone"), q.Header.Get("X-Adit-User"))
	})
	r := newRig(t)
	tn := r.put("a.example.test", o)
	tn.Rules = []*hubv1.Rule{
		{
			Match:   &hubv1.Match{PathPrefix: "/api"},
			Origins: []*hubv1.WeightedOrigin{{Weight: 1}},
			Filters: []*hubv1.Filter{
				{Filter: &hubv1.Filter_RequestHeaders{RequestHeaders: &hubv1.HeaderFilter{
					Set: []*hubv1.ValueMatch{{Name: "x-adit-user", Value: "admin"}, {Name: "Transfer-Encoding", Value: "x"}},
					Add: []*hubv1.ValueMatch{{Name: "x-add", Value: "2"}}, Remove: []string{"x-gone", "host"},
				}}},
				{Filter: &hubv1.Filter_ResponseHeaders{ResponseHeaders: &hubv1.HeaderFilter{
					Set: []*hubv1.ValueMatch{{Name: "x-new", Value: "n"}}, Remove: []string{"x-old", "content-length"},
				}}},
				{Filter: &hubv1.Filter_Rewrite{Rewrite: &hubv1.Rewrite{Hostname: "inner", PathPrefix: "/v2"}}},
			},
		},
		{Match: &hubv1.Match{PathPrefix: "/old"}, Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Redirect{
			Redirect: &hubv1.Redirect{PathPrefix: "/new", Status: 301}}}}},
		{Match: &hubv1.Match{PathPrefix: "/none"}},
		{Match: &hubv1.Match{PathPrefix: "/broken"}, Origins: []*hubv1.WeightedOrigin{{Origin: 9, Weight: 1}}},
		{Match: &hubv1.Match{PathPrefix: "/mirror"}, Origins: []*hubv1.WeightedOrigin{{Weight: 1}},
			Filters: []*hubv1.Filter{{Filter: &hubv1.Filter_Mirror{Mirror: &hubv1.Mirror{}}}}},
	}
	r.putTunnel(tn)
	c := r.client("h1")
	req, _ := http.NewRequest("GET", "https://a.example.test/api/a%2Fb?q=1", nil)
	req.Header.Set("X-Add", "1")
	req.Header.Set("X-Gone", "1")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if want := `inner /v2/a%2Fb?q=1 [1 2] "" ""`; string(b) != want {
		t.Errorf("origin saw %s, want %s", b, want)
	}
	if res.Header.Get("X-New") != "n" || res.Header.Get("X-Old") != "" || res.ContentLength != int64(len(b)) {
		t.Errorf("answer %v", res.Header)
	}
	if res, _ := get(t, c, "https://a.example.test/old/x?y=1"); res.StatusCode != 301 || res.Header.Get("Location") != "https://a.example.test/new/x?y=1" {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("Location"))
	}
	for path, want := range map[string]struct {
		status int
		reason string
	}{
		"/none": {500, "origin_unresolved"}, "/broken": {500, "origin_unresolved"}, "/mirror": {500, "internal"}, "/else": {404, "no_route"},
	} {
		if res, _ := get(t, c, "https://a.example.test"+path); res.StatusCode != want.status || res.Header.Get("Adit-Error") != want.reason {
			t.Errorf("%s: %d %s", path, res.StatusCode, res.Header.Get("Adit-Error"))
		}
	}
}
