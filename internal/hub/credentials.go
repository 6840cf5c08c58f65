package hub

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"strings"

	"github.com/adit-dev/adit/internal/reason"
)

func unauthenticated(text string) error {
	return reason.New(reason.Unauthenticated, reason.HopHub, "%s", text)
}

// Authenticate tells who calls with a bearer key. The admin key counts from loopback peers only.
func (h *Hub) Authenticate(ctx context.Context, key string, peer netip.Addr) (*Actor, error) {
	switch {
	case key == "":
		return nil, unauthenticated("a key is needed: send Authorization: Bearer KEY")
	case strings.HasPrefix(key, adminPrefix):
		return h.authenticateAdmin(ctx, key, peer)
	}
	return nil, unauthenticated("the key is not known to this hub")
}

func (h *Hub) authenticateAdmin(ctx context.Context, key string, peer netip.Addr) (*Actor, error) {
	sum := sha256.Sum256([]byte(key))
	if subtle.ConstantTimeCompare(sum[:], h.adminHash[:]) != 1 {
		return nil, unauthenticated("the key is not known to this hub; if " + AdminKeyFile + " was replaced, restart the server")
	}
	if !peer.Unmap().IsLoopback() {
		return nil, unauthenticated(AdminKeyFile + " is accepted on the server's own host only")
	}
	return &Actor{Name: "local-admin@" + h.hostName, Role: RoleOwner, Local: true, From: peer}, nil
}
