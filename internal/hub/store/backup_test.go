package store

import (
	"bytes"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/postgres"
)

// piece is a part of a dump.
type piece struct {
	table string
	lines []byte
}

func dump(t *testing.T, s *Store) []piece {
	t.Helper()
	var out []piece
	err := s.Dump(t.Context(), func(table string, _ int, lines []byte) error {
		out = append(out, piece{table, bytes.Clone(lines)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func restore(t *testing.T, url string, pieces []piece) {
	t.Helper()
	r, err := Restore(t.Context(), Options{URL: url, MaxConns: 1}, SchemaVersion())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if err := r.Load(p.table, bytes.NewReader(p.lines)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Finish(); err != nil {
		t.Fatal(err)
	}
}

// fill stores something in tables that refer to each other, with values that are hard to carry.
func fill(t *testing.T, s *Store) {
	t.Helper()
	err := s.Write(t.Context(), func(tx *Tx) error {
		if err := tx.AddTenant(`t'"\ü` + "\n"); err != nil {
			return err
		}
		tok := &Token{ID: "01", Kind: "invite", Name: "a", Tenant: `t'"\ü` + "\n", Ed25519: []byte{0, 255, '\\', '\''}, MLDSA65: []byte{}, ExpiresSessions: true,
			CreatedAt: 1 << 60, Grants: []Grant{{Protocol: TCP, First: 1, Last: 2}}}
		if err := tx.AddToken(tok); err != nil {
			return err
		}
		if err := tx.AddTunnel(tunnel("x", "x.example"), UDP, 2000, 2100); err != nil {
			return err
		}
		if err := tx.AddTunnel(tunnel("y", ""), "", 0, 0); err != nil {
			return err
		}
		if err := tx.SetDeclarations(&Replica{TokenID: "01", ReplicaID: "r", LostMark: sql.NullInt64{}}, []Declaration{{TokenID: "01", ReplicaID: "r", Entry: []byte("e"), Verdict: []byte{}, TunnelID: "x"}}); err != nil {
			return err
		}
		tx.Changed("tunnel/x")
		return tx.SetSecret("s", []byte("sealed"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBackup: what one database holds, another one of either kind holds after a restore.
func TestBackup(t *testing.T) {
	kinds := map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "x.db") },
		"PostgreSQL": func(t *testing.T) string { return postgres.URL(t) },
	}
	for from, fromURL := range kinds {
		for to, toURL := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				a := openTest(t, fromURL(t), 1)
				fill(t, a)
				pieces := dump(t, a)
				url := toURL(t)
				restore(t, url, pieces)
				b := openTest(t, url, 1)
				again := dump(t, b)
				for i, p := range pieces {
					if p.table != "feed" && p.table != again[i].table || p.table != "feed" && !bytes.Equal(p.lines, again[i].lines) {
						t.Errorf("table %s came back as\n%swant\n%s", p.table, again[i].lines, p.lines)
					}
				}
				was, _ := revision(t, a)
				if now, floor := revision(t, b); now <= was || floor != now {
					t.Errorf("revision %d, floor %d after %d: an edge would resume", now, floor, was)
				}
			})
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	everyStore(t, func(t *testing.T, url string, _ int) {
		if _, err := Restore(t.Context(), Options{URL: url}, SchemaVersion()+1); err == nil || !strings.Contains(err.Error(), "newer") {
			t.Errorf("a newer schema: %v", err)
		}
		r, err := Restore(t.Context(), Options{URL: url}, SchemaVersion())
		if err != nil {
			t.Fatal(err)
		}
		for table, row := range map[string]string{"nothing": `{}`, "tokens": `{"id; DROP TABLE tokens": 1}`, "tenants": `{"name": ["x"]}`, "meta": "{\n"} {
			if err := r.Load(table, strings.NewReader(row)); err == nil {
				t.Errorf("%s %s was taken", table, row)
			}
		}
		r.Abort()
		// Nothing is left of it, so that the next try finds an empty database.
		s := openTest(t, url, 1)
		fill(t, s)
		_ = s.Close()
		if _, err := Restore(t.Context(), Options{URL: url}, SchemaVersion()); err == nil || !strings.Contains(err.Error(), "not empty") {
			t.Errorf("a database in use: %v", err)
		}
	})
}

// TestRestoreOlder: a backup of an older schema is brought up to date.
func TestRestoreOlder(t *testing.T) {
	everyStore(t, func(t *testing.T, url string, _ int) {
		r, err := Restore(t.Context(), Options{URL: url}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Load("tenants", strings.NewReader(`{"name":"default","created_at":1}`)); err != nil {
			t.Fatal(err)
		}
		if err := r.Load("tunnels", strings.NewReader(`{"id":"x","tenant":"default","kind":1,"hostname":null,"name":"","source":"declared","spec":{"bytes":""},"created_at":1,"orphaned_at":0,"orphan_mark":0}`)); err != nil {
			t.Fatal(err)
		}
		if err := r.Finish(); err != nil {
			t.Fatal(err)
		}
		err = openTest(t, url, 1).Read(t.Context(), func(tx *Tx) error { _, err := tx.Tunnel("x"); return err })
		if err != nil {
			t.Error(err)
		}
	})
}
