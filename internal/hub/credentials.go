package hub

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/netip"
	"strings"
	"sync"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/limits"
	"github.com/adit-dev/adit/internal/reason"
)

func unauthenticated(text string) error {
	return reason.New(reason.Unauthenticated, reason.HopHub, "%s", text)
}

// Authenticate tells who calls with a bearer key. The admin key counts from loopback peers only.
// With an error it still tells whose key it was, where it is known.
func (h *Hub) Authenticate(ctx context.Context, key string, peer netip.Addr) (*Actor, error) {
	switch {
	case key == "":
		return nil, unauthenticated("a key is needed: send Authorization: Bearer KEY")
	case strings.HasPrefix(key, adminPrefix):
		return h.authenticateAdmin(ctx, key, peer)
	case strings.HasPrefix(key, keyPrefix):
		return h.authenticateKey(ctx, key, peer.Unmap())
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

// Still tells whether the credential of a call that goes on is good yet.
func (h *Hub) Still(ctx context.Context, a *Actor) error {
	if a.UserID == "" {
		return nil
	}
	now := h.cfg.Now()
	return h.store.Read(ctx, func(tx *store.Tx) error {
		u, err := tx.User(a.UserID)
		if err == nil && !u.Disabled && u.Role == a.Role {
			var ok bool
			if ok, err = tx.CredentialLives(a.SignInID, a.KeyID, now.UnixMilli()); ok {
				return nil
			}
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil // the store is away, not the credential
		}
		return unauthenticated("the sign-in or key of this stream has ended")
	})
}

// badKeys bounds the rows that wrong keys of one address make in the audit, per minute.
const badKeys = 5

// badKeyCount counts wrong keys in the running minute.
type badKeyCount struct {
	mu     sync.Mutex
	minute int64
	from   map[netip.Addr]int
}

// BadKey records that somebody called with a key that is none: a few times a minute, since it
// costs them nothing.
func (h *Hub) BadKey(ctx context.Context, what string) {
	a := ActorFrom(ctx)
	c := &h.badKeys
	c.mu.Lock()
	if m := h.cfg.Now().Unix() / 60; m != c.minute || c.from == nil {
		c.minute, c.from = m, map[netip.Addr]int{}
	}
	from := limits.Source(a.From)
	total := len(c.from)
	c.from[from]++
	tell := c.from[from] <= badKeys && total < 20*badKeys
	c.mu.Unlock()
	if tell {
		a.What = what
		h.noteAudit(ctx, a, string(reason.Unauthenticated))
	}
}
