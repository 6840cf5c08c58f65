package store

import (
	"database/sql"
	"errors"

	"github.com/uptrace/bun"
)

// recordTables are the tables of events, traffic and notices.
var recordTables = []string{
	`CREATE TABLE events (id BIGINT PRIMARY KEY, at BIGINT NOT NULL, kind TEXT NOT NULL, severity INTEGER NOT NULL,
		subject TEXT NOT NULL, entry BYTES NOT NULL)`,
	`CREATE INDEX events_at ON events (at)`,
	// What wakes the next event of a kind and subject: the state that was told last.
	`CREATE TABLE conditions (name TEXT PRIMARY KEY, entry BYTES NOT NULL, since BIGINT NOT NULL)`,
	`CREATE TABLE places (token_id TEXT NOT NULL, host_name TEXT NOT NULL, address TEXT NOT NULL, first_seen BIGINT NOT NULL,
		PRIMARY KEY (token_id, host_name, address))`,
	`CREATE TABLE traffic (step INTEGER NOT NULL, at BIGINT NOT NULL, tunnel_id TEXT NOT NULL, counters BYTES NOT NULL,
		PRIMARY KEY (step, at, tunnel_id))`,
	`CREATE INDEX traffic_tunnel ON traffic (tunnel_id, step, at)`,
	`CREATE TABLE notice_targets (name TEXT PRIMARY KEY, spec BYTES NOT NULL, secrets BYTES NOT NULL, cursor BIGINT NOT NULL,
		next_try BIGINT NOT NULL, tries INTEGER NOT NULL, last_error TEXT NOT NULL, last_delivery BIGINT NOT NULL)`,
}

// Event is something that happened. Entry is its hubv1.Event. Ids grow with time.
type Event struct {
	bun.BaseModel `bun:"table:events"`

	ID       int64 `bun:",pk"`
	At       int64
	Kind     string
	Severity int
	Subject  string
	Entry    []byte
}

// NextEventID is greater than the id of every event before.
func (t *Tx) NextEventID() (int64, error) {
	var last sql.NullInt64
	if err := t.tx.NewRaw("SELECT max(id) FROM events").Scan(t.ctx, &last); err != nil {
		return 0, err
	}
	// Pruning may take the last one: time keeps ids growing.
	return max(last.Int64+1, t.Now.UnixMicro()), nil
}

// AddEvent stores an event.
func (t *Tx) AddEvent(e *Event) error {
	_, err := t.tx.NewInsert().Model(e).Exec(t.ctx)
	return err
}

// EventFilter says which events are wanted; empty fields want all.
type EventFilter struct {
	// Before and After bound the id: Before < 0 has no bound.
	Before, After int64
	Kind          string
	// Subject is a part of it, in either case.
	Subject  string
	Severity int
	// Since is in Unix milliseconds.
	Since int64
	Limit int64
	// OldestFirst orders by growing ids.
	OldestFirst bool
}

// Events returns events in the order of their ids.
func (t *Tx) Events(f EventFilter) ([]Event, error) {
	var out []Event
	q := t.tx.NewSelect().Model(&out).Where("id > ?", f.After).Where("severity >= ?", f.Severity).Where("at >= ?", f.Since).Limit(f.Limit)
	if f.Before >= 0 {
		q = q.Where("id < ?", f.Before)
	}
	if f.Kind != "" {
		q = q.Where("kind = ?", f.Kind)
	}
	if f.Subject != "" {
		q = q.Where(contains("subject"), likePattern(f.Subject))
	}
	if f.OldestFirst {
		q = q.Order("id")
	} else {
		q = q.OrderExpr("id DESC")
	}
	return out, q.Scan(t.ctx)
}

// LastEventID is the id of the newest event; 0 if there is none.
func (t *Tx) LastEventID() (int64, error) {
	var last sql.NullInt64
	err := t.tx.NewRaw("SELECT max(id) FROM events").Scan(t.ctx, &last)
	return last.Int64, err
}

// PruneEvents forgets events from before a time, and all but the newest keep.
func (t *Tx) PruneEvents(before int64, keep int) error {
	if _, err := t.tx.NewRaw("DELETE FROM events WHERE at < ?", before).Exec(t.ctx); err != nil {
		return err
	}
	_, err := t.tx.NewRaw("DELETE FROM events WHERE id <= (SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?)", keep).Exec(t.ctx)
	return err
}

// Condition is something that is so since a time, e.g. that an agent is offline. Entry is its
// hubv1.CurrentProblem.
type Condition struct {
	bun.BaseModel `bun:"table:conditions"`

	Name  string `bun:",pk"`
	Entry []byte
	Since int64
}

// Conditions returns all.
func (t *Tx) Conditions() ([]Condition, error) {
	var out []Condition
	return out, t.tx.NewSelect().Model(&out).Order("name").Scan(t.ctx)
}

// SetCondition notes or changes a condition; since when it is so stays.
func (t *Tx) SetCondition(c *Condition) error {
	_, err := t.tx.NewInsert().Model(c).On("CONFLICT (name) DO UPDATE").Set("entry = EXCLUDED.entry").Exec(t.ctx)
	return err
}

// DropCondition notes that it is so no longer.
func (t *Tx) DropCondition(name string) error {
	_, err := t.tx.NewRaw("DELETE FROM conditions WHERE name = ?", name).Exec(t.ctx)
	return err
}

