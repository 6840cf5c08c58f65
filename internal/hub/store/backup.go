package store

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/uptrace/bun"
)

// Tables of what runs now: a backup leaves them out.
var runningTables = map[string]bool{"hubs": true, "hub_reports": true, "leases": true, "changes": true, "schema_version": true}

// chunkSize is about how many bytes of rows one part of a dump has.
const chunkSize = 4 << 20

var createTable = regexp.MustCompile(`^CREATE TABLE (\w+)`)

// backupTables are the tables of a schema version in an order in which each comes after those that
// it refers to: the order in which they were made.
func backupTables(version int) []string {
	var out []string
	for _, m := range migrations {
		if m.version > version {
			break
		}
		for _, q := range m.sql {
			if f := createTable.FindStringSubmatch(q); f != nil && !runningTables[f[1]] {
				out = append(out, f[1])
			}
		}
	}
	return out
}

// SchemaVersion is the schema that this build makes.
func SchemaVersion() int { return migrations[len(migrations)-1].version }

// Dump calls part for pieces of every table, as JSON lines, all of one moment. Sealed values stay
// sealed. The format is the same for every database.
func (s *Store) Dump(ctx context.Context, part func(table string, n int, lines []byte) error) error {
	return s.Read(ctx, func(tx *Tx) error {
		for _, table := range backupTables(SchemaVersion()) {
			if err := tx.dumpTable(table, part); err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
		}
		return nil
	})
}

func (t *Tx) dumpTable(table string, part func(table string, n int, lines []byte) error) error {
	rows, err := t.tx.QueryContext(t.ctx, "SELECT * FROM "+table)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	out, n := json.NewEncoder(&buf), 0
	out.SetEscapeHTML(false)
	values, at := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		at[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(at...); err != nil {
			return err
		}
		row := map[string]any{}
		for i, c := range columns {
			row[c.Name()] = dumped(values[i], c)
		}
		if err := out.Encode(row); err != nil {
			return err
		}
		if buf.Len() >= chunkSize {
			if err := part(table, n, buf.Bytes()); err != nil {
				return err
			}
			buf.Reset()
			n++
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if buf.Len() > 0 || n == 0 {
		return part(table, n, buf.Bytes())
	}
	return nil
}

// dumpedBytes is a value of bytes in a dump.
type dumpedBytes struct {
	Bytes []byte `json:"bytes"`
}

func dumped(v any, c *sql.ColumnType) any {
	switch v := v.(type) {
	case []byte:
		return dumpedBytes{append([]byte{}, v...)}
	case int64:
		if strings.EqualFold(c.DatabaseTypeName(), "BOOLEAN") {
			return v != 0
		}
	}
	return v
}

// Restoring is an empty database that a dump is loaded into.
type Restoring struct {
	s  *Store
	tx bun.Tx
	t  *Tx
	// version is the schema of the dump.
	version int
}

// Restore opens an empty database with the schema of a dump. Nothing of it is there before Finish;
// Abort, or the end of the process, leaves it empty.
func Restore(ctx context.Context, o Options, version int) (*Restoring, error) {
	if version > SchemaVersion() || version < 1 {
		return nil, fmt.Errorf("the backup has schema version %d, this build knows up to %d; restore it with the adit that made it, or a newer one", version, SchemaVersion())
	}
	s, err := connect(o)
	if err != nil {
		return nil, err
	}
	r := &Restoring{s: s, version: version}
	if err := r.begin(ctx); err != nil {
		r.Abort()
		return nil, fmt.Errorf("database %s: %w", Redacted(o.URL), wrap(err))
	}
	return r, nil
}

func (r *Restoring) begin(ctx context.Context) (err error) {
	if r.tx, err = r.s.db.BeginTx(ctx, nil); err != nil {
		return err
	}
	r.t = &Tx{tx: r.tx, ctx: ctx, Now: r.s.now(), index: map[string]int{}}
	have, err := r.s.migrateIn(ctx, r.tx, upTo(r.version))
	if err != nil {
		return err
	}
	if have > 0 {
		empty, err := r.t.empty()
		if err != nil {
			return err
		}
		if !empty || have != r.version {
			return errors.New("is not empty; restore into a new database, or delete this one first")
		}
	}
	// What a new store has from the start comes with the dump.
	_, err = r.tx.ExecContext(ctx, "DELETE FROM tenants")
	return err
}

func upTo(version int) []migration {
	for i, m := range migrations {
		if m.version > version {
			return migrations[:i]
		}
	}
	return migrations
}

// empty tells whether nothing was ever stored.
func (t *Tx) empty() (bool, error) {
	var n int
	err := t.tx.NewRaw("SELECT (SELECT count(*) FROM secrets) + (SELECT count(*) FROM tokens) + (SELECT count(*) FROM tunnels)").Scan(t.ctx, &n)
	return n == 0, err
}

// Load stores rows of a table: JSON lines as Dump made them. Tables come in the order of Dump.
func (r *Restoring) Load(table string, lines io.Reader) error {
	known := false
	for _, t := range backupTables(r.version) {
		known = known || t == table
	}
	if !known {
		return fmt.Errorf("table %q is none of schema version %d", table, r.version)
	}
	if table == "feed" {
		return nil // see Finish
	}
	in := bufio.NewReaderSize(lines, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if err := r.loadRow(table, line); err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var columnName = regexp.MustCompile(`^[a-z0-9_]+$`)

func (r *Restoring) loadRow(table string, line []byte) error {
	row := map[string]json.RawMessage{}
	if err := json.Unmarshal(line, &row); err != nil {
		return err
	}
	var names, marks []string
	var args []any
	for name, raw := range row {
		if !columnName.MatchString(name) {
			return fmt.Errorf("%q is no name of a column", name)
		}
		v, err := loaded(raw)
		if err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
		names, marks, args = append(names, `"`+name+`"`), append(marks, "?"), append(args, v)
	}
	_, err := r.tx.NewRaw("INSERT INTO "+table+" ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(marks, ", ")+")", args...).Exec(r.t.ctx)
	return err
}

// loaded is a value of a dump.
func loaded(raw json.RawMessage) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	switch x := v.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n, nil
		}
		return x.Float64()
	case map[string]any:
		b := dumpedBytes{}
		if err := json.Unmarshal(raw, &b); err != nil {
			return nil, err
		}
		if b.Bytes == nil {
			b.Bytes = []byte{}
		}
		return b.Bytes, nil
	case []any:
		return nil, errors.New("a list is no value")
	}
	return v, nil
}

// Finish brings the schema up to date and makes everything that was loaded the database's content.
func (r *Restoring) Finish() error {
	ctx := r.t.ctx
	if _, err := r.s.migrateIn(ctx, r.tx, migrations); err != nil {
		return err
	}
	// Edges that were connected after the backup know later revisions than it has: the feed goes on
	// from a time that no store has reached, so each of them gets a snapshot.
	if _, err := r.tx.NewRaw("UPDATE feed SET revision = ? WHERE id = 1", r.t.Now.UnixMilli()*1000).Exec(ctx); err != nil {
		return err
	}
	if err := wrap(r.tx.Commit()); err != nil {
		return err
	}
	return r.s.Close()
}

// Abort leaves the database empty.
func (r *Restoring) Abort() {
	if r.tx.Tx != nil {
		_ = r.tx.Rollback()
	}
	_ = r.s.Close()
}
