package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openTest(t *testing.T, url string, conns int) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{URL: url, MaxConns: conns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// both runs f on a fresh store of each kind, with several connections and with one.
func both(t *testing.T, f func(t *testing.T, s *Store)) {
	everyStore(t, func(t *testing.T, url string, conns int) { f(t, openTest(t, url, conns)) })
}

// everyStore runs f with a database of each kind that is not there yet.
func everyStore(t *testing.T, f func(t *testing.T, url string, conns int)) {
	for _, n := range []int{4, 1} {
		t.Run(fmt.Sprintf("SQLite, %d connections", n), func(t *testing.T) {
			f(t, "sqlite:"+filepath.Join(t.TempDir(), "a b?#%.db"), n)
		})
		t.Run(fmt.Sprintf("PostgreSQL, %d connections", n), func(t *testing.T) { f(t, postgres.URL(t), n) })
	}
}

func revision(t *testing.T, s *Store) (last, floor int64) {
	t.Helper()
	if err := s.Read(t.Context(), func(tx *Tx) (err error) { last, floor, err = tx.Revision(); return }); err != nil {
		t.Fatal(err)
	}
	return last, floor
}

func tunnel(id, host string) *Tunnel {
	return &Tunnel{ID: id, Tenant: DefaultTenant, Kind: 1, Hostname: sql.NullString{String: host, Valid: host != ""}, Source: "declared", Spec: []byte{}}
}

func TestWriteAssignsRevisions(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		start, floor := revision(t, s)
		if start == 0 || floor != start {
			t.Fatalf("new store: revision %d, floor %d", start, floor)
		}
		err := s.Write(t.Context(), func(tx *Tx) error {
			tx.Changed("tunnel/a")
			tx.Changed("tunnel/b")
			tx.Gone("tunnel/a")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		fail := errors.New("no")
		if err := s.Write(t.Context(), func(tx *Tx) error { tx.Changed("tunnel/c"); return fail }); !errors.Is(err, fail) {
			t.Fatal(err)
		}
		var got []Change
		if err := s.Read(t.Context(), func(tx *Tx) (err error) { got, err = tx.Changes(start); return }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || got[0].Item != "tunnel/a" || !got[0].Deleted || got[0].Revision != start+1 || got[1].Item != "tunnel/b" || got[1].Revision != start+2 {
			t.Fatalf("%+v", got)
		}
		if err := s.Write(t.Context(), func(tx *Tx) error { return tx.PruneChanges(1) }); err != nil {
			t.Fatal(err)
		}
		if last, floor := revision(t, s); last != start+2 || floor != start+1 {
			t.Errorf("after pruning: %d, floor %d", last, floor)
		}
	})
}

func TestHostnameAndPortHaveOneOwner(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		won := 0
		for i := range 50 {
			wg.Go(func() {
				err := s.Write(context.Background(), func(tx *Tx) error { return tx.AddTunnel(tunnel(fmt.Sprint(i), "a.example"), "", 0, 0) })
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case !Duplicate(err):
					t.Errorf("want a duplicate, got %v", err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d of 50 won", won)
		}
		add := func(id string, first, last int) error {
			return s.Write(t.Context(), func(tx *Tx) error { return tx.AddTunnel(tunnel("p"+id, ""), UDP, first, last) })
		}
		if err := add("1", 2000, 4000); err != nil {
			t.Fatal(err)
		}
		if err := add("2", 4000, 4000); !Duplicate(err) {
			t.Errorf("a second owner of a port: %v", err)
		}
		if err := add("3", 4001, 4002); err != nil {
			t.Error(err)
		}
		if err := s.Write(t.Context(), func(tx *Tx) error { return tx.DeleteTunnel("p1") }); err != nil {
			t.Fatal(err)
		}
		if err := add("4", 3000, 4000); err != nil {
			t.Errorf("a freed port: %v", err)
		}
	})
}

func TestDatabaseFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "adit.db")
	_ = openTest(t, "sqlite:"+path, 1)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if fi, err := os.Stat(path + suffix); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", path+suffix, fi.Mode(), err)
		}
	}
}

