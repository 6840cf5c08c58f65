package hub

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// keepAudit is how long rows of the audit are kept.
	keepAudit = 365 * 24 * time.Hour
	// maxDetail bounds the detail of a row, in bytes.
	maxDetail = 8 << 10
	maxField  = 256
)

// record adds the row of this call to the transaction that makes the change. A call that changes
// several things has one row, with the first.
func (a *Actor) record(tx *store.Tx) error {
	if a.What == "" || a.recorded || a.Machine && !tx.Touched() {
		return nil
	}
	tx.AfterCommit(func() { a.recorded = true })
	return a.add(tx, string(reason.OK))
}

func (a *Actor) add(tx *store.Tx, result string) error {
	from := ""
	if a.From.IsValid() {
		from = a.From.String()
	}
	return tx.AddAudit(&store.Audit{Who: clip(a.Name, maxField), What: a.What, Subject: clip(a.Subject, maxField), Source: from,
		Result: result, Detail: clip(a.Detail, maxDetail)})
}

func clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "�")
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "�") + "…"
}

// unrecorded are results that say nothing about the caller.
var unrecorded = map[reason.Code]bool{reason.Internal: true, reason.StoreUnavailable: true}

// Finished records what no change recorded: a call that was refused, and one that succeeded without
// changing the store.
func (h *Hub) Finished(ctx context.Context, err error) {
	a := ActorFrom(ctx)
	if a.What == "" || a.recorded || a.Machine {
		return
	}
	result := reason.OK
	if err != nil {
		if result = reason.Of(err, reason.HopHub).Code; unrecorded[result] {
			return
		}
	}
	a.recorded = true
	h.noteAudit(ctx, a, string(result))
}

// noteAudit stores a row by itself. That the store takes nothing now must not stop the caller.
func (h *Hub) noteAudit(ctx context.Context, a *Actor, result string) {
	err := h.store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error { return a.add(tx, result) })
	if err != nil {
		h.log.Error("audit: a row is lost", "who", a.Name, "what", a.What, "result", result, "error", err)
	}
}

// ListAudit returns one page of the audit, newest first.
func (h *Hub) ListAudit(ctx context.Context, r *hubv1.ListAuditRequest) ([]*hubv1.AuditEntry, string, error) {
	at, n, err := pageOf(r.GetPageSize(), r.GetPageToken(), 1)
	if err != nil {
		return nil, "", err
	}
	f := store.AuditFilter{Who: r.GetWho(), What: r.GetWhat(), Subject: r.GetSubject(), Limit: int64(n + 1)}
	if at[0] != "" {
		if f.Before, err = strconv.ParseInt(at[0], 10, 64); err != nil {
			return nil, "", invalid("page_token", r.GetPageToken(), "use next_page_token of the page before, or none", "is no page token")
		}
	}
	if r.GetSince() != nil {
		f.Since = r.GetSince().AsTime().UnixMilli()
	}
	if r.GetUntil() != nil {
		f.Until = r.GetUntil().AsTime().UnixMilli()
	}
	var rows []*store.Audit
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.Audits(f); return err }); err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > n {
		rows = rows[:n]
		next = pageToken(strconv.FormatInt(rows[n-1].ID, 10))
	}
	out := make([]*hubv1.AuditEntry, len(rows))
	for i, a := range rows {
		out[i] = &hubv1.AuditEntry{Id: uint64(a.ID), At: stamp(a.At), Who: a.Who, What: a.What, Subject: a.Subject, From: a.Source, Result: a.Result, Detail: a.Detail}
	}
	return out, next, nil
}

// pruneAccounts deletes what has expired, from time to time.
func (h *Hub) pruneAccounts(ctx context.Context) error {
	return h.store.Write(ctx, func(tx *store.Tx) error {
		if err := tx.PruneAudit(tx.Now.Add(-keepAudit).UnixMilli()); err != nil {
			return err
		}
		return tx.PruneAccounts(tx.Now.Add(-signInIdle).UnixMilli(), tx.Now.Add(-24*time.Hour).UnixMilli())
	})
}
