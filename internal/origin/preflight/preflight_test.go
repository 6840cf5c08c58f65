package preflight

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/test/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const public = "app.example.com"

func checker(t *testing.T, cfg origin.Config) *Checker {
	t.Helper()
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	d, err := origin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return New(d)
}

func httpAsk(url string, change ...func(*hubv1.PreflightAsk)) *hubv1.PreflightAsk {
	a := &hubv1.PreflightAsk{Kind: wirev1.Kind_KIND_HTTP, Hostname: public, Websocket: true, Origin: &hubv1.Origin{Url: url}}
	for _, f := range change {
		f(a)
	}
	return a
}

func noSockets(a *hubv1.PreflightAsk)              { a.Websocket = false }
func ownHost(a *hubv1.PreflightAsk)                { a.Origin.HostHeader = "origin" }
func noVerify(a *hubv1.PreflightAsk)               { a.Origin.InsecureSkipVerify = true }
func noHostname(a *hubv1.PreflightAsk)             { a.Hostname = "" }
func kind(k wirev1.Kind) func(*hubv1.PreflightAsk) { return func(a *hubv1.PreflightAsk) { a.Kind = k } }

func html(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, body)
	}
}

func answer(status int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Add(header[i], header[i+1])
		}
		w.WriteHeader(status)
	}
}

// finds runs a check and returns what it found, as "severity id".
func finds(t *testing.T, x *hubv1.PreflightAnswer) (out []string) {
	t.Helper()
	for _, f := range x.GetFindings() {
		out = append(out, f.GetSeverity()+" "+f.GetId())
		if utf8.RuneCountInString(f.GetEvidence()) > maxEvidence {
			t.Errorf("%s: evidence of %d characters", f.GetId(), utf8.RuneCountInString(f.GetEvidence()))
		}
		if f.GetText() == "" || f.GetFixText() == "" {
			t.Errorf("%s has no text or no fix: %v", f.GetId(), f)
		}
	}
	return out
}

