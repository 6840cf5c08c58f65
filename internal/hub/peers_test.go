package hub

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/test/postgres"
)

// postgresEnv has every test of this package use PostgreSQL.
const postgresEnv = "ADIT_TEST_HUB_POSTGRES"

// TestOnPostgreSQL runs all tests of this package again, on PostgreSQL.
func TestOnPostgreSQL(t *testing.T) {
	if os.Getenv(postgresEnv) != "" || testing.Short() {
		return // this is that run
	}
	postgres.URL(t) // is there one?
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=.", "-test.timeout=4m")
	cmd.Env = append(os.Environ(), postgresEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func newSecretKey(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret.key")
	if _, err := identity.LoadOrCreateSecret(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// newTestHubs are hubs on one database, each with a data folder of its own and one clock for all.
func newTestHubs(t *testing.T, n int) []*testHub {
	t.Helper()
	url, key := postgres.URL(t), newSecretKey(t)
	var hubs []*testHub
	for range n {
		h := newTestHub(t, func(c *Config) {
			c.DatabaseURL, c.SecretKeyFile = url, key
			if len(hubs) > 0 {
				c.Now = hubs[0].clock.now
			}
		})
		if len(hubs) > 0 {
			h.clock = hubs[0].clock
		}
		hubs = append(hubs, h)
	}
	return hubs
}

// exchanged has a hub tell and hear the others.
func (h *testHub) exchanged() {
	h.t.Helper()
	if err := h.exchange(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// settle lets every hub hear what every other one heard.
func settle(hubs []*testHub) {
	for range 2 {
		for _, h := range hubs {
			h.exchanged()
		}
	}
}

func TestSeveralHubs(t *testing.T) {
	hubs := newTestHubs(t, 2)
	a, b := hubs[0], hubs[1]
	t.Run("one identity, keys of their own", func(t *testing.T) {
		if !a.Key().Public().Equal(b.Key().Public()) {
			t.Error("two hub keys")
		}
		if a.adminHash == b.adminHash {
			t.Error("one admin.key for two hosts")
		}
	})
	t.Run("one leads", func(t *testing.T) {
		settle(hubs)
		if !a.Leads() || b.Leads() {
			t.Errorf("leads: %v, %v", a.Leads(), b.Leads())
		}
	})
	inv := a.invite_("app", "app.example.com")
	if err := b.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := b.replica(inv)
	id := r.ok(web("app.example.com"))[0]
	session := r.session(id)
	b.report(session)
	if err := a.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle(hubs)
	status := func(h *testHub) *hubv1.TunnelStatus {
		t.Helper()
		s, err := h.GetTunnel(t.Context(), "app.example.com")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("every hub answers for all", func(t *testing.T) {
		for i, h := range hubs {
			if s := status(h); s.GetState() != "online" || s.GetReplicas() != 1 {
				t.Errorf("hub %d: %v", i, s)
			}
			edges, _, err := h.ListEdges(t.Context(), 0, "")
			if err != nil || len(edges) != 1 || edges[0].GetState() != "online" || edges[0].GetSessions() != 1 {
				t.Errorf("hub %d: %v, %v", i, edges, err)
			}
			if x, err := h.GetAgent(t.Context(), "app"); err != nil || x.GetState() != "online" || len(x.GetReplicas()) != 1 {
				t.Errorf("hub %d: %v, %v", i, x, err)
			}
		}
	})
	t.Run("what another hub heard last counts", func(t *testing.T) {
		a.clock.add(5 * time.Second)
		a.edge = b.edge // the edge has moved to the other hub, without a session
		a.report()
		settle(hubs)
		for i, h := range hubs {
			if s := status(h); s.GetReplicas() != 0 {
				t.Errorf("hub %d: %v", i, s)
			}
		}
		a.report(session)
		settle(hubs)
	})
	t.Run("a revocation closes links at every hub", func(t *testing.T) {
		var closed []string
		b.OnRevoke(func(id string) { closed = append(closed, id) })
		other := a.invite_("gone", "gone.example.com")
		if _, err := a.RevokeInvite(t.Context(), other.GetId()); err != nil {
			t.Fatal(err)
		}
		if err := b.refresh(t.Context()); err != nil || len(closed) != 1 || closed[0] != other.GetId() {
			t.Errorf("%v, %v", closed, err)
		}
	})
	t.Run("the leader knows what was declared elsewhere", func(t *testing.T) {
		for range 70 {
			a.clock.add(time.Second)
			a.report(session)
			a.ticked()
			b.ticked()
		}
		if s := status(a); s.GetState() != "online" {
			t.Errorf("%v", s)
		}
		r.declare()
		if err := a.refresh(t.Context()); err != nil || a.feed.get("tunnel/"+id) != nil {
			t.Errorf("a withdrawn tunnel is still there: %v", err)
		}
	})
	t.Run("another one leads when the leader is silent", func(t *testing.T) {
		for range int(peerSilence/time.Second) + 2 {
			a.clock.add(time.Second)
			b.exchanged()
		}
		if !b.Leads() {
			t.Fatal("nobody took over")
		}
		// The old one wakes up and does not know yet.
		err := a.write(t.Context(), func(tx *store.Tx) error { return a.leading(tx) })
		if !errors.Is(err, errNotLeader) || a.Leads() {
			t.Errorf("%v, leads %v", err, a.Leads())
		}
		settle(hubs)
		if a.Leads() || !b.Leads() {
			t.Error("the old leader took the lease back")
		}
	})
	t.Run("or ends", func(t *testing.T) {
		b.leave()
		a.exchanged()
		if !a.Leads() {
			t.Error("nobody took over")
		}
	})
}

func TestHubsStartTogether(t *testing.T) {
	url, key := postgres.URL(t), newSecretKey(t)
	var wg sync.WaitGroup
	hubs := make([]*Hub, 3)
	for i := range hubs {
		dir := t.TempDir()
		wg.Go(func() {
			h, err := New(context.Background(), Config{DataDir: dir, Domain: "example.com", URL: "https://hub.example.com", DatabaseURL: url, SecretKeyFile: key})
			if err != nil {
				t.Error(err)
			}
			hubs[i] = h
		})
	}
	wg.Wait()
	for _, h := range hubs {
		if h == nil {
			t.FailNow()
		}
		defer func() { _ = h.Close() }()
		if !h.Key().Public().Equal(hubs[0].Key().Public()) {
			t.Error("hubs that started together have different keys")
		}
	}
}

func TestSecretKeyOfOthers(t *testing.T) {
	h := newTestHubs(t, 1)[0]
	c := h.cfg
	c.DataDir = t.TempDir()
	c.SecretKeyFile = newSecretKey(t)
	if _, err := New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "every hub of a database") || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("another secret key: %v", err)
	}
	c.SecretKeyFile = filepath.Join(t.TempDir(), "none.key")
	if _, err := New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "copy the file") {
		t.Errorf("no secret key: %v", err)
	}
	if _, err := os.Stat(c.SecretKeyFile); err == nil {
		t.Error("a new key was made")
	}
}
