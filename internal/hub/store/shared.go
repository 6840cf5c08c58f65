package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// sharedTables are the tables of what hubs on one database tell each other.
var sharedTables = []string{
	// Each hub keeps its own row and its own reports. Beat grows with every round, so that a reader
	// sees by its own clock who is alive; clock is the hub's own at that beat.
	`CREATE TABLE hubs (id TEXT PRIMARY KEY, host TEXT NOT NULL, software TEXT NOT NULL, started_at BIGINT NOT NULL,
		beat BIGINT NOT NULL, clock BIGINT NOT NULL)`,
	`CREATE TABLE hub_reports (hub_id TEXT NOT NULL REFERENCES hubs (id) ON DELETE CASCADE, item TEXT NOT NULL,
		body BYTES NOT NULL, heard BIGINT NOT NULL, gone BOOLEAN NOT NULL, beat BIGINT NOT NULL, PRIMARY KEY (hub_id, item))`,
	`CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL)`,
}

// HubRow is one running hub.
type HubRow struct {
	bun.BaseModel `bun:"table:hubs,alias:hub"`

	ID        string `bun:",pk"`
	Host      string
	Software  string
	StartedAt int64
	Beat      int64
	Clock     int64
}

// HubReport is what a hub heard of one machine: an edge or a replica. Heard is on that hub's clock.
type HubReport struct {
	bun.BaseModel `bun:"table:hub_reports,alias:report"`

	HubID string `bun:",pk"`
	Item  string `bun:",pk"`
	Body  []byte
	Heard int64
	// Gone: the hub knows nothing of it any more.
	Gone bool
	Beat int64
}

// Share runs f in a transaction that writes only what this hub alone writes: it waits for no other
// hub, and changes nothing that watches see.
func (s *Store) Share(ctx context.Context, f func(*Tx) error) error {
	return ended(ctx, s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if tx.Dialect().Name() == dialect.PG {
			// A loss costs nothing: the next round tells the same.
			if _, err := tx.NewRaw("SET LOCAL synchronous_commit = off").Exec(ctx); err != nil {
				return err
			}
		}
		return f(&Tx{tx: tx, ctx: ctx, Now: s.now(), index: map[string]int{}})
	}))
}

// Beat stores the hub's own row. It is false if the row was gone, with all reports of this hub.
func (t *Tx) Beat(h *HubRow) (known bool, err error) {
	res, err := t.tx.NewRaw("UPDATE hubs SET beat = ?, clock = ? WHERE id = ?", h.Beat, h.Clock, h.ID).Exec(t.ctx)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return true, err
	}
	_, err = t.tx.NewInsert().Model(h).Exec(t.ctx)
	return false, err
}

// PutHubReports stores reports of this hub.
func (t *Tx) PutHubReports(rows []HubReport) error {
	for len(rows) > 0 {
		part := rows[:min(len(rows), 200)]
		rows = rows[len(part):]
		_, err := t.tx.NewInsert().Model(&part).On("CONFLICT (hub_id, item) DO UPDATE").Set("body = EXCLUDED.body").
			Set("heard = EXCLUDED.heard").Set("gone = EXCLUDED.gone").Set("beat = EXCLUDED.beat").Exec(t.ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DropGoneReports forgets reports of this hub that every other hub has read since: those that went
// before a beat.
func (t *Tx) DropGoneReports(hubID string, before int64) error {
	_, err := t.tx.NewRaw("DELETE FROM hub_reports WHERE hub_id = ? AND gone AND beat < ?", hubID, before).Exec(t.ctx)
	return err
}

// Hubs returns all hubs that have a row, this one included.
func (t *Tx) Hubs() ([]HubRow, error) {
	var out []HubRow
	return out, t.tx.NewSelect().Model(&out).Order("id").Scan(t.ctx)
}

// HubReports returns the reports of a hub that changed after a beat.
func (t *Tx) HubReports(hubID string, after int64) ([]HubReport, error) {
	var out []HubReport
	return out, t.tx.NewSelect().Model(&out).Where("hub_id = ? AND beat > ?", hubID, after).Scan(t.ctx)
}

// DropHub forgets a hub and its reports.
func (t *Tx) DropHub(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM hubs WHERE id = ?", id).Exec(t.ctx)
	return err
}

// Lease returns who holds a lease; empty if nobody does. Within Write it cannot change until the
// transaction ends, so what is written with it is fenced.
func (t *Tx) Lease(name string) (holder string, err error) {
	err = t.tx.NewRaw("SELECT holder FROM leases WHERE name = ?", name).Scan(t.ctx, &holder)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return holder, err
}

// SetLease gives a lease to a holder; an empty one gives it up. Call it within Write only.
func (t *Tx) SetLease(name, holder string) error {
	_, err := t.tx.NewRaw("INSERT INTO leases (name, holder) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder", name, holder).Exec(t.ctx)
	return err
}