// Each finding on a real server, and nothing else found with it.
func TestHTTPFindings(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		change  []func(*hubv1.PreflightAsk)
		want    []string
		working string
		fix     string // of the first finding
	}{
		{"nothing", html("<p>hello"), nil, nil, "visitor", ""},
		{"an API without a page", answer(404), nil, nil, "", ""},
		{"no hostname yet", html("<p>hello"), []func(*hubv1.PreflightAsk){noHostname}, nil, "origin", ""},
		{"tunnel host refused", func(w http.ResponseWriter, r *http.Request) {
			if r.Host == public {
				http.Error(w, "Invalid Host header", http.StatusForbidden)
			}
		}, nil, []string{"error origin_rejects_tunnel_host"}, "origin", "host_header=origin"},
		{"tunnel host dropped", func(w http.ResponseWriter, r *http.Request) {
			if r.Host == public {
				panic(http.ErrAbortHandler)
			}
		}, nil, []string{"error origin_rejects_tunnel_host"}, "origin", "host_header=origin"},
		{"own host refused", func(w http.ResponseWriter, r *http.Request) {
			if r.Host != public {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
		}, []func(*hubv1.PreflightAsk){ownHost}, []string{"error host_header_breaks_this_origin"}, "visitor", "host_header="},
		{"failing", answer(502), nil, []string{"error origin_request_failed"}, "", "="},
		{"distrusts proxies", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Forwarded-For") != "" {
				w.WriteHeader(http.StatusBadRequest)
			}
		}, nil, []string{"warning origin_request_failed"}, "", "="},
		{"sign-in of its own", answer(401, "WWW-Authenticate", `Basic realm="x"`), nil, []string{"info origin_requires_auth"}, "visitor", "="},
		{"to https", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+r.Host+r.URL.Path, http.StatusMovedPermanently)
		}, nil, []string{"error origin_redirects_to_https"}, "visitor", "="},
		{"to a private address", answer(302, "Location", "http://192.168.1.5/login?token=secret"), nil, []string{"error origin_redirects_to_private_address"}, "visitor", "="},
		{"to itself by name", func(w http.ResponseWriter, r *http.Request) {
			if r.Host == public {
				w.Header().Set("Location", "http://nas.local:5000/")
				w.WriteHeader(http.StatusFound)
			}
		}, nil, []string{"error origin_redirects_to_private_address"}, "visitor", "="},
		{"to a page", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				http.Redirect(w, r, "/start", http.StatusFound)
				return
			}
			html(`<img src="http://10.0.0.9/logo.png">`)(w, r)
		}, nil, []string{"warning page_references_private_address"}, "visitor", "="},
		{"to elsewhere", answer(302, "Location", "https://login.example.org/"), nil, nil, "visitor", ""},
		{"HSTS", answer(200, "Strict-Transport-Security", "max-age=1"), nil, []string{"warning origin_sends_hsts_over_http"}, "visitor", "="},
		{"cookie", answer(200, "Set-Cookie", "sid=verysecret; Domain=old.example.net"), nil, []string{"warning origin_cookie_scoped_elsewhere"}, "visitor", "="},
		{"cookie of the parent", answer(200, "Set-Cookie", "sid=verysecret; Domain=.example.com"), nil, nil, "visitor", ""},
		{"private address in the page", html(`<a href="http://localhost:8080/x?key=verysecret">`), nil, []string{"warning page_references_private_address"}, "visitor", "="},
		{"escaped address in the page", html(`<script>x="http:\/\/nas.lan:80\/"</script>`), nil, []string{"warning page_references_private_address"}, "visitor", "="},
		{"public addresses in the page", html(`<a href="https://app.example.com/"><a href="https://cdn.example.net/">`), nil, nil, "visitor", ""},
		{"referer", func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Referer(), public) {
				w.WriteHeader(http.StatusForbidden)
			}
		}, nil, []string{"error origin_checks_referer"}, "visitor", "="},
		{"sockets", html(`<script>new WebSocket("/live")</script>`), []func(*hubv1.PreflightAsk){noSockets}, []string{"warning origin_wants_websockets"}, "visitor", "websocket=true"},
		{"only sockets", answer(426), []func(*hubv1.PreflightAsk){noSockets}, []string{"warning origin_wants_websockets"}, "visitor", "websocket=true"},
		{"sockets switched on", html(`<script>new WebSocket("/live")</script>`), nil, nil, "visitor", ""},
		{"sockets of its own pages only", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("Upgrade") == "":
			case r.Header.Get("Origin") == "https://"+public:
				w.WriteHeader(http.StatusForbidden)
			default:
				w.Header().Set("Upgrade", "websocket")
				w.Header().Set("Connection", "Upgrade")
				w.WriteHeader(http.StatusSwitchingProtocols)
			}
		}, nil, []string{"error origin_rejects_websocket_origin"}, "visitor", "="},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Errorf("sent a %s", r.Method)
				}
				c.handler(w, r)
			}))
			defer s.Close()
			x := checker(t, origin.Config{}).Check(t.Context(), httpAsk(s.URL, c.change...))
			if got := finds(t, x); !slices.Equal(got, c.want) || !x.GetChecked() || x.GetWorkingHostHeader() != c.working {
				t.Errorf("found %q, working %q, checked %v (%s), want %q and %q\n%v", got, x.GetWorkingHostHeader(), x.GetChecked(), x.GetWhy(), c.want, c.working, x)
			}
			if len(c.want) > 0 && len(x.GetFindings()) > 0 {
				f := x.GetFindings()[0]
				if got := f.GetFixField() + "=" + f.GetFixValue(); got != c.fix {
					t.Errorf("fix %q, want %q", got, c.fix)
				}
			}
			if strings.Contains(x.String(), "secret") {
				t.Errorf("a secret in %v", x)
			}
		})
	}
}