func TestSchema(t *testing.T) {
	everyStore(t, func(t *testing.T, url string, _ int) {
		s := openTest(t, url, 1)
		first, _ := revision(t, s)
		_ = s.Close()
		s = openTest(t, url, 1)
		if again, _ := revision(t, s); again != first {
			t.Errorf("revision %d after opening again, was %d", again, first)
		}

		t.Run("a step that fails changes nothing", func(t *testing.T) {
			steps := append(migrations[:len(migrations):len(migrations)], migration{1000, []string{"CREATE TABLE half (x INTEGER)", "no sql"}})
			if err := s.migrate(t.Context(), steps); err == nil {
				t.Fatal("no error")
			}
			err := s.Read(t.Context(), func(tx *Tx) error { _, err := tx.tx.NewRaw("SELECT * FROM half").Exec(tx.ctx); return err })
			if err == nil || !strings.Contains(err.Error(), "no such table") && !strings.Contains(err.Error(), "does not exist") {
				t.Errorf("half a step was stored: %v", err)
			}
		})
		t.Run("a newer schema is refused", func(t *testing.T) {
			steps := append(migrations[:len(migrations):len(migrations)], migration{1000, []string{"CREATE TABLE later (x INTEGER)"}})
			if err := s.migrate(t.Context(), steps); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), "newer") {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestOpenErrors(t *testing.T) {
	for url, want := range map[string]string{
		"": "is empty", "sqlite:": "path", "mysql://x": "mysql", "user:secret@host": "--database-url",
		"sqlite:" + t.TempDir(): "director",
	} {
		if _, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("this is not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{URL: "sqlite:" + path}); !reason.Is(err, reason.StoreUnavailable) {
		t.Errorf("no database: %v", err)
	}
}

func TestStoreUnavailable(t *testing.T) {
	for name, pragma := range map[string]string{"full disk": "PRAGMA max_page_count = 1", "read-only": "PRAGMA query_only = 1"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, "sqlite:"+filepath.Join(t.TempDir(), "x.db"), 1)
			start, _ := revision(t, s)
			if _, err := s.db.ExecContext(t.Context(), pragma); err != nil {
				t.Fatal(err)
			}
			err := s.Write(t.Context(), func(tx *Tx) error {
				tx.Changed("tunnel/a")
				if err := tx.AddTunnel(tunnel("a", "a.example"), UDP, 1, 20000); err != nil {
					return err
				}
				return tx.SetMeta("big", make([]byte, 1<<20))
			})
			if !reason.Is(err, reason.StoreUnavailable) {
				t.Fatalf("got %v", err)
			}
			if _, err := s.db.ExecContext(t.Context(), "PRAGMA query_only = 0"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.db.ExecContext(t.Context(), "PRAGMA max_page_count = 1000000"); err != nil {
				t.Fatal(err)
			}
			if last, _ := revision(t, s); last != start {
				t.Errorf("revision %d, was %d: half applied", last, start)
			}
			if err := s.Read(t.Context(), func(tx *Tx) error { _, err := tx.TunnelByHost("a.example"); return err }); !errors.Is(err, ErrNotFound) {
				t.Errorf("half applied: %v", err)
			}
			if err := s.Write(t.Context(), func(tx *Tx) error { return tx.AddTunnel(tunnel("a", "a.example"), "", 0, 0) }); err != nil {
				t.Errorf("once there is space again: %v", err)
			}
		})
	}
}

func TestWriteWaitsNoLongerThanItsContext(t *testing.T) {
	s := openTest(t, "sqlite:"+filepath.Join(t.TempDir(), "x.db"), 1)
	in, out := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Write(context.Background(), func(*Tx) error { close(in); <-out; return nil })
	})
	<-in
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Write(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(out)
	wg.Wait()
}

// A transaction that the end of its context rolls back says so, not only that it is over.
func TestContextEndsInATransaction(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		for name, run := range map[string]func(context.Context, func(*Tx) error) error{"read": s.Read, "write": s.Write, "share": s.Share} {
			ctx, cancel := context.WithCancel(t.Context())
			err := run(ctx, func(tx *Tx) error {
				cancel()
				for { // until the rollback has been made
					if _, _, err := tx.Revision(); err != nil {
						return err
					}
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestTokens(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		err := s.Write(t.Context(), func(tx *Tx) error {
			for i, name := range []string{"b", "a", "c"} {
				if err := tx.AddTenant(name); err != nil {
					return err
				}
				tok := &Token{ID: fmt.Sprint(i), Kind: "invite", Name: name, Tenant: name, Ed25519: []byte{1}, MLDSA65: []byte{2}, Sources: "10.0.0.0/8 ::/0",
					Grants: []Grant{{Protocol: Host, Pattern: "*." + name + ".x"}, {Protocol: TCP, First: 2000 * (i + 1), Last: 2000*(i+1) + 10}}}
				if err := tx.AddToken(tok); err != nil {
					return err
				}
			}
			return tx.RevokeToken("2")
		})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Read(t.Context(), func(tx *Tx) error {
			toks, err := tx.Tokens([]string{"invite"}, "a", "1", 1)
			if err != nil || len(toks) != 1 || toks[0].Name != "b" || len(toks[0].Grants) != 2 || len(toks[0].From()) != 2 {
				t.Errorf("%+v, %v", toks, err)
			}
			gs, err := tx.GrantsOfOthers("a", Host, 0, 0)
			if err != nil || len(gs) != 1 || gs[0].Pattern != "*.b.x" || gs[0].Tenant != "b" {
				t.Errorf("%+v, %v", gs, err)
			}
			gs, err = tx.GrantsOfOthers("a", TCP, 1, 2000)
			if err != nil || len(gs) != 1 || gs[0].Tenant != "b" {
				t.Errorf("%+v, %v", gs, err)
			}
			if _, err := tx.TokenNamed("invite", "zzz"); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			tok, err := tx.TokenNamed("invite", "c")
			if err != nil || tok.RevokedAt == 0 {
				t.Errorf("%+v, %v", tok, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// A revoked token's name is free again; a live one's is not.
		add := func(id, name string) error {
			return s.Write(t.Context(), func(tx *Tx) error {
				return tx.AddToken(&Token{ID: id, Kind: "invite", Name: name, Tenant: "a", Ed25519: []byte{1}, MLDSA65: []byte{2}})
			})
		}
		if err := add("10", "c"); err != nil {
			t.Error(err)
		}
		if err := add("11", "a"); !Duplicate(err) {
			t.Error(err)
		}
	})
}
