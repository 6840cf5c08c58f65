package dashboard

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a hub's pages over TLS, as browsers see them.
type site struct {
	*httptest.Server
	t   *testing.T
	hub *hub.Hub
}

func newSite(t *testing.T) *site {
	t.Helper()
	h, err := hub.New(t.Context(), hub.Config{DataDir: t.TempDir(), Domain: "example.com", URL: "https://hub.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, hub: h, Server: httptest.NewTLSServer(New(h))}
	t.Cleanup(func() { s.Close(); _ = h.Close() })
	return s
}

// browser keeps cookies and sends what browsers do.
type browser struct {
	s      *site
	client *http.Client
	// site is Sec-Fetch-Site of its forms.
	site string
}

func (s *site) browser() *browser {
	jar, _ := cookiejar.New(nil)
	c := *s.Client()
	c.Jar = jar
	return &browser{s: s, client: &c, site: "same-origin"}
}

func (b *browser) do(r *http.Request) (int, string) {
	b.s.t.Helper()
	resp, err := b.client.Do(r)
	if err != nil {
		b.s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if got := resp.Header.Get(name); !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
			b.s.t.Errorf("%s: %s is %q", r.URL.Path, name, got)
		}
	}
	return resp.StatusCode, string(body)
}

func (b *browser) get(path string) (int, string) {
	b.s.t.Helper()
	r, _ := http.NewRequestWithContext(b.s.t.Context(), "GET", b.s.URL+path, nil)
	return b.do(r)
}

func (b *browser) post(path string, form ...string) (int, string) {
	b.s.t.Helper()
	v := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		v.Set(form[i], form[i+1])
	}
	r, _ := http.NewRequestWithContext(b.s.t.Context(), "POST", b.s.URL+path, strings.NewReader(v.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if b.site != "" {
		r.Header.Set("Sec-Fetch-Site", b.site)
	}
	return b.do(r)
}

func secretOf(link string) string {
	_, s, _ := strings.Cut(link, "#")
	return s
}

// owner sets the hub up and returns the owner's browser.
func (s *site) owner() *browser {
	s.t.Helper()
	link, _, err := s.hub.SetUpLink(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	b := s.browser()
	if code, body := b.post("/setup", "code", secretOf(link), "name", "ann", "password", "correct horse", "password2", "correct horse"); code != 200 || !strings.Contains(body, "Hello, ann") {
		s.t.Fatal(code, body)
	}
	return b
}

func TestSetUp(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	if code, _ := b.get("/setup"); code != 404 {
		t.Errorf("a set-up page without a link: %d", code)
	}
	link, _, err := s.hub.SetUpLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if code, body := b.get("/setup"); code != 200 || !strings.Contains(body, `src="/static/link.js"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := b.get("/static/link.js"); code != 200 || !strings.Contains(body, "location.hash") {
		t.Errorf("%d %s", code, body)
	}
	good := []string{"code", secretOf(link), "name", "ann", "password", "correct horse", "password2", "correct horse"}
	for what, form := range map[string][]string{
		"a wrong link":         {"code", "nothing", "name", "ann", "password", "correct horse", "password2", "correct horse"},
		"a short password":     {"code", secretOf(link), "name", "ann", "password", "short", "password2", "short"},
		"passwords differ":     {"code", secretOf(link), "name", "ann", "password", "correct horse", "password2", "correct cow"},
		"a name with a space":  {"code", secretOf(link), "name", "a b", "password", "correct horse", "password2", "correct horse"},
		"from another address": nil,
	} {
		x := s.browser()
		if form == nil {
			x.site, form = "same-site", good // a page of a tunnel
		}
		if code, body := x.post("/setup", form...); code < 400 || !strings.Contains(body, `role="alert"`) {
			t.Errorf("%s: %d %s", what, code, body)
		} else if strings.Contains(body, "correct horse") {
			t.Errorf("%s: the password is shown again", what)
		}
	}
	if code, body := b.post("/setup", "code", link, "name", "ann", "password", "correct horse", "password2", "correct horse"); code != 200 || !strings.Contains(body, "Hello, ann") {
		t.Fatal(code, body)
	}
	if code, _ := s.browser().post("/setup", good...); code < 400 {
		t.Error("a set-up link worked twice")
	}
	if code, _ := b.get("/setup"); code != 404 {
		t.Errorf("the set-up page is still there: %d", code)
	}
}

func TestSameOrigin(t *testing.T) {
	s := newSite(t)
	s.owner()
	for what, c := range map[string]struct {
		site, origin string
		ok           bool
	}{
		"a tunnel's page":                {"same-site", "", false},
		"a stranger's page":              {"cross-site", "", false},
		"an address typed":               {"none", "", false},
		"an old browser":                 {"", s.URL, true},
		"an old browser at another site": {"", "https://app.example.com", false},
		"no word of where it is from":    {"", "", false},
		"a liar about its origin":        {"same-site", s.URL, false},
		"our own page":                   {"same-origin", s.URL, true},
	} {
		b := s.browser()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/sign-in", strings.NewReader("name=ann&password=correct+horse"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		code, body := b.do(r)
		if ok := code == 200 && strings.Contains(body, "Hello, ann"); ok != c.ok {
			t.Errorf("%s: %d", what, code)
		}
	}
}

func TestSignIn(t *testing.T) {
	s := newSite(t)
	ann := s.owner()
	b := s.browser()
	t.Run("who is not signed in is asked to, and comes back", func(t *testing.T) {
		code, body := b.get("/account")
		if code != 200 || !strings.Contains(body, `name="next" value="/account"`) {
			t.Fatal(code, body)
		}
		if code, body := b.post("/sign-in", "name", "ann", "password", "wrong horse"); code != 401 || !strings.Contains(body, `value="ann"`) {
			t.Fatal(code, body)
		}
		if code, body := b.post("/sign-in", "name", "Ann", "password", "correct horse", "next", "/account"); code != 200 || !strings.Contains(body, "Your account") {
			t.Fatal(code, body)
		}
	})
	t.Run("next leads nowhere else", func(t *testing.T) {
		for _, next := range []string{"https://evil.example/", "//evil.example/", `/\evil.example`, "evil", "javascript:alert(1)"} {
			if got := nextPage(next); got != "/" {
				t.Errorf("%s leads to %s", next, got)
			}
		}
	})
	t.Run("keys are shown once", func(t *testing.T) {
		code, body := b.post("/account/keys", "name", "ci", "scopes", "tunnels:read")
		key := regexp.MustCompile(`adit_key_[A-Za-z0-9_-]+`).FindString(body)
		if code != 200 || len(key) < 40 {
			t.Fatal(code, body)
		}
		if _, body := b.get("/account"); strings.Contains(body, key) || !strings.Contains(body, "<strong>ci</strong>") {
			t.Fatal("the key is shown again, or not listed")
		}
		if code, body := b.post("/account/keys", "name", "ci", "scopes", "tunnels:read"); code < 400 || !strings.Contains(body, `role="alert"`) {
			t.Fatal(code, body)
		}
	})
	t.Run("a new password ends the other browser's sign-in", func(t *testing.T) {
		if code, body := b.post("/account/password", "old", "correct horse", "password", "battery staple", "password2", "battery staple"); code != 200 || !strings.Contains(body, "Your account") {
			t.Fatal(code, body)
		}
		if _, body := ann.get("/"); !strings.Contains(body, "<h1>Sign in</h1>") {
			t.Fatal("the other browser is still signed in")
		}
		if _, body := b.get("/"); !strings.Contains(body, "Hello, ann") {
			t.Fatal("this browser is not signed in any more")
		}
	})
	t.Run("sign out everywhere", func(t *testing.T) {
		other := s.browser()
		if code, _ := other.post("/sign-in", "name", "ann", "password", "battery staple"); code != 200 {
			t.Fatal(code)
		}
		if _, body := b.post("/sign-out", "everywhere", "1"); !strings.Contains(body, "<h1>Sign in</h1>") {
			t.Fatal(body)
		}
		if _, body := other.get("/"); !strings.Contains(body, "<h1>Sign in</h1>") {
			t.Fatal("still signed in elsewhere")
		}
	})
}

func TestInvitation(t *testing.T) {
	s := newSite(t)
	s.owner()
	owner := hub.WithActor(t.Context(), &hub.Actor{Name: "local-admin", Role: hub.RoleOwner, Local: true})
	_, link, _, err := s.hub.InviteUser(owner, &hubv1.InviteUserRequest{Name: "bob", Role: hub.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	b := s.browser()
	if code, body := b.get("/join"); code != 200 || !strings.Contains(body, "You were invited") {
		t.Fatal(code, body)
	}
	if code, body := b.post("/join", "code", secretOf(link), "name", "ann", "password", "battery staple", "password2", "battery staple"); code != 409 && code != 400 {
		t.Fatal("a name that is taken:", code, body)
	}
	if code, body := b.post("/join", "code", secretOf(link), "name", "", "password", "battery staple", "password2", "battery staple"); code != 200 || !strings.Contains(body, "Hello, bob") {
		t.Fatal(code, body)
	}
	if code, _ := s.browser().post("/join", "code", secretOf(link), "password", "battery staple", "password2", "battery staple"); code < 400 {
		t.Fatal("an invitation worked twice")
	}
}

func TestNoPage(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/nothing", "/static/", "/static/../pages.html"} {
		if code, body := s.browser().get(path); code != 404 && code != 200 || strings.Contains(body, "define") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestDevice(t *testing.T) {
	s := newSite(t)
	ann := s.owner()
	tool := hub.WithActor(t.Context(), &hub.Actor{From: netip.MustParseAddr("192.0.2.9")})
	begin := func() *hubv1.StartDeviceResponse {
		t.Helper()
		d, err := s.hub.StartDevice(tool, &hubv1.StartDeviceRequest{Client: "laptop", Scopes: []string{"tunnels:read"}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	poll := func(d *hubv1.StartDeviceResponse) *hubv1.PollDeviceResponse {
		t.Helper()
		r, err := s.hub.PollDevice(hub.WithActor(t.Context(), &hub.Actor{}), d.GetDeviceCode())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	d := begin()
	if _, body := s.browser().get("/device?code=" + d.GetUserCode()); !strings.Contains(body, "<h1>Sign in</h1>") {
		t.Fatal("a stranger sees the tool")
	}
	code, body := ann.get("/device?code=" + strings.ToLower(d.GetUserCode()))
	if code != 200 || !strings.Contains(body, d.GetUserCode()) || !strings.Contains(body, "laptop") || !strings.Contains(body, "192.0.2.9") || !strings.Contains(body, "tunnels:read") {
		t.Fatal(code, body)
	}
	if code, body := ann.post("/device", "user_code", d.GetUserCode(), "answer", "approve"); code != 200 || !strings.Contains(body, "signed in") {
		t.Fatal(code, body)
	}
	got := poll(d)
	if got.GetState() != "done" || !strings.HasPrefix(got.GetToken(), "adit_key_") || got.GetKey().GetUser() != "ann" {
		t.Fatal(got)
	}
	a, err := s.hub.Authenticate(t.Context(), got.GetToken(), netip.MustParseAddr("192.0.2.9"))
	if err != nil || a.UserName != "ann" || !a.Fresh(time.Now()) || len(a.Scopes) != 1 {
		t.Fatal(a, err)
	}
	if _, err := s.hub.PollDevice(hub.WithActor(t.Context(), &hub.Actor{}), d.GetDeviceCode()); err == nil || !strings.Contains(err.Error(), "too often") {
		t.Errorf("polled at once again: %v", err)
	}
	if code, _ := ann.get("/device?code=" + d.GetUserCode()); code != 404 {
		t.Errorf("the code is still there: %d", code)
	}
	no := begin()
	if code, body := ann.post("/device", "user_code", no.GetUserCode(), "answer", "deny"); code != 200 || !strings.Contains(body, "Denied") {
		t.Fatal(code, body)
	}
	if got := poll(no); got.GetState() != "denied" || got.GetToken() != "" {
		t.Fatal(got)
	}
	if got := poll(&hubv1.StartDeviceResponse{DeviceCode: "made up"}); got.GetState() != "expired" {
		t.Fatal(got)
	}
	for range 10 {
		ann.get("/device?code=BCDF-GHJK")
	}
	if code, _ := ann.get("/device?code=BCDF-GHJK"); code != 429 {
		t.Errorf("codes can be guessed: %d", code)
	}
	for range 6 {
		_, err = s.hub.StartDevice(tool, &hubv1.StartDeviceRequest{Client: "flood"})
	}
	if err == nil {
		t.Error("one address may have any number of tools wait")
	}
}
