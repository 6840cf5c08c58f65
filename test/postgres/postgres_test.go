package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/adit-dev/adit/test/postgres"
)

// TestURL: each call gives a database of its own.
func TestURL(t *testing.T) {
	for range 2 {
		conn, err := pgx.Connect(t.Context(), postgres.URL(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "CREATE TABLE x (a INTEGER)"); err != nil {
			t.Error(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
