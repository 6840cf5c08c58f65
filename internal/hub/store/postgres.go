package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
)

// Defaults of a PostgreSQL connection; parameters of the URL win.
const (
	connectTimeout = 5 * time.Second
	// statementTimeout ends a statement that hangs, lockTimeout one that waits for another hub's
	// write, idleTimeout a transaction whose hub is silent but still connected.
	statementTimeout = "30s"
	lockTimeout      = "10s"
	idleTimeout      = "60s"
)

// postgresConfig reads a URL. Its errors hold no password.
func postgresConfig(where string) (*pgx.ConnConfig, error) {
	const want = "use postgres://USER:PASSWORD@HOST:5432/DATABASE"
	u, err := url.Parse(where)
	if err != nil {
		return nil, errors.New("--database-url: is no URL; " + want + ", with special characters of the password in % form")
	}
	c, err := pgx.ParseConfig(where)
	if err != nil {
		// The parser repeats the URL, then says what is wrong with it.
		_, text, said := strings.Cut(err.Error(), "`: ")
		if secret, set := u.User.Password(); !said || set && strings.Contains(text, secret) {
			text = "a parameter is wrong"
		}
		return nil, fmt.Errorf("--database-url: %s; %s", text, want)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	for name, value := range map[string]string{
		"application_name": "adit", "statement_timeout": statementTimeout, "lock_timeout": lockTimeout,
		"idle_in_transaction_session_timeout": idleTimeout,
	} {
		if _, set := c.RuntimeParams[name]; !set {
			c.RuntimeParams[name] = value
		}
	}
	// Statements come with their values in them, so none is worth preparing; and a pooler that
	// hands each transaction to another connection is no obstacle.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	return c, nil
}

func openPostgres(where string) (*bun.DB, error) {
	c, err := postgresConfig(where)
	if err != nil {
		return nil, err
	}
	return bun.NewDB(stdlib.OpenDB(*c), postgresDialect{pgdialect.New()}), nil
}

// postgresUnavailable is true for errors of the connection, and for the classes of error that say
// that the server, its resources or its administrator stand in the way.
func postgresUnavailable(err error) bool {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		switch e.Code {
		case "25006", "40001", "40P01", "55P03", "57014", "42501", "3D000":
			// read-only server, serialization, deadlock, lock timeout, statement timeout, rights, no database
			return true
		}
		switch e.Code[:min(2, len(e.Code))] {
		case "08", "28", "53", "57", "58", "XX":
			return true
		}
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

func postgresDuplicate(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "23505"
}

// Redacted is a database URL as it may be shown.
func Redacted(where string) string {
	if !IsPostgres(where) {
		return where
	}
	c, err := postgresConfig(where)
	if err != nil {
		return "postgres://…"
	}
	return fmt.Sprintf("postgres://%s@%s/%s", url.User(c.User), net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), url.PathEscape(c.Database))
}

const (
	// hintChannel is where a write tells other hubs that the change log has grown.
	hintChannel = "adit_feed"
	// hintRetry is the pause before a broken listener connects again.
	hintRetry = 2 * time.Second
)

// Hints receives when another hub may have written, until ctx ends; nil where there is no other
// hub. They are hints only: behind some poolers, and while a connection is broken, none come.
func (s *Store) Hints(ctx context.Context, wg *sync.WaitGroup) <-chan struct{} {
	if !s.postgres() {
		return nil
	}
	hints := make(chan struct{}, 1)
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = s.listen(ctx, hints)
			select {
			case <-ctx.Done():
			case <-time.After(hintRetry):
			}
		}
	})
	return hints
}

func (s *Store) listen(ctx context.Context, hints chan<- struct{}) error {
	c, err := postgresConfig(s.url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(end)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+hintChannel); err != nil {
		return err
	}
	for {
		// What was told before LISTEN is not known: the first hint is our own.
		select {
		case hints <- struct{}{}:
		default:
		}
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

// Ping asks the database for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "SELECT 1")
	return wrap(err)
}
