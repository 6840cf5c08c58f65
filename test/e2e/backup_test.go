package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/postgres"
	"github.com/adit-dev/adit/test/stack"
)

// TestBackup: a backup taken while the hub writes is restored on a machine that has nothing, and
// agents come back with the tokens they have.
func TestBackup(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { backUp(t, nil, nil) })
	t.Run("SQLite to PostgreSQL", func(t *testing.T) {
		backUp(t, nil, []string{"ADIT_DATABASE_URL=" + postgres.URL(t), "ADIT_SECRET_KEY_FILE=" + filepath.Join(t.TempDir(), "secret.key")})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		key := filepath.Join(t.TempDir(), "secret.key")
		writeFile(t, key, base64.StdEncoding.EncodeToString(randomBytes(t, 32)))
		backUp(t, []string{"ADIT_DATABASE_URL=" + postgres.URL(t), "ADIT_SECRET_KEY_FILE=" + key},
			[]string{"ADIT_DATABASE_URL=" + postgres.URL(t), "ADIT_SECRET_KEY_FILE=" + filepath.Join(t.TempDir(), "secret.key")})
	})
}

func backUp(t *testing.T, from, to []string) {
	old := stack.StartServer(t, stack.ServerConfig{Env: from})
	app := "app." + stack.Domain
	origin := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }), false)
	inv := old.Invite("app", "--hostname", app)
	agent := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP(app, origin)}})
	old.WaitOnline(1, app)

	var mu sync.Mutex
	var acked []string
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("load%d", i)
			if r := old.CLI("invite", "create", "--name", name, "--hostname", name+"."+stack.Domain); r.Code == 0 {
				mu.Lock()
				acked = append(acked, name)
				mu.Unlock()
			}
		}
	})
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	stack.Eventually(t, 30*time.Second, func() error {
		if count() < 3 {
			return fmt.Errorf("%d written", count())
		}
		return nil
	})
	before := count()
	file := filepath.Join(t.TempDir(), "adit.tar.gz")
	if r := stack.Run(t, from, "server", "backup", file, "--data-dir", old.Dir); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	close(stop)
	wg.Wait()
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v, %v", fi, err)
	}
	if r := stack.Run(t, from, "server", "backup", file, "--data-dir", old.Dir); r.Code != 2 {
		t.Errorf("a second backup over the first: exit code %d", r.Code)
	}
	if r := stack.Run(t, from, "server", "restore", file, "--data-dir", old.Dir); r.Code == 0 {
		t.Error("restored over a running server")
	}
	old.Kill()

	dir := t.TempDir()
	if r := stack.Run(t, to, "server", "restore", file, "--data-dir", dir); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	if r := stack.Run(t, to, "server", "restore", file, "--data-dir", dir); r.Code == 0 || !strings.Contains(r.Stderr, "not empty") {
		t.Errorf("restored twice: %d %s", r.Code, r.Stderr)
	}
	fresh := stack.StartServer(t, stack.ServerConfig{Dir: dir, HTTPS: old.HTTPS, HTTP: old.HTTP, Env: to})
	fresh.WaitOnline(1, app)
	c := fresh.Client()
	defer c.CloseIdleConnections()
	stack.Eventually(t, 20*time.Second, func() error { _, err := getOK(c, fresh.URL(app, "/")); return err })
	list := fresh.CLI("invite", "list").Stdout
	for _, name := range acked[:before] {
		if !strings.Contains(list, `"`+name+`"`) {
			t.Errorf("%s was written before the backup and is not in it", name)
		}
	}
	if !agent.Alive() {
		t.Error("the agent ended")
	}
}

// TestRotation: agents go on with the tokens they have when the hub gets a new secret key and a new
// identity, and so do its own tools.
func TestRotation(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	app := "app." + stack.Domain
	origin := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }), false)
	inv := s.Invite("app", "--hostname", "*."+stack.Domain)
	first := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP(app, origin)}})
	s.WaitOnline(1, app)
	if r := stack.Run(t, nil, "server", "rotate-secret-key", "--data-dir", s.Dir); r.Code == 0 {
		t.Error("the secret key was rotated under a running server")
	}
	s.Terminate()
	s.Wait(30 * time.Second)
	for _, command := range []string{"rotate-secret-key", "rotate-hub-key", "rotate-ca"} {
		if r := stack.Run(t, nil, "server", command, "--data-dir", s.Dir); r.Code != 0 {
			t.Fatalf("%s: %s", command, r.Stderr)
		}
	}
	s.Restart()
	s.WaitOnline(1, app)
	c := s.Client()
	defer c.CloseIdleConnections()
	stack.Eventually(t, 20*time.Second, func() error { _, err := getOK(c, s.URL(app, "/")); return err })
	// Another process with the old token declares at the hub, which needs its new key believed.
	other := "other." + stack.Domain
	stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP(other, origin)}})
	s.WaitOnline(1, other)
	if !first.Alive() {
		t.Error("the agent ended")
	}
	if ca, err := os.ReadFile(s.CAFile()); err != nil || strings.Count(string(ca), "BEGIN CERTIFICATE") != 2 {
		t.Errorf("ca.crt does not hold both CAs: %v\n%s", err, ca)
	}
	// Without overlap the old token is refused.
	s.Terminate()
	s.Wait(30 * time.Second)
	if r := stack.Run(t, nil, "server", "rotate-hub-key", "--overlap", "0s", "--data-dir", s.Dir); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	s.Restart()
	late := stack.StartAgent(t, inv.File, stack.AgentConfig{Unready: true, Services: []stack.Service{stack.HTTP("late."+stack.Domain, origin)}})
	late.WaitLog(20*time.Second, "not the one this token pins")
}
