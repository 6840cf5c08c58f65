package hub

import (
	"context"
	"net/netip"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// auditFailed records that something was refused: it changed nothing, so the row has a
// transaction of its own.
func (h *Hub) auditFailed(ctx context.Context, what, who, subject string, from netip.Addr, code reason.Code) {
	err := h.store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		return tx.AddAudit(&store.AuditEntry{Who: who, What: what, Subject: subject, Source: from.String(), Result: string(code)})
	})
	if err != nil {
		h.log.Error("a refusal was not written to the audit", "what", what, "who", who, "error", err)
	}
}