func TestTLSFindings(t *testing.T) {
	plain := httptest.NewServer(html("hello"))
	defer plain.Close()
	secure := httptest.NewTLSServer(html("hello"))
	defer secure.Close()
	secure.Config.ErrorLog = nil
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	h2c := httptest.NewUnstartedServer(html("hello"))
	h2c.Config.Protocols = new(http.Protocols)
	h2c.Config.Protocols.SetUnencryptedHTTP2(true)
	h2c.Start()
	defer h2c.Close()
	at := func(s *httptest.Server, scheme string) string { return scheme + s.URL[strings.Index(s.URL, "://"):] }
	other := func(a *hubv1.PreflightAsk) { a.Origin.ServerName = "other.example" }
	for _, c := range []struct {
		name string
		ask  *hubv1.PreflightAsk
		want []string
		fix  string
	}{
		{"plain HTTP as https", httpAsk(at(plain, "https")), []string{"error origin_is_plaintext"}, "origin=" + plain.URL},
		{"TLS as http", httpAsk(at(secure, "http")), []string{"error origin_wants_https"}, "origin=" + secure.URL},
		{"TLS that is trusted", httpAsk(secure.URL), nil, ""},
		{"TLS for another name", httpAsk(secure.URL, other), []string{"error origin_certificate_not_trusted"}, "insecure_skip_verify=true"},
		{"TLS not verified", httpAsk(secure.URL, other, noVerify), nil, ""},
		{"h2c", httpAsk(at(h2c, "h2c")), nil, ""},
		{"HTTP/1.1 as h2c", httpAsk(at(plain, "h2c")), []string{"error origin_request_failed"}, "origin=" + plain.URL},
		{"passthrough to plain HTTP", httpAsk(at(plain, "tcp"), kind(wirev1.Kind_KIND_TLS)), []string{"error origin_is_plaintext"}, "kind=http"},
		{"passthrough with another's certificate", httpAsk(at(secure, "tcp"), kind(wirev1.Kind_KIND_TLS), func(a *hubv1.PreflightAsk) { a.Hostname = "app.example.net" }), []string{"warning origin_certificate_not_trusted"}, "="},
		{"passthrough", httpAsk(at(secure, "tcp"), kind(wirev1.Kind_KIND_TLS)), nil, ""},
		{"TCP", httpAsk(at(plain, "tcp"), kind(wirev1.Kind_KIND_TCP)), nil, ""},
		{"TCP with TLS", httpAsk(at(secure, "tls"), kind(wirev1.Kind_KIND_TCP)), nil, ""},
		{"TCP with TLS for another name", httpAsk(at(secure, "tls"), kind(wirev1.Kind_KIND_TCP), other), []string{"error origin_certificate_not_trusted"}, "insecure_skip_verify=true"},
		{"TCP with TLS that is none", httpAsk(at(plain, "tls"), kind(wirev1.Kind_KIND_TCP)), []string{"error origin_is_plaintext"}, "origin=" + at(plain, "tcp")},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := checker(t, origin.Config{RootsPEM: roots}).Check(t.Context(), c.ask)
			if got := finds(t, x); !slices.Equal(got, c.want) || !x.GetChecked() {
				t.Errorf("found %q, checked %v (%s), want %q\n%v", got, x.GetChecked(), x.GetWhy(), c.want, x)
			}
			if len(c.want) > 0 && len(x.GetFindings()) > 0 {
				if f := x.GetFindings()[0]; f.GetFixField()+"="+f.GetFixValue() != c.fix {
					t.Errorf("fix %s=%s, want %s", f.GetFixField(), f.GetFixValue(), c.fix)
				}
			}
		})
	}
	t.Run("a certificate that nobody signed, found behind the wrong scheme", func(t *testing.T) {
		x := checker(t, origin.Config{}).Check(t.Context(), httpAsk(at(secure, "http")))
		want := []string{"error origin_wants_https", "error origin_certificate_not_trusted"}
		if got := finds(t, x); !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
}

// silent takes connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, c)
		}
		for _, c := range all {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	_ = l.Close()
	garbage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n")
			_ = c.Close()
		}
	}))
	defer garbage.Close()
	for _, c := range []struct {
		name string
		ask  *hubv1.PreflightAsk
		want []string
	}{
		{"refused", httpAsk("http://" + closed), []string{"error origin_unreachable"}},
		{"refused over TLS", httpAsk("https://" + closed), []string{"error origin_unreachable"}},
		{"refused as TCP", httpAsk("tcp://"+closed, kind(wirev1.Kind_KIND_TCP)), []string{"error origin_unreachable"}},
		{"refused as passthrough", httpAsk("tcp://"+closed, kind(wirev1.Kind_KIND_TLS)), []string{"error origin_unreachable"}},
		{"no such name", httpAsk("http://nowhere.example:80"), []string{"error origin_unreachable"}},
		{"forbidden", httpAsk("http://169.254.169.254"), []string{"error origin_denied"}},
		{"forbidden in another spelling", httpAsk("http://[::ffff:a9fe:a9fe]"), []string{"error origin_denied"}},
		{"forbidden by name", httpAsk("https://metadata.example"), []string{"error origin_denied"}},
		{"forbidden as TCP", httpAsk("tcp://169.254.169.254:80", kind(wirev1.Kind_KIND_TCP)), []string{"error origin_denied"}},
		{"forbidden as UDP", httpAsk("udp://169.254.169.254:80", kind(wirev1.Kind_KIND_UDP)), []string{"error origin_denied"}},
		{"no HTTP", httpAsk(garbage.URL), []string{"error origin_request_failed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := checker(t, origin.Config{Lookup: func(_ context.Context, host string) ([]net.IPAddr, error) {
				if host == "metadata.example" {
					return []net.IPAddr{{IP: net.IPv4(169, 254, 169, 254)}}, nil
				}
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}})
			x := ch.Check(t.Context(), c.ask)
			if got := finds(t, x); !slices.Equal(got, c.want) || !x.GetChecked() {
				t.Errorf("found %q, checked %v (%s), want %q", got, x.GetChecked(), x.GetWhy(), c.want)
			}
		})
	}
}