// SeenPlace notes that a token was used on a host from an address. It reports whether that is new,
// and whether it is the first place of the token at all.
func (t *Tx) SeenPlace(tokenID, hostName, address string) (isNew, first bool, err error) {
	var n int
	if err := t.tx.NewRaw("SELECT count(*) FROM places WHERE token_id = ?", tokenID).Scan(t.ctx, &n); err != nil {
		return false, false, err
	}
	res, err := t.tx.NewRaw("INSERT INTO places (token_id, host_name, address, first_seen) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
		tokenID, hostName, address, t.Now.UnixMilli()).Exec(t.ctx)
	if err != nil {
		return false, false, err
	}
	added, err := res.RowsAffected()
	return added > 0, n == 0, err
}

// DropPlaces forgets where a token was used.
func (t *Tx) DropPlaces(tokenID string) error {
	_, err := t.tx.NewRaw("DELETE FROM places WHERE token_id = ?", tokenID).Exec(t.ctx)
	return err
}

// Traffic is what passed one tunnel in one step of time. Step and At are seconds, At the begin of
// the step in Unix time; Counters is its hubv1.TrafficReport.
type Traffic struct {
	bun.BaseModel `bun:"table:traffic"`

	Step     int64  `bun:",pk"`
	At       int64  `bun:",pk"`
	TunnelID string `bun:",pk"`
	Counters []byte
}

// TrafficAt returns one row; nil if there is none.
func (t *Tx) TrafficAt(step, at int64, tunnelID string) (*Traffic, error) {
	row := &Traffic{}
	err := t.tx.NewSelect().Model(row).Where("step = ? AND at = ? AND tunnel_id = ?", step, at, tunnelID).Scan(t.ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return row, err
}

// PutTraffic stores a row.
func (t *Tx) PutTraffic(row *Traffic) error {
	_, err := t.tx.NewInsert().Model(row).On("CONFLICT (step, at, tunnel_id) DO UPDATE").Set("counters = EXCLUDED.counters").Exec(t.ctx)
	return err
}

// TrafficOf returns the rows of one step from since to until (until excluded), oldest first; an
// empty tunnelID is all tunnels.
func (t *Tx) TrafficOf(tunnelID string, step, since, until int64) ([]Traffic, error) {
	var out []Traffic
	q := t.tx.NewSelect().Model(&out).Where("step = ? AND at >= ? AND at < ?", step, since, until).Order("at")
	if tunnelID != "" {
		q = q.Where("tunnel_id = ?", tunnelID)
	}
	return out, q.Scan(t.ctx)
}

// PruneTraffic forgets rows of a step from before a time.
func (t *Tx) PruneTraffic(step, before int64) error {
	_, err := t.tx.NewRaw("DELETE FROM traffic WHERE step = ? AND at < ?", step, before).Exec(t.ctx)
	return err
}

// CountTraffic counts the rows of a step.
func (t *Tx) CountTraffic(step int64) (n int, err error) {
	return n, t.tx.NewRaw("SELECT count(*) FROM traffic WHERE step = ?", step).Scan(t.ctx, &n)
}

// NoticeTarget is where events are sent. Spec is its hubv1.NoticeTarget without secrets, Secrets
// the sealed ones; Cursor the last event that was dealt with. Times are Unix milliseconds.
type NoticeTarget struct {
	bun.BaseModel `bun:"table:notice_targets"`

	Name         string `bun:",pk"`
	Spec         []byte
	Secrets      []byte
	Cursor       int64
	NextTry      int64
	Tries        int
	LastError    string
	LastDelivery int64
}

// NoticeTargets returns all.
func (t *Tx) NoticeTargets() ([]*NoticeTarget, error) {
	var out []*NoticeTarget
	return out, t.tx.NewSelect().Model(&out).Order("name").Scan(t.ctx)
}

// NoticeTarget returns one by name.
func (t *Tx) NoticeTarget(name string) (*NoticeTarget, error) {
	n := &NoticeTarget{}
	return n, wrap(t.tx.NewSelect().Model(n).Where("name = ?", name).Scan(t.ctx))
}

// PutNoticeTarget stores a target.
func (t *Tx) PutNoticeTarget(n *NoticeTarget) error {
	_, err := t.tx.NewInsert().Model(n).On("CONFLICT (name) DO UPDATE").Set("spec = EXCLUDED.spec").Set("secrets = EXCLUDED.secrets").
		Set("cursor = EXCLUDED.cursor").Set("next_try = EXCLUDED.next_try").Set("tries = EXCLUDED.tries").
		Set("last_error = EXCLUDED.last_error").Set("last_delivery = EXCLUDED.last_delivery").Exec(t.ctx)
	return err
}

// DeleteNoticeTarget removes a target; ErrNotFound if there is none.
func (t *Tx) DeleteNoticeTarget(name string) error {
	res, err := t.tx.NewRaw("DELETE FROM notice_targets WHERE name = ?", name).Exec(t.ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrNotFound
}

// TokensWithPlaces are the ids of the tokens that were used at all.
func (t *Tx) TokensWithPlaces() ([]string, error) {
	var out []string
	return out, t.tx.NewRaw("SELECT DISTINCT token_id FROM places").Scan(t.ctx, &out)
}
