package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/test/stack"
)

// TestSecretsOfPeople uses every secret that people are given or give, with debug logs on, and looks for
// each in the logs, the audit and the lists.
func TestSecretsOfPeople(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	secrets := map[string]string{}
	tell := func(name, secret string) string {
		t.Helper()
		if len(secret) < 8 {
			t.Fatalf("no %s: %q", name, secret)
		}
		secrets[name] = secret
		return secret
	}
	file := func(name, secret string) string {
		path := filepath.Join(t.TempDir(), "secret")
		writeFile(t, path, tell(name, secret))
		return path
	}
	s.WaitLog(10*time.Second, "has no owner yet")
	link, err := os.ReadFile(filepath.Join(s.Dir, "setup-link"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(strings.TrimSpace(string(link)), "#")
	ann := newPerson(t, s)
	password := tell("the password", "correct horse battery")
	ann.send("POST", "/setup", url.Values{"code": {tell("the set-up link", code)}, "name": {"ann"}, "password": {password}, "password2": {password}})
	u, err := url.Parse(ann.base)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range ann.http.Jar.Cookies(u) {
		tell("the cookie "+c.Name, c.Value)
	}
	newPerson(t, s).send("POST", "/sign-in", url.Values{"name": {"ann"}, "password": {tell("a wrong password", "wrong horse battery")}})
	var bob struct{ URL string }
	s.CLI("user", "invite", "bob", "--role", "admin").JSON(t, &bob)
	_, code, _ = strings.Cut(bob.URL, "#")
	newPerson(t, s).send("POST", "/join", url.Values{"code": {tell("the invitation", code)}, "password": {password}, "password2": {password}})
	var key struct{ Token string }
	s.CLI("key", "create", "forwards", "--user", "bob", "--scope", "forward").JSON(t, &key)
	tell("the key", key.Token)

	web := serveHTTP(t, named("behind"), false)
	var agent struct{ Token string }
	s.CLI("agents", "create", "home").JSON(t, &agent)
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, tell("the agent's token", agent.Token))
	a := stack.StartAgent(t, token, stack.AgentConfig{Args: []string{"--allow-forward", web}})
	hook := httptest.NewServer(http.NotFoundHandler())
	defer hook.Close()
	for _, args := range [][]string{
		{"tunnel", "create", "app", "http://" + web, "--agent", "home", "--access", "public", "--upstream-user", "adit", "--upstream-password-file", file("the upstream password", "hidden-upstream")},
		{"notice", "set", "hook", "--webhook", hook.URL, "--webhook-secret-file", file("the webhook's secret", "hidden-webhook"), "--kind", "agent_online"},
		{"notice", "set", "mail", "--smtp", "smtp://127.0.0.1:1", "--smtp-user", "adit", "--smtp-password-file", file("the mail password", "hidden-mail"), "--from", "a@example.com", "--to", "b@example.com"},
	} {
		if r := s.CLI(args...); r.Code != 0 {
			t.Fatal(args, r.Stderr)
		}
	}
	stack.Eventually(t, 20*time.Second, func() error { _, err := getOK(s.Client("h1"), s.URL("app.localhost", "/")); return err })
	s.CLI("notice", "test", "hook")
	s.CLI("notice", "test", "mail")
	ticket := useForward(t, s, key.Token, web)
	tell("the forward's ticket", ticket)

	env := []string{"HOME=" + t.TempDir()}
	fingerprint := regexp.MustCompile(`"sha256":"([0-9A-F:]+)"`).FindStringSubmatch(s.Log())
	login := stack.Start(t, stack.Command{Name: "login", Env: env, Args: []string{"login", ann.base, "--fingerprint", fingerprint[1], "--client", "laptop"}})
	login.WaitLog(10*time.Second, "/device?code=")
	user := regexp.MustCompile(`code=([A-Z-]+)`).FindStringSubmatch(login.Log())[1]
	ann.send("POST", "/device", url.Values{"user_code": {user}, "answer": {"approve"}})
	if got := login.Wait(20 * time.Second); got != 0 {
		t.Fatalf("login ended with %d:\n%s", got, login.Log())
	}
	config, err := os.ReadFile(filepath.Join(env[0][len("HOME="):], ".config", "adit", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tell("the tool's key", regexp.MustCompile(`adit_key_\S+`).FindString(string(config)))

	t.Run("O05 what people are given or give is in no log, audit or list", func(t *testing.T) {
		texts := map[string]string{"the server's log": s.Log(), "the agent's log": a.Log()}
		for _, args := range [][]string{
			{"audit", "-o", "json"}, {"events", "-o", "json"}, {"tunnel", "list", "-o", "json"}, {"tunnel", "get", "app", "-o", "json"}, {"agents", "get", "home", "-o", "json"},
			{"notice", "list", "-o", "json"}, {"key", "list", "--all", "-o", "json"}, {"session", "list", "-o", "json"}, {"logs", "home"}, {"user", "list", "-o", "json"},
		} {
			r := s.CLI(args...)
			if r.Code != 0 {
				t.Errorf("%v: %s", args, r.Stderr)
			}
			texts[strings.Join(args, " ")] = r.Stdout
		}
		for where, text := range texts {
			for name, secret := range secrets {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("%s holds %s: …%.160s", where, name, text[max(0, i-80):])
				}
			}
		}
	})
}

// useForward opens a connection to a target through the agent "home" and returns the ticket it used.
func useForward(t *testing.T, s *stack.Server, key, target string) string {
	t.Helper()
	api := hubv1connect.NewAgentServiceClient(s.Client("h2"), s.URL("hub.localhost", ""), connect.WithInterceptors(bearer(key)))
	r, err := api.OpenForward(t.Context(), &hubv1.OpenForwardRequest{Agent: "home", Target: target})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := forward.Dial(t.Context(), r.GetEdges(), r.GetTicket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 64))
	return r.GetTicket()
}

// bearer sends a key with every call.
func bearer(key string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+key)
			return next(ctx, r)
		}
	}
}
