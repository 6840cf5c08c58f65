package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
)

// open opens the database of a URL, without asking anything of it yet.
func open(where string) (*bun.DB, error) {
	scheme, rest, _ := strings.Cut(where, ":")
	switch scheme {
	case "sqlite":
		return openSQLite(rest)
	case "postgres", "postgresql":
		return openPostgres(where)
	case "":
		return nil, errors.New("--database-url: is empty; use sqlite:PATH or postgres://USER@HOST/DATABASE")
	default:
		// What is not understood may hold a password.
		return nil, fmt.Errorf("--database-url: scheme %q is not known; use sqlite:PATH or postgres://USER@HOST/DATABASE", schemeOnly(scheme))
	}
}

// schemeOnly keeps a password out of an error about a URL that is none.
func schemeOnly(s string) string {
	if len(s) > 20 || strings.ContainsAny(s, "@/= ") {
		return "…"
	}
	return s
}

// IsPostgres tells whether a database URL means PostgreSQL, which several hubs may share.
func IsPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres:") || strings.HasPrefix(url, "postgresql:")
}

// Shared tells whether other hubs may use the same database.
func (s *Store) Shared() bool { return s.postgres() }

func (s *Store) postgres() bool { return s.db.Dialect().Name() == dialect.PG }

func (t *Tx) postgres() bool { return t.tx.Dialect().Name() == dialect.PG }

// lock makes this transaction the only writer of all hubs. SQLite has locked at BEGIN IMMEDIATE.
func (t *Tx) lock() error {
	if !t.postgres() {
		return nil
	}
	_, err := t.tx.NewRaw("SELECT revision FROM feed WHERE id = 1 FOR UPDATE").Exec(t.ctx)
	return err
}

// unavailable tells whether the store, not the statement, is at fault, and what to do about it.
func unavailable(err error) (remedy string) {
	switch {
	case sqliteUnavailable(err):
		return "check free space and permissions of the data directory"
	case postgresUnavailable(err):
		return "check that the PostgreSQL server of --database-url runs, is reachable and accepts this user"
	}
	return ""
}

// Duplicate tells whether err is the database refusing a second row of the same name or port.
func Duplicate(err error) bool { return sqliteDuplicate(err) || postgresDuplicate(err) }

// portable turns a statement of the schema into the dialect's own: BYTES is a type of bytes, and
// texts are compared by their bytes everywhere, whatever the locale of the database.
func portable(statement string, d dialect.Name) string {
	if d != dialect.PG {
		return strings.ReplaceAll(statement, "BYTES", "BLOB")
	}
	statement = strings.ReplaceAll(statement, "BYTES", "BYTEA")
	return strings.ReplaceAll(statement, " TEXT", ` TEXT COLLATE "C"`)
}

// The dialects as the store uses them: no database keeps a NUL in a text, and one that a stranger
// sent must not fail the write of a whole report.
type (
	sqliteDialect   struct{ *sqlitedialect.Dialect }
	postgresDialect struct{ *pgdialect.Dialect }
)

func (d sqliteDialect) AppendString(b []byte, s string) []byte {
	return d.Dialect.AppendString(b, strings.ReplaceAll(s, "\x00", ""))
}

func (d postgresDialect) AppendString(b []byte, s string) []byte {
	return d.Dialect.AppendString(b, strings.ReplaceAll(s, "\x00", ""))
}
