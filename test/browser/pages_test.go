package browser

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/provider"
	"github.com/adit-dev/adit/test/stack"
)

// hub is a server whose pages a test drives.
type hub struct {
	*stack.Server
	host, base, ca string
}

func startHub(t *testing.T, c stack.ServerConfig) *hub {
	t.Helper()
	s := stack.StartServer(t, c)
	base := s.URL("hub.localhost", "")
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return &hub{s, u.Host, strings.TrimSuffix(base, "/"), filepath.Join(s.Dir, "ca.crt")}
}

// setUpLink is the link that a new hub leaves in its folder.
func (h *hub) setUpLink(t *testing.T) string {
	t.Helper()
	h.WaitLog(10*time.Second, "has no owner yet")
	link, err := os.ReadFile(filepath.Join(h.Dir, "setup-link"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(link))
}

func setUp(t *testing.T, h *hub, b *Browser) {
	t.Helper()
	b.Go(h.setUpLink(t))
	b.Type("Your name", "ann")
	b.Type("Password", "correct horse")
	b.Type("The same again", "correct horse")
	b.Keys(kb.Enter)
	b.Sees("Hello, ann")
}

// TestPages: everything a person does at the hub, in a real browser.
func TestPages(t *testing.T) {
	h := startHub(t, stack.ServerConfig{})
	b := Open(t, h.ca, h.host)

	t.Run("set up by the link, by keys alone", func(t *testing.T) {
		b.In(t)
		link := h.setUpLink(t)
		b.Go(link)
		b.Sees("Set up this hub")
		if strings.Contains(b.Where(), "#") {
			t.Errorf("the secret stays in the address: %s", b.Where())
		}
		b.Page("setup")
		// The link's secret is in a field that is not shown; Tab goes through the others.
		b.Type("Your name", "ann")
		b.Keys(kb.Tab + "correct horse" + kb.Tab + "another one")
		b.Expect("status of 400")
		b.Keys(kb.Tab + kb.Enter)
		b.Sees("The passwords differ")
		b.Page("setup-refused")
		b.Type("Password", "correct horse")
		b.Type("The same again", "correct horse")
		b.Keys(kb.Enter)
		b.Sees("Hello, ann")
		b.Page("home")
	})
	t.Run("a used link says so", func(t *testing.T) {
		b.In(t)
		b.Expect("status of 404")
		b.Go(h.base + "/setup")
		b.Sees("That did not work")
		b.Page("gone")
	})
	t.Run("sign out, a wrong password, sign in", func(t *testing.T) {
		b.In(t)
		b.Go(h.base + "/account")
		b.Press("Sign out")
		b.Sees("Sign in")
		b.Go(h.base + "/account")
		b.Wait("/sign-in")
		b.Page("sign-in")
		if id := eval[string](b, "document.activeElement.id"); id != "name" {
			t.Errorf("the focus is at %q", id)
		}
		b.Expect("status of 401")
		b.Keys("ann" + kb.Tab + "wrong horse" + kb.Enter)
		b.Sees("Name or password is wrong")
		b.Page("sign-in-refused")
		b.Type("Password", "correct horse")
		b.Keys(kb.Enter)
		// It comes back to where it was going.
		b.Wait("/account")
		b.Sees("Your account")
	})
	t.Run("the account: key, password, other sign-ins", func(t *testing.T) {
		b.In(t)
		b.Page("account")
		b.Type("Name of a new key", "laptop")
		b.Type("Scopes", "tunnels:read")
		b.Press("Make a key")
		b.Sees("It is shown only now")
		b.Page("new-key")
		key := regexp.MustCompile(`adit_key_\S+`).FindString(b.Text())
		if key == "" {
			t.Fatalf("no key is shown: %s", b.Text())
		}
		b.Go(h.base + "/account")
		if strings.Contains(b.Text(), key) {
			t.Error("the key is shown again")
		}
		other := Open(t, h.ca, h.host)
		other.Go(h.base + "/")
		other.Sees("Sign in")
		other.Keys("ann" + kb.Tab + "correct horse" + kb.Enter)
		other.Sees("Hello, ann")
		b.Go(h.base + "/account")
		b.Press("End")
		b.Wait("/account")
		other.Go(h.base + "/account")
		other.Wait("/sign-in")
		b.Type("Password now", "correct horse")
		b.Type("New password", "a better horse")
		b.Type("The same again", "a better horse")
		b.Press("Change it")
		b.Sees("Your account")
		b.Press("Delete")
		b.Sees("You have none.")
		b.Page("account-again")
	})
	t.Run("an invitation", func(t *testing.T) {
		b.In(t)
		r := h.CLI("user", "invite", "bob", "--role", "viewer", "-o", "json")
		link := regexp.MustCompile(`https://[^"\s]+/join#[^"\s]+`).FindString(r.Stdout)
		if link == "" {
			t.Fatal(r)
		}
		bob := Open(t, h.ca, h.host)
		bob.Go(link)
		bob.Sees("You were invited")
		bob.Page("join")
		bob.Type("Password", "battery staple")
		bob.Type("The same again", "battery staple")
		bob.Keys(kb.Enter)
		bob.Sees("Hello, bob")
		bob.Expect("status of 40")
		bob.Go(link)
		bob.Type("Password", "battery staple")
		bob.Type("The same again", "battery staple")
		bob.Keys(kb.Enter)
		bob.Sees("link")
		bob.Page("join-used")
	})
	t.Run("a tool is signed in by its code", func(t *testing.T) {
		b.In(t)
		env := []string{"HOME=" + t.TempDir()}
		fingerprint := regexp.MustCompile(`"sha256":"([0-9A-F:]+)"`).FindStringSubmatch(h.Log())
		login := stack.Start(t, stack.Command{Name: "login", Env: env, Args: []string{"login", h.base, "--fingerprint", fingerprint[1], "--client", "laptop"}})
		login.WaitLog(10*time.Second, "/device?code=")
		code := regexp.MustCompile(`code=([A-Z-]+)`).FindStringSubmatch(login.Log())[1]
		b.Expect("status of 404")
		b.Go(h.base + "/device")
		b.Page("device-code")
		b.Type("The code that the tool shows", "XXXX-XXXX")
		b.Keys(kb.Enter)
		b.Sees("code")
		b.Type("The code that the tool shows", code)
		b.Keys(kb.Enter)
		b.Sees("Sign this tool in?")
		b.Sees("laptop")
		b.Page("device")
		b.Press("Approve")
		b.Sees("The tool is signed in")
		b.Page("device-done")
		if got := login.Wait(20 * time.Second); got != 0 {
			t.Fatalf("login ended with %d:\n%s", got, login.Log())
		}
	})
	t.Run("a tool is denied, and a password is set anew", func(t *testing.T) {
		b.In(t)
		fingerprint := regexp.MustCompile(`"sha256":"([0-9A-F:]+)"`).FindStringSubmatch(h.Log())
		login := stack.Start(t, stack.Command{Name: "login", Env: []string{"HOME=" + t.TempDir()}, Args: []string{"login", h.base, "--fingerprint", fingerprint[1], "--client", "stranger"}})
		login.WaitLog(10*time.Second, "/device?code=")
		b.Go(h.base + "/device?code=" + regexp.MustCompile(`code=([A-Z-]+)`).FindStringSubmatch(login.Log())[1])
		b.Sees("stranger")
		b.Press("Deny")
		b.Sees("Denied")
		b.Page("device-denied")
		if got := login.Wait(20 * time.Second); got == 0 {
			t.Error("a tool that was denied is signed in")
		}
		link := regexp.MustCompile(`https://[^"\s]+/reset#[^"\s]+`).FindString(h.CLI("user", "reset", "bob", "-o", "json").Stdout)
		bob := Open(t, h.ca, h.host)
		bob.Go(link)
		bob.Sees("Set a new password")
		bob.Page("reset")
		bob.Type("Password", "another staple")
		bob.Type("The same again", "another staple")
		bob.Keys(kb.Enter)
		bob.Sees("Hello, bob")
		b.Go(h.base + "/account")
		b.Press("Sign out everywhere")
		b.Wait("/sign-in")
	})
	t.Run("without scripts", func(t *testing.T) {
		b.In(t)
		r := h.CLI("user", "invite", "carl", "--role", "viewer", "-o", "json")
		link := regexp.MustCompile(`https://[^"\s]+/join#[^"\s]+`).FindString(r.Stdout)
		plain := Open(t, h.ca, h.host)
		plain.Scripts(false)
		plain.Go(link)
		plain.Sees("Without JavaScript paste the whole link here.")
		plain.Type("The link, or what stands behind its #", link)
		plain.Type("Password", "battery staple")
		plain.Type("The same again", "battery staple")
		plain.Keys(kb.Enter)
		plain.Sees("Hello, carl")
		plain.Fine("without scripts")
	})
	t.Run("too many guesses", func(t *testing.T) {
		b.In(t)
		guess := Open(t, h.ca, h.host)
		guess.Expect("status of 401")
		guess.Expect("status of 429")
		guess.Go(h.base + "/sign-in")
		for i := 0; i < 12 && !strings.Contains(guess.Text(), "oo many"); i++ {
			guess.Type("Name", "carl")
			guess.Type("Password", fmt.Sprint("wrong horse ", i))
			guess.Keys(kb.Enter)
		}
		guess.Sees("oo many")
		guess.Page("locked")
	})
	b.Fine("at the end")
}

// TestProvider: people sign in with a real OpenID Connect provider, which sends them to itself and back.
func TestProvider(t *testing.T) {
	https := fmt.Sprintf("127.0.0.1:%d", freeport.One(t))
	base := "https://hub.localhost" + https[strings.LastIndex(https, ":"):]
	issuer := provider.Start(t, base+"/auth/oidc/oidc/callback", provider.User("a", "ann", "ann@example.com", true))
	u, _ := url.Parse(issuer)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hub-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, stack.ServerConfig{HTTPS: https, Args: []string{"--oidc-issuer", issuer, "--oidc-client-id", "adit", "--oidc-client-secret-file", secret}})
	b := Open(t, h.ca, h.host, u.Host)
	b.Expect(u.Host + "/favicon.ico")
	setUp(t, h, b)
	const name = "127.0.0.1"
	b.Go(h.base + "/account")
	b.Press("Link " + name)
	at := func(user string) {
		t.Helper()
		b.Sees("Username")
		eval[bool](b, `(document.querySelector("[name=username]").focus(), true)`)
		b.Keys(user + kb.Tab + provider.Password + kb.Enter)
	}
	at("ann")
	b.Wait("/account")
	b.Sees("ann@example.com")
	b.Press("Sign out")
	b.Sees("Sign in with " + name)
	b.Page("sign-in-with-provider")
	b.Press("Sign in with " + name)
	at("ann")
	b.Wait("/")
	b.Sees("Hello, ann")
	b.Fine("at the end")
}
