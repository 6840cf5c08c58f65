// Package store keeps what the hub knows. Everything that changes does so in one transaction at a
// time, which also assigns the revisions of the change feed, so that they commit in order.
//
// The database is SQLite, or PostgreSQL, which several hubs may share. Statements are portable
// (bun); what differs is in dialect.go, sqlite.go and postgres.go.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/adit-dev/adit/internal/reason"
)

// Options say where the store is.
type Options struct {
	// URL is sqlite:PATH or postgres://….
	URL string
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// MaxConns caps connections; 0 = 4. One is enough.
	MaxConns int
}

// Store is one database.
type Store struct {
	db  *bun.DB
	now func() time.Time
	// writing admits one writer of this process at a time: waiting in SQLite's busy handler is
	// neither fair nor cheap.
	writing chan struct{}
	// url is where the database is; it may hold a password.
	url string
}

// Open opens or makes the database and brings its schema up to date. A schema newer than this
// build is refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	s, err := connect(o)
	if err != nil {
		return nil, err
	}
	if err := s.migrate(ctx, migrations); err != nil {
		_ = s.db.Close()
		return nil, fmt.Errorf("database %s: %w", Redacted(o.URL), wrap(err))
	}
	return s, nil
}

func connect(o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxConns == 0 {
		o.MaxConns = 4
	}
	db, err := open(o.URL)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(o.MaxConns)
	db.SetMaxIdleConns(o.MaxConns)
	return &Store{db: db, now: o.Now, writing: make(chan struct{}, 1), url: o.URL}, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Tx is a transaction. Its methods are the only way to the data, so nothing can read outside the
// transaction it runs in.
type Tx struct {
	tx  bun.Tx
	ctx context.Context
	// Now is the time of the transaction.
	Now time.Time

	changed   []Change
	index     map[string]int
	committed []func()
}

// AfterCommit calls f once what the transaction wrote stands.
func (t *Tx) AfterCommit(f func()) { t.committed = append(t.committed, f) }

// Change is one entry of the change log.
type Change struct {
	bun.BaseModel `bun:"table:changes"`

	Revision int64 `bun:",pk"`
	// Item is the key of a resource, as hubv1.Resource.Key makes it.
	Item    string
	Deleted bool
	At      int64
}

// Read runs f in a transaction that sees one state of the store.
func (s *Store) Read(ctx context.Context, f func(*Tx) error) error {
	o := &sql.TxOptions{ReadOnly: true}
	if s.postgres() {
		o.Isolation = sql.LevelRepeatableRead
	}
	return ended(ctx, s.db.RunInTx(ctx, o, func(ctx context.Context, tx bun.Tx) error {
		return f(&Tx{tx: tx, ctx: ctx, Now: s.now()})
	}))
}

// Write runs f alone. What f noted with Changed and Gone is logged with revisions that follow
// each other; nothing of f is stored when it, or the log, fails.
func (s *Store) Write(ctx context.Context, f func(*Tx) error) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var committed []func()
	err := s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		t := &Tx{tx: tx, ctx: ctx, Now: s.now(), index: map[string]int{}}
		defer func() { committed = t.committed }()
		if err := t.lock(); err != nil {
			return err
		}
		if err := f(t); err != nil {
			return err
		}
		return t.log()
	})
	if err != nil {
		return ended(ctx, err)
	}
	for _, f := range committed {
		f()
	}
	return nil
}

// Changed notes that the resource item was made or changed.
func (t *Tx) Changed(item string) { t.note(Change{Item: item}) }

// Gone notes that the resource item was deleted.
func (t *Tx) Gone(item string) { t.note(Change{Item: item, Deleted: true}) }

func (t *Tx) note(c Change) {
	if i, ok := t.index[c.Item]; ok {
		t.changed[i] = c
		return
	}
	t.index[c.Item] = len(t.changed)
	t.changed = append(t.changed, c)
}

