package hub

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/provider"
)

var browser = Browser{Address: netip.MustParseAddr("192.0.2.7"), UserAgent: "test"}

// realTime lets the hub's clock be the provider's.
func realTime(c *Config) { c.Now = time.Now }

// visit signs in at the provider as a person does, and returns what it sends the browser back with.
func visit(t *testing.T, address, redirect, user string) url.Values {
	t.Helper()
	jar, _ := cookiejar.New(nil)
	var back url.Values
	c := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), redirect) {
			back = r.URL.Query()
			return http.ErrUseLastResponse
		}
		return nil
	}}
	defer c.CloseIdleConnections()
	resp, err := c.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	login := resp.Request.URL
	resp, err = c.PostForm(login.String(), url.Values{"username": {user}, "password": {provider.Password}, "id": {login.Query().Get("authRequestID")}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if back == nil {
		t.Fatalf("the provider did not send the browser back: %s at %s", resp.Status, resp.Request.URL)
	}
	return back
}

func (h *testHub) provider(p *hubv1.Provider) {
	h.t.Helper()
	if _, err := h.SetProvider(h.t.Context(), p); err != nil {
		h.t.Fatal(err)
	}
}

// addUser stores a user as it is.
func (h *testHub) addUser(u *store.User) *store.User {
	h.t.Helper()
	u.NameKey = strings.ToLower(u.Name)
	if u.ID == "" {
		u.ID = "id-" + u.NameKey
	}
	if err := h.store.Write(h.t.Context(), func(tx *store.Tx) error { return tx.AddUser(u) }); err != nil {
		h.t.Fatal(err)
	}
	return u
}

func TestOIDCSignIn(t *testing.T) {
	h := newTestHub(t, realTime)
	redirect := h.redirectURL("work")
	issuer := provider.Start(t, redirect,
		provider.User("a", "alice", "alice@example.com", true), provider.User("b", "bob", "bob@example.com", false), provider.User("c", "carol", "carol@example.com", true))
	h.provider(&hubv1.Provider{Name: "work", DisplayName: "Work", Issuer: issuer, ClientId: "adit", ClientSecret: "hub-secret"})
	if got := h.SignInProviders(t.Context()); len(got) != 1 || got[0] != (ProviderChoice{"work", "Work"}) {
		t.Fatalf("offered: %v", got)
	}
	in := func(user string) (*Actor, error) {
		t.Helper()
		address, flow, err := h.StartOIDC(t.Context(), "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		in, err := h.FinishOIDC(t.Context(), browser, "work", visit(t, address, redirect, user), flow)
		if err != nil {
			return nil, err
		}
		return h.SignedIn(t.Context(), in.Cookie, browser.Address)
	}
	h.addUser(&store.User{Name: "Alice L", Role: RoleAdmin, Email: "Alice@Example.com", Pending: true})
	h.addUser(&store.User{Name: "Bob", Role: RoleOwner, Email: "bob@example.com", Pending: true})
	t.Run("who was invited with the verified address becomes that user, and stays it", func(t *testing.T) {
		for range 2 {
			if a, err := in("alice"); err != nil || a.UserName != "Alice L" || a.Role != RoleAdmin || !a.Fresh(time.Now()) {
				t.Fatal(a, err)
			}
		}
	})
	t.Run("an address that is not verified counts for nothing", func(t *testing.T) {
		if a, err := in("bob"); err != nil || a.Role != RoleVisitor || a.UserName == "Bob" {
			t.Fatal(a, err)
		}
	})
	t.Run("somebody new is a visitor", func(t *testing.T) {
		if a, err := in("carol"); err != nil || a.Role != RoleVisitor || a.UserName != "carol" {
			t.Fatal(a, err)
		}
	})
	t.Run("a disabled user is refused", func(t *testing.T) {
		err := h.store.Write(t.Context(), func(tx *store.Tx) error {
			u, err := tx.UserNamed("carol")
			if err != nil {
				return err
			}
			u.Disabled = true
			return tx.PutUser(u)
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in("carol"); !reason.Is(err, reason.AccessDenied) {
			t.Fatal(err)
		}
	})
	t.Run("an answer counts once, and in the browser that began", func(t *testing.T) {
		address, flow, err := h.StartOIDC(t.Context(), "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer := visit(t, address, redirect, "alice")
		other := url.Values{"state": {"made-up"}, "code": answer["code"]}
		for what, try := range map[string]func() error{
			"another state": func() error { _, err := h.FinishOIDC(t.Context(), browser, "work", other, flow); return err },
			"no cookie":     func() error { _, err := h.FinishOIDC(t.Context(), browser, "work", answer, ""); return err },
		} {
			if err := try(); !reason.Is(err, reason.Unauthenticated) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := h.FinishOIDC(t.Context(), browser, "work", answer, flow); err != nil {
			t.Fatal(err)
		}
		if _, err := h.FinishOIDC(t.Context(), browser, "work", answer, flow); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("used twice: %v", err)
		}
		// The cookie of another browser burns the flow: whoever sends the victim an answer gets nothing.
		address, flow, err = h.StartOIDC(t.Context(), "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer = visit(t, address, redirect, "alice")
		if _, err := h.FinishOIDC(t.Context(), browser, "work", answer, "of another browser"); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("another browser: %v", err)
		}
		if _, err := h.FinishOIDC(t.Context(), browser, "work", answer, flow); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("after another browser tried: %v", err)
		}
	})
	t.Run("linking needs a young sign-in, and an account belongs to one user", func(t *testing.T) {
		u := h.addUser(&store.User{Name: "dora", Role: RoleViewer})
		dora := &Actor{Name: u.Name, UserID: u.ID, SignedIn: time.Now().Add(-time.Hour)}
		if _, _, err := h.StartOIDC(t.Context(), "work", dora); !reason.Is(err, reason.AccessDenied) {
			t.Fatal(err)
		}
		dora.SignedIn = time.Now()
		address, flow, err := h.StartOIDC(t.Context(), "work", dora)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.FinishOIDC(t.Context(), browser, "work", visit(t, address, redirect, "alice"), flow); !reason.Is(err, reason.NameConflict) {
			t.Fatalf("an account of somebody else was linked: %v", err)
		}
	})
}

// crookedProvider signs what a test wants.
type crookedProvider struct {
	*httptest.Server
	key    jose.SigningKey
	public jose.JSONWebKey
	claims func(nonce string) map[string]any
	nonce  string
}

func newCrookedProvider(t *testing.T) *crookedProvider {
	t.Helper()
	secret, public := rsaKey(t)
	p := &crookedProvider{key: jose.SigningKey{Algorithm: jose.RS256, Key: secret}, public: public}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.public}})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		signer, err := jose.NewSigner(p.key, (&jose.SignerOptions{}).WithHeader("kid", p.public.KeyID))
		if err != nil {
			t.Error(err)
			return
		}
		claims := map[string]any{"iss": p.URL, "aud": "adit", "sub": "1", "exp": time.Now().Add(time.Minute).Unix(), "iat": time.Now().Unix(), "nonce": p.nonce, "email": "x@example.com"}
		for k, v := range p.claims(p.nonce) {
			claims[k] = v
		}
		token, err := jwt.Signed(signer).Claims(claims).Serialize()
		if err != nil {
			t.Error(err)
			return
		}
		answer(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": token})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func TestOIDCFaults(t *testing.T) {
	h := newTestHub(t, realTime)
	p := newCrookedProvider(t)
	h.provider(&hubv1.Provider{Name: "work", Issuer: p.URL, ClientId: "adit", ClientSecret: "s", AdminGroup: "adit-admins"})
	n := 0
	in := func(change map[string]any, more ...string) (*Actor, error) {
		t.Helper()
		address, flow, err := h.StartOIDC(t.Context(), "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" {
			t.Fatalf("no PKCE in %s", address)
		}
		p.nonce, p.claims = q.Get("nonce"), func(string) map[string]any { return change }
		n++
		answer := url.Values{"state": {q.Get("state")}, "code": {fmt.Sprint(n)}}
		for i := 0; i+1 < len(more); i += 2 {
			answer.Set(more[i], more[i+1])
		}
		got, err := h.FinishOIDC(t.Context(), browser, "work", answer, flow)
		if err != nil {
			return nil, err
		}
		return h.SignedIn(t.Context(), got.Cookie, browser.Address)
	}
	for what, change := range map[string]map[string]any{
		"the nonce of another sign-in": {"nonce": "other"},
		"another audience":             {"aud": "somebody"},
		"another issuer":               {"iss": "https://evil.example"},
		"an expired token":             {"exp": time.Now().Add(-time.Hour).Unix()},
	} {
		if a, err := in(change); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("%s: %v, %v", what, a, err)
		}
	}
	if _, err := in(nil, "iss", "https://evil.example"); !reason.Is(err, reason.Unauthenticated) {
		t.Errorf("an answer of another issuer: %v", err)
	}
	if _, err := in(nil, "error", "access_denied"); !reason.Is(err, reason.Unauthenticated) || !strings.Contains(err.Error(), "access_denied") {
		t.Errorf("a refusal: %v", err)
	}
	good := p.key
	p.key.Key, _ = rsaKey(t)
	if _, err := in(nil); !reason.Is(err, reason.Unauthenticated) {
		t.Errorf("signed with another key: %v", err)
	}
	p.key = good

	t.Run("members of the group are admins, until they leave it; owners stay owners", func(t *testing.T) {
		member := map[string]any{"sub": "m", "groups": []string{"other", "adit-admins"}, "preferred_username": "Mia"}
		if a, err := in(member); err != nil || a.Role != RoleAdmin || a.UserName != "mia" {
			t.Fatal(a, err)
		}
		if a, err := in(map[string]any{"sub": "m", "groups": []string{"other"}}); err != nil || a.Role != RoleViewer {
			t.Fatal(a, err)
		}
		if a, err := in(map[string]any{"sub": "m", "groups": "adit-admins"}); err != nil || a.Role != RoleAdmin {
			t.Fatal(a, err)
		}
		err := h.store.Write(t.Context(), func(tx *store.Tx) error {
			u, err := tx.UserNamed("mia")
			if err != nil {
				return err
			}
			u.Role = RoleOwner
			return tx.PutUser(u)
		})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := in(map[string]any{"sub": "m"}); err != nil || a.Role != RoleOwner {
			t.Fatal(a, err)
		}
	})
	t.Run("names are unique", func(t *testing.T) {
		for sub, want := range map[string]string{"x1": "kim"} {
			if a, err := in(map[string]any{"sub": sub, "preferred_username": "Kim"}); err != nil || a.UserName != want {
				t.Fatal(a, err)
			}
		}
		if a, err := in(map[string]any{"sub": "x2", "preferred_username": "kim"}); err != nil || a.UserName != "kim-2" {
			t.Fatal(a, err)
		}
	})
	t.Run("a provider that does not answer is not offered", func(t *testing.T) {
		if got := h.SignInProviders(t.Context()); len(got) != 1 {
			t.Fatal(got)
		}
		h.forgetProvider("work")
		p.Close()
		if got := h.SignInProviders(t.Context()); len(got) != 0 {
			t.Fatal(got)
		}
	})
}

func TestProviderBadInput(t *testing.T) {
	h := newTestHub(t, realTime, func(c *Config) {
		c.OIDC = OIDCSettings{Issuer: "https://login.example.com", ClientID: "x", ClientSecret: "y"}
	})
	p := newCrookedProvider(t)
	for _, c := range []struct {
		field string
		p     *hubv1.Provider
	}{
		{"provider.name", &hubv1.Provider{Name: "A"}},
		{"provider.name", &hubv1.Provider{Name: "oidc", Issuer: p.URL, ClientId: "x"}},
		{"provider.name", &hubv1.Provider{Name: "password", Issuer: p.URL, ClientId: "x"}},
		{"provider.issuer", &hubv1.Provider{Name: "a", Issuer: "login.example.com", ClientId: "x"}},
		{"provider.issuer", &hubv1.Provider{Name: "a", Issuer: "http://login.example.com", ClientId: "x"}},
		{"provider.issuer", &hubv1.Provider{Name: "a", Issuer: p.URL + "/nothing", ClientId: "x", ClientSecret: "y"}},
		{"provider.client_id", &hubv1.Provider{Name: "a", Issuer: p.URL}},
		{"provider.client_secret", &hubv1.Provider{Name: "a", Issuer: p.URL, ClientId: "x"}},
		{"provider.scopes", &hubv1.Provider{Name: "a", Issuer: p.URL, ClientId: "x", Scopes: []string{"email"}}},
	} {
		_, err := h.SetProvider(t.Context(), c.p)
		if pr := wantProblem(t, err, reason.Invalid, c.field); pr.Remedy == "" {
			t.Errorf("%s: no remedy", c.field)
		}
	}
	t.Run("the secret is kept, never told, and does not follow to another issuer", func(t *testing.T) {
		h.provider(&hubv1.Provider{Name: "a", Issuer: p.URL, ClientId: "x", ClientSecret: "s3cret"})
		h.provider(&hubv1.Provider{Name: "a", Issuer: p.URL, ClientId: "x", DisplayName: "A"})
		l, err := h.ListProviders(t.Context())
		if err != nil || len(l) != 2 || !l[0].GetFromSettings() || l[1].GetDisplayName() != "A" || l[1].GetClientSecret() != "" || !strings.HasSuffix(l[1].GetRedirectUrl(), "/auth/oidc/a/callback") {
			t.Fatal(l, err)
		}
		_, err = h.SetProvider(t.Context(), &hubv1.Provider{Name: "a", Issuer: newCrookedProvider(t).URL, ClientId: "x"})
		wantProblem(t, err, reason.Invalid, "provider.client_secret")
		wantProblem(t, h.DeleteProvider(t.Context(), "oidc"), reason.Invalid, "name")
		if err := h.DeleteProvider(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, h.DeleteProvider(t.Context(), "a"), reason.NotFound, "")
	})
}

func rsaKey(t *testing.T) (*rsa.PrivateKey, jose.JSONWebKey) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return k, jose.JSONWebKey{Key: k.Public(), KeyID: "1", Algorithm: string(jose.RS256), Use: "sig"}
}
