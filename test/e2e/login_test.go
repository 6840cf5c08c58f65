package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// person is somebody with a browser at the hub's pages.
type person struct {
	t    *testing.T
	s    *stack.Server
	http *http.Client
	base string
}

func newPerson(t *testing.T, s *stack.Server) *person {
	t.Helper()
	c := s.Client()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Jar, c.CheckRedirect = jar, nil
	return &person{t: t, s: s, http: c, base: s.URL("hub.localhost", "")}
}

func (p *person) send(method, path string, form url.Values) string {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		p.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	resp, err := p.http.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(page)
}

// TestLogin: a hub is set up by its link, a tool signs in by a code that a person confirms, and acts
// for that person until it signs out or the person is disabled.
func TestLogin(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	s.WaitLog(10*time.Second, "has no owner yet")
	link, err := os.ReadFile(filepath.Join(s.Dir, "setup-link"))
	if err != nil {
		t.Fatalf("no set-up link without a terminal: %v\n%s", err, s.Log())
	}
	if fi, err := os.Stat(filepath.Join(s.Dir, "setup-link")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi, err)
	}
	_, secret, _ := strings.Cut(strings.TrimSpace(string(link)), "#")
	if secret == "" || strings.Contains(s.Log(), secret) {
		t.Fatalf("the link %q has no secret, or the log tells it", link)
	}
	ann := newPerson(t, s)
	if page := ann.send("POST", "/setup", url.Values{"code": {secret}, "name": {"ann"}, "password": {"correct horse"}, "password2": {"correct horse"}}); !strings.Contains(page, "Hello, ann") {
		t.Fatal(page)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "setup-link")); !os.IsNotExist(err) {
		t.Error("the used link is still there:", err)
	}
	if _, code, _ := s.CLI("server", "setup-link", "-o", "json").Problem(t); code != "invalid" {
		t.Errorf("a hub with an owner makes set-up links: %s", code)
	}

	home := t.TempDir()
	env := []string{"HOME=" + home}
	fingerprint := regexp.MustCompile(`"sha256":"([0-9A-F:]+)"`).FindStringSubmatch(s.Log())
	if fingerprint == nil {
		t.Fatal("the server printed no fingerprint")
	}
	if _, code, hint := stack.Run(t, env, "login", ann.base, "-o", "json").Problem(t); code != "unauthenticated" || !strings.Contains(hint, fingerprint[1]) {
		t.Errorf("an unknown CA: %s, %s", code, hint)
	}
	if _, code, _ := stack.Run(t, env, "login", ann.base, "--fingerprint", strings.Repeat("00:", 31)+"00", "-o", "json").Problem(t); code != "unauthenticated" {
		t.Errorf("a wrong fingerprint: %s", code)
	}
	login := stack.Start(t, stack.Command{Name: "login", Env: env, Args: []string{"login", ann.base, "--fingerprint", fingerprint[1], "--client", "laptop"}})
	login.WaitLog(10*time.Second, "/device?code=")
	code := regexp.MustCompile(`code=([A-Z-]+)`).FindStringSubmatch(login.Log())[1]
	if page := ann.send("GET", "/device?code="+code, nil); !strings.Contains(page, "laptop") {
		t.Fatal(page)
	}
	ann.send("POST", "/device", url.Values{"user_code": {code}, "answer": {"approve"}})
	if got := login.Wait(20 * time.Second); got != 0 {
		t.Fatalf("login ended with %d:\n%s", got, login.Log())
	}
	config := filepath.Join(home, ".config", "adit", "config.yaml")
	if fi, err := os.Stat(config); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatal(fi, err)
	}
	var me struct{ Name, Role string }
	stack.Run(t, env, "whoami", "-o", "json").JSON(t, &me)
	if me.Name != "ann" || me.Role != "owner" {
		t.Fatalf("%+v", me)
	}
	if r := stack.Run(t, env, "user", "invite", "bob", "--role", "viewer", "-o", "json"); r.Code != 0 || !strings.Contains(r.Stdout, "/join#") {
		t.Fatalf("what needs a fresh sign-in: %s%s", r.Stdout, r.Stderr)
	}
	if page := ann.send("GET", "/account", nil); !strings.Contains(page, "device from") {
		t.Errorf("the tool is not among the sign-ins:\n%s", page)
	}
	whats := map[string]string{}
	for line := range strings.Lines(s.CLI("audit", "-o", "json").Stdout) {
		var a struct{ Who, What string }
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		whats[a.What] = a.Who
	}
	for _, what := range []string{"set_up", "answer_tool", "sign_in_tool", "UserService/InviteUser"} {
		if whats[what] != "ann" {
			t.Errorf("the audit has %s by %q", what, whats[what])
		}
	}

	if r := stack.Run(t, env, "logout"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	if _, err := os.Stat(config); !os.IsNotExist(err) {
		t.Error("the key is still there")
	}
	if page := ann.send("GET", "/account", nil); strings.Contains(page, "device from") {
		t.Error("the key still counts at the hub")
	}
}
