package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/postgres"
	"github.com/adit-dev/adit/test/stack"
)

// startHub starts a hub of a shared database, with an edge of its own.
func startHub(t *testing.T, database, secret string, args ...string) *stack.Server {
	t.Helper()
	https := fmt.Sprintf("127.0.0.1:%d", freeport.One(t))
	return stack.StartServer(t, stack.ServerConfig{
		HTTPS: https, Args: append([]string{"--advertise", https, "--secret-key-file", secret}, args...),
		Env: []string{"ADIT_DATABASE_URL=" + database},
	})
}

// TestHubs: two hubs share a PostgreSQL database. Each answers for both, and either may be killed.
func TestHubs(t *testing.T) {
	database, secret := postgres.URL(t), filepath.Join(t.TempDir(), "secret.key")
	writeFile(t, secret, base64.StdEncoding.EncodeToString(randomBytes(t, 32)))
	a := startHub(t, database, secret)
	b := startHub(t, database, secret)
	app := "app." + stack.Domain
	origin := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }), false)
	check := func(s *stack.Server) error {
		c := s.Client()
		defer c.CloseIdleConnections()
		_, err := getOK(c, s.URL(app, "/"))
		return err
	}
	inv := a.Invite("app", "--hostname", app)

	t.Run("a write is seen by the other hub within a second", func(t *testing.T) {
		begin := time.Now()
		stack.Eventually(t, time.Second, func() error {
			if r := b.CLI("invite", "get", "app"); r.Code != 0 {
				return fmt.Errorf("%s", r.Stderr)
			}
			return nil
		})
		t.Logf("seen after %v", time.Since(begin).Round(time.Millisecond))
	})
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP(app, origin)}})
	t.Run("both say what an agent of one serves", func(t *testing.T) {
		a.WaitOnline(1, app)
		b.WaitOnline(1, app)
	})
	t.Run("both edges carry it", func(t *testing.T) {
		for _, s := range []*stack.Server{a, b} {
			stack.Eventually(t, 20*time.Second, func() error { return check(s) })
		}
	})
	t.Run("an admin key is good at its own hub only", func(t *testing.T) {
		if r := stack.Run(t, nil, "invite", "list", "--server-url", "https://hub."+stack.Domain+":"+a.Port(), "--ca-file", a.CAFile(),
			"--api-key-file", filepath.Join(b.Dir, "admin.key")); r.Code != 3 {
			t.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
	})
	t.Run("kill -9 of either loses no write", func(t *testing.T) {
		for round, victim := range []*stack.Server{a, b} {
			other := b
			if victim == b {
				other = a
			}
			// The agent comes back to an edge that was killed with a pause that grows.
			stack.Eventually(t, 40*time.Second, func() error { return check(other) })
			var mu sync.Mutex
			var stored []string
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for w := range 2 {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						name := fmt.Sprintf("k%d-%d-%d", round, w, i)
						if r := victim.CLI("invite", "create", "--name", name, "--hostname", name+"."+stack.Domain); r.Code == 0 {
							mu.Lock()
							stored = append(stored, name)
							mu.Unlock()
						} else {
							return
						}
					}
				})
			}
			stack.Eventually(t, 30*time.Second, func() error {
				mu.Lock()
				defer mu.Unlock()
				if len(stored) < 8 {
					return fmt.Errorf("%d stored", len(stored))
				}
				return nil
			})
			victim.Kill()
			close(stop)
			wg.Wait()
			list := other.CLI("invite", "list")
			for _, name := range stored {
				if !strings.Contains(list.Stdout, `"`+name+`"`) {
					t.Errorf("%s was acknowledged and is lost", name)
				}
			}
			if err := check(other); err != nil {
				t.Errorf("the other hub's edge: %v", err)
			}
			victim.Restart()
			other.WaitOnline(1, app)
		}
	})
	t.Run("a revocation at one ends sessions at both within 5 s", func(t *testing.T) {
		stack.Eventually(t, 40*time.Second, func() error { return check(b) })
		if r := a.CLI("invite", "revoke", "app"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		stack.Eventually(t, 5*time.Second, func() error {
			if err := check(b); err == nil {
				return fmt.Errorf("the edge of the other hub still serves it")
			}
			return nil
		})
	})
}

// TestStoreAway: a hub whose database refuses it says so in /readyz, and serves again when it is back;
// an edge beside it carries visitors all the time.
func TestStoreAway(t *testing.T) {
	database, secret := postgres.URL(t), filepath.Join(t.TempDir(), "secret.key")
	writeFile(t, secret, base64.StdEncoding.EncodeToString(randomBytes(t, 32)))
	only := startHub(t, database, secret, "--roles", "hub")
	both := startHub(t, database, secret)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	admin, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	allow := func(on bool) {
		t.Helper()
		for _, q := range []string{
			fmt.Sprintf("ALTER DATABASE %s WITH ALLOW_CONNECTIONS %v", name, on),
			fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'", name),
		} {
			if _, err := admin.Exec(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	readyz := func(s *stack.Server) string {
		r, err := http.Get("http://" + s.Admin + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		return r.Status + " " + string(body)
	}
	want := func(s *stack.Server, parts ...string) {
		t.Helper()
		stack.Eventually(t, 15*time.Second, func() error {
			got := readyz(s)
			for _, p := range parts {
				if !strings.Contains(got, p) {
					return fmt.Errorf("/readyz: %s", got)
				}
			}
			return nil
		})
	}
	allow(false)
	want(only, "503", "the store does not answer")
	want(both, "200", "the store does not answer")
	allow(true)
	want(only, "200", `"serving"`)
	want(both, "200", `"serving"`)
	if r := only.CLI("invite", "create", "--name", "again", "--hostname", "again."+stack.Domain); r.Code != 0 {
		t.Error(r.Stderr)
	}
}
