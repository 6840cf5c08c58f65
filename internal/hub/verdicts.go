package hub

import (
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
)

// verdictsItem is noted as changed when what stood in the way of an entry that a token declares may
// be gone. It is no resource: watches of the token tell their agents to declare again.
func verdictsItem(token string) string { return "verdicts/" + token }

func isVerdicts(item string) bool { return strings.HasPrefix(item, "verdicts/") }

// askAgainFor has those declare again who were refused the address of t, which is free now.
func (h *Hub) askAgainFor(tx *store.Tx, t *hubv1.Tunnel) error {
	refused, err := tx.DeclarationsFor(nil)
	if err != nil {
		return err
	}
	for _, d := range refused {
		e := &hubv1.DeclaredTunnel{}
		if err := proto.Unmarshal(d.Entry, e); err == nil && wantsAddress(e, t) {
			tx.Changed(verdictsItem(d.TokenID))
		}
	}
	return nil
}

// wantsAddress tells whether a declared entry claims an address that t has.
func wantsAddress(e *hubv1.DeclaredTunnel, t *hubv1.Tunnel) bool {
	p := protocolOf(e.GetKind())
	if p != protocolOf(t.GetKind()) {
		return false
	}
	if p != store.Host {
		return e.GetPort() <= max(t.GetPort(), t.GetPortLast()) && t.GetPort() <= max(e.GetPort(), e.GetPortLast())
	}
	name, err := hostname.Parse(e.GetHostname())
	return err == nil && name.String() == t.GetHostname()
}