// What could not be checked is not the same as nothing found.
func TestUnchecked(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  *hubv1.PreflightAsk
		why  string
	}{
		{"UDP", httpAsk("udp://127.0.0.1:9", kind(wirev1.Kind_KIND_UDP)), "UDP"},
		{"no kind", httpAsk("http://127.0.0.1:9", kind(0)), "kind"},
		{"too slow", httpAsk("http://" + silent(t)), "no time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := checker(t, origin.Config{})
			ch.total, ch.each = 200*time.Millisecond, 150*time.Millisecond
			x := ch.Check(t.Context(), c.ask)
			if x.GetChecked() || !strings.Contains(x.GetWhy(), c.why) {
				t.Errorf("checked %v, why %q, want %q", x.GetChecked(), x.GetWhy(), c.why)
			}
		})
	}
	t.Run("one slow answer is a finding", func(t *testing.T) {
		ch := checker(t, origin.Config{})
		ch.each = 100 * time.Millisecond
		x := ch.Check(t.Context(), httpAsk("http://"+silent(t)))
		if got := finds(t, x); !slices.Equal(got, []string{"error origin_request_failed"}) || !x.GetChecked() {
			t.Errorf("found %q, checked %v", got, x.GetChecked())
		}
	})
}

func TestURLs(t *testing.T) {
	s := httptest.NewServer(html("hello"))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	for _, c := range []struct {
		url  string
		want []string
		fix  string
	}{
		{host, []string{"warning url_missing_scheme"}, "origin=" + s.URL},
		{s.URL + "/", []string{"info url_trailing_slash"}, "origin=" + s.URL},
		{s.URL + "/app/", []string{"error url_has_path"}, "origin=" + s.URL},
		{"http://admin:secret@" + host, []string{"error url_embedded_credentials"}, "origin=" + s.URL},
		{"ftp://" + host, []string{"error url_unsupported_scheme"}, "origin="},
		{"tcp://" + host, []string{"error url_unsupported_scheme"}, "origin="},
		{"http://", []string{"error url_invalid"}, "origin="},
		{"http://a:99999", []string{"error url_invalid"}, "origin="},
		{"", []string{"warning url_missing_scheme", "error url_invalid"}, ""},
	} {
		t.Run(c.url, func(t *testing.T) {
			x := checker(t, origin.Config{}).Check(t.Context(), httpAsk(c.url))
			got := finds(t, x)
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Fatalf("found %q, want %q", got, c.want)
			}
			if f := x.GetFindings()[0]; c.fix != "" && f.GetFixField()+"="+f.GetFixValue() != c.fix {
				t.Errorf("fix %s=%s, want %s", f.GetFixField(), f.GetFixValue(), c.fix)
			}
			if strings.Contains(x.String(), "secret") {
				t.Errorf("a secret in %v", x)
			}
		})
	}
}

