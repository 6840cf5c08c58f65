package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/postgres"
)

// with adds a parameter to a database URL.
func with(t *testing.T, where, name, value string) string {
	t.Helper()
	u, err := url.Parse(where)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// TestPostgresErrors: what is wrong with the URL, or with the server, is said without the password.
func TestPostgresErrors(t *testing.T) {
	here := postgres.URL(t)
	for name, c := range map[string]struct{ url, want string }{
		"no such host":     {"postgres://u:hunter2@127.0.0.1:1/adit", "127.0.0.1"},
		"no URL":           {"postgres://u:hunter2@[bad/adit", "is no URL"},
		"bad port":         {"postgres://u:hunter2@h:99999/adit", "port"},
		"bad parameter":    {"postgres://u:hunter2@h/adit?sslmode=perhaps", "sslmode"},
		"no such database": {strings.Replace(here, "/adit_", "/none_", 1), "does not exist"},
		"no such user":     {strings.Replace(here, "adit@", "nobody:hunter2@", 1), "nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), Options{URL: c.url})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if !strings.Contains(err.Error(), "--database-url") {
				t.Errorf("the setting is not named: %v", err)
			}
		})
	}
}

func TestPostgresUnavailable(t *testing.T) {
	t.Run("read-only", func(t *testing.T) {
		at := postgres.URL(t)
		s := openTest(t, at, 1)
		_ = s.Close()
		if _, err := Open(t.Context(), Options{URL: with(t, at, "default_transaction_read_only", "on")}); !reason.Is(err, reason.StoreUnavailable) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another hub's write that does not end", func(t *testing.T) {
		at := postgres.URL(t)
		a, b := openTest(t, at, 1), openTest(t, with(t, at, "lock_timeout", "100ms"), 1)
		err := a.Write(t.Context(), func(*Tx) error {
			return b.Write(t.Context(), func(*Tx) error { return nil })
		})
		if !reason.Is(err, reason.StoreUnavailable) {
			t.Errorf("got %v", err)
		}
		if err := b.Write(t.Context(), func(*Tx) error { return nil }); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	t.Run("connections cut", func(t *testing.T) {
		at := postgres.URL(t)
		a, b := openTest(t, at, 1), openTest(t, at, 1)
		err := a.Write(t.Context(), func(tx *Tx) error {
			if err := b.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"); err != nil {
				return err
			}
			tx.Changed("tunnel/lost")
			return nil
		})
		if !reason.Is(err, reason.StoreUnavailable) {
			t.Errorf("got %v", err)
		}
		if err := a.Write(t.Context(), func(tx *Tx) error { tx.Changed("tunnel/kept"); return nil }); err != nil {
			t.Errorf("the next write: %v", err)
		}
	})
}

// TestHubsShareADatabase: hubs start together on an empty database, and their writes get
// revisions that follow each other.
func TestHubsShareADatabase(t *testing.T) {
	at := postgres.URL(t)
	const hubs, writes = 4, 25
	var wg sync.WaitGroup
	var mu sync.Mutex
	var stores []*Store
	for range hubs {
		wg.Go(func() {
			s, err := Open(context.Background(), Options{URL: at})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			stores = append(stores, s)
		})
	}
	wg.Wait()
	first, _ := revision(t, stores[0])
	for n, s := range stores {
		defer func() { _ = s.Close() }()
		wg.Go(func() {
			for i := range writes {
				if err := s.Write(context.Background(), func(tx *Tx) error { tx.Changed(fmt.Sprintf("tunnel/%d-%d", n, i)); return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// Whoever reads meanwhile never sees a revision without all before it.
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for end := false; !end; {
		select {
		case <-done:
			end = true
		default:
		}
		err := stores[0].Read(t.Context(), func(tx *Tx) error {
			all, err := tx.Changes(first)
			last, _, _ := tx.Revision()
			if err == nil && last != first+int64(len(all)) {
				return fmt.Errorf("%d changes up to revision %d", len(all), last-first)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if last, _ := revision(t, stores[0]); last != first+hubs*writes {
		t.Errorf("%d revisions for %d writes", last-first, hubs*writes)
	}
}

// TestTextOrder: pages follow the order of bytes, whatever the locale of the database.
func TestTextOrder(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		err := s.Write(t.Context(), func(tx *Tx) error {
			for i, name := range []string{"b", "B", "a-b", "a_b", "ab", "é", "A", "it's \\ \"odd\" ?"} {
				tok := &Token{ID: fmt.Sprint(i), Kind: "invite", Name: name, Tenant: DefaultTenant, Ed25519: []byte{0, 1, '\'', '\\'}, MLDSA65: []byte{}}
				if err := tx.AddToken(tok); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		err = s.Read(t.Context(), func(tx *Tx) error {
			toks, err := tx.Tokens([]string{"invite"}, "", "", 0)
			for _, tok := range toks {
				got = append(got, tok.Name)
				if string(tok.Ed25519) != "\x00\x01'\\" {
					t.Errorf("bytes came back as %q", tok.Ed25519)
				}
			}
			return err
		})
		if want := []string{"A", "B", "a-b", "a_b", "ab", "b", "it's \\ \"odd\" ?", "é"}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q, %v", got, err)
		}
		// PostgreSQL's texts hold no NUL; what a stranger sends must not fail a write.
		err = s.Write(t.Context(), func(tx *Tx) error {
			return tx.AddTenant("a\x00b\xff")
		})
		if err != nil {
			t.Errorf("a NUL in a text: %v", err)
		}
	})
}

func TestWriteEndsWithItsContext(t *testing.T) {
	at := postgres.URL(t)
	a, b := openTest(t, at, 1), openTest(t, at, 1)
	err := a.Write(t.Context(), func(*Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := b.Write(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) && !reason.Is(err, reason.StoreUnavailable) {
			t.Errorf("got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
