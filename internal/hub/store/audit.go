package store

import (
	"database/sql"

	"github.com/uptrace/bun"
)

// Audit is one row of the audit. Rows are added and, after a year, pruned; nothing changes them.
type Audit struct {
	bun.BaseModel `bun:"table:audit"`

	ID      int64 `bun:",pk"`
	At      int64
	Who     string
	What    string
	Subject string
	Source  string
	Result  string
	Detail  string
}

// AddAudit stores a row; id and time are those of the transaction.
func (t *Tx) AddAudit(a *Audit) error {
	var last sql.NullInt64
	if err := t.tx.NewRaw("SELECT max(id) FROM audit").Scan(t.ctx, &last); err != nil {
		return err
	}
	a.ID, a.At = max(last.Int64+1, t.Now.UnixMicro()), t.Now.UnixMilli()
	_, err := t.tx.NewInsert().Model(a).Exec(t.ctx)
	return err
}

// AuditFilter says which rows are wanted; empty fields want all.
type AuditFilter struct {
	// Before bounds the id; 0 = no bound.
	Before int64
	// Who and What are whole, Subject is a part.
	Who, What, Subject string
	// Since and Until are Unix milliseconds.
	Since, Until int64
	Limit        int64
}

// Audits returns rows, newest first.
func (t *Tx) Audits(f AuditFilter) ([]*Audit, error) {
	var out []*Audit
	q := t.tx.NewSelect().Model(&out).Order("id DESC").Limit(f.Limit)
	if f.Before > 0 {
		q = q.Where("id < ?", f.Before)
	}
	if f.Who != "" {
		q = q.Where("who = ?", f.Who)
	}
	if f.What != "" {
		q = q.Where("what = ?", f.What)
	}
	if f.Subject != "" {
		q = q.Where(contains("subject"), likePattern(f.Subject))
	}
	if f.Since > 0 {
		q = q.Where("at >= ?", f.Since)
	}
	if f.Until > 0 {
		q = q.Where("at < ?", f.Until)
	}
	return out, q.Scan(t.ctx)
}

// PruneAudit deletes rows from before a time.
func (t *Tx) PruneAudit(before int64) error {
	_, err := t.tx.NewRaw("DELETE FROM audit WHERE at < ?", before).Exec(t.ctx)
	return err
}

// Touched tells whether the transaction noted a change that edges or agents hear of.
func (t *Tx) Touched() bool { return len(t.changed) > 0 }