// A page without an end is read to the limit only.
func TestEndlessBody(t *testing.T) {
	var most atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		for sent := int64(0); r.Context().Err() == nil && sent < 64<<20; {
			n, err := io.WriteString(w, strings.Repeat("x", 4096))
			if err != nil {
				return
			}
			sent += int64(n)
			if sent > most.Load() {
				most.Store(sent)
			}
		}
	}))
	x := checker(t, origin.Config{}).Check(t.Context(), httpAsk(s.URL))
	s.Close()
	if got := finds(t, x); len(got) > 0 || !x.GetChecked() {
		t.Errorf("found %q, checked %v", got, x.GetChecked())
	}
	if n := most.Load(); n > 32<<20 {
		t.Errorf("%d bytes were taken of one body", n)
	}
}

// FuzzPage gives the readers of what origins say whatever bytes there are.
func FuzzPage(f *testing.F) {
	f.Add("http://10.0.0.1:80/", "sid=1; Domain=x", "<a href=\"http://localhost/?k=1\">new WebSocket(", "/login")
	f.Add("a@b://c", "=", "ws:\\/\\/nas.lan", "https://[::1]:0/%zz")
	f.Add("https://u:p@h/%2f?x#y", ";;Domain", "\xff\xfe http://[", "//evil")
	f.Fuzz(func(t *testing.T, url, cookie, body, location string) {
		d, err := origin.New(origin.Config{Deny: []string{"0.0.0.0/0", "::/0"}, Getenv: func(string) string { return "" }, Lookup: func(context.Context, string) ([]net.IPAddr, error) {
			return nil, &net.DNSError{IsNotFound: true}
		}})
		if err != nil {
			t.Fatal(err)
		}
		r := &run{c: New(d), ask: httpAsk(url), out: &hubv1.PreflightAnswer{}, found: map[string]bool{}}
		spec := r.readURL()
		if spec == nil {
			return
		}
		a := &reply{host: public, path: "/", status: 302, body: []byte(body), header: http.Header{
			"Set-Cookie": {cookie}, "Location": {location}, "Content-Type": {"text/html"},
		}}
		r.follow(t.Context(), spec, a)
		r.headers(spec, a)
		r.page(spec, a)
		for _, x := range r.out.GetFindings() {
			if !utf8.ValidString(x.GetEvidence()) || utf8.RuneCountInString(x.GetEvidence()) > maxEvidence {
				t.Errorf("evidence %q", x.GetEvidence())
			}
		}
	})
}

// Every finding is in the reference, and the reference has no other.
func TestReference(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(need.Root(), "docs/reference/preflight.md"))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	files, _ := filepath.Glob("*.go")
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil || strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`r\.add\("([a-z_]+)"`).FindAllSubmatch(src, -1) {
			ids[string(m[1])] = true
		}
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(doc, -1) {
		listed[string(m[1])] = true
	}
	for id := range ids {
		if !listed[id] {
			t.Errorf("%s is not in docs/reference/preflight.md", id)
		}
	}
	for id := range listed {
		if !ids[id] {
			t.Errorf("docs/reference/preflight.md has %s, which is never found", id)
		}
	}
}