// log stores the noted changes.
func (t *Tx) log() error {
	if len(t.changed) == 0 {
		return nil
	}
	var last int64
	err := t.tx.NewRaw("UPDATE feed SET revision = revision + ? WHERE id = 1 RETURNING revision", len(t.changed)).Scan(t.ctx, &last)
	if err != nil {
		return fmt.Errorf("assign revisions: %w", err)
	}
	for i := range t.changed {
		t.changed[i].Revision = last - int64(len(t.changed)-1-i)
		t.changed[i].At = t.Now.UnixMilli()
	}
	if err := batch(t, t.changed); err != nil || !t.postgres() {
		return err
	}
	// Sent with the commit.
	_, err = t.tx.NewRaw("NOTIFY " + hintChannel).Exec(t.ctx)
	return err
}

// batch inserts rows a few hundred at a time: statements have a limit of variables.
func batch[T any](t *Tx, rows []T) error {
	for len(rows) > 0 {
		n := min(len(rows), 500)
		part := rows[:n]
		if _, err := t.tx.NewInsert().Model(&part).Exec(t.ctx); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// Revision is the last revision assigned, and the first that Changes can still tell from.
func (t *Tx) Revision() (last, floor int64, err error) {
	if err := t.tx.NewRaw("SELECT revision FROM feed WHERE id = 1").Scan(t.ctx, &last); err != nil {
		return 0, 0, err
	}
	var first sql.NullInt64
	if err := t.tx.NewRaw("SELECT min(revision) FROM changes").Scan(t.ctx, &first); err != nil {
		return 0, 0, err
	}
	if !first.Valid {
		return last, last, nil
	}
	return last, first.Int64 - 1, nil
}

// Changes returns the log after a revision, oldest first.
func (t *Tx) Changes(after int64) ([]Change, error) {
	var out []Change
	err := t.tx.NewSelect().Model(&out).Where("revision > ?", after).Order("revision").Scan(t.ctx)
	return out, err
}

// PruneChanges keeps the last n entries of the log.
func (t *Tx) PruneChanges(n int64) error {
	_, err := t.tx.NewRaw("DELETE FROM changes WHERE revision <= (SELECT revision FROM feed WHERE id = 1) - ?", n).Exec(t.ctx)
	return err
}

// Replace puts what f returns for it into a column of bytes of every row where it is not empty. The
// names come from the code, key is the primary key.
func (t *Tx) Replace(table, key, column string, f func(key string, value []byte) ([]byte, error)) error {
	var rows []struct {
		Key   string
		Value []byte
	}
	err := t.tx.NewRaw("SELECT ? AS key, ? AS value FROM ? WHERE ? IS NOT NULL", bun.Ident(key), bun.Ident(column), bun.Ident(table), bun.Ident(column)).Scan(t.ctx, &rows)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if len(r.Value) == 0 {
			continue
		}
		v, err := f(r.Key, r.Value)
		if err != nil {
			return err
		}
		if _, err := t.tx.NewRaw("UPDATE ? SET ? = ? WHERE ? = ?", bun.Ident(table), bun.Ident(column), v, bun.Ident(key), r.Key).Exec(t.ctx); err != nil {
			return err
		}
	}
	return nil
}

// Clear deletes all rows of a table; its name comes from the code.
func (t *Tx) Clear(table string) error {
	_, err := t.tx.NewRaw("DELETE FROM ?", bun.Ident(table)).Exec(t.ctx)
	return err
}

// ErrNotFound is returned for a row that is not there.
var ErrNotFound = errors.New("not found")

// wrap gives errors of the store their meaning.
func wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if remedy := unavailable(err); remedy != "" {
		return reason.Wrap(err, reason.StoreUnavailable, reason.HopHub, "the hub's store cannot be used; %s", remedy)
	}
	return err
}

// ended is wrap for a transaction under ctx. The end of ctx rolls it back, and what runs then says
// only that it is over.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return wrap(err)
}

// Exec runs one statement outside any transaction, for maintenance and tests.
func (s *Store) Exec(ctx context.Context, statement string) error {
	_, err := s.db.ExecContext(ctx, statement)
	return wrap(err)
}
