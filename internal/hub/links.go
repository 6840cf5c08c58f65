package hub

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// Purposes of one-time links; each leads to the page of its name.
const (
	LinkSetup  = "setup"
	LinkInvite = "invite"
	LinkReset  = "reset"
	LinkSignIn = "sign_in"
)

// How long links may be used.
const (
	setupLinkLife  = 24 * time.Hour
	inviteLinkLife = 72 * time.Hour
	resetLinkLife  = time.Hour
	signInLinkLife = 10 * time.Minute
)

var linkPages = map[string]string{LinkSetup: "/setup", LinkInvite: "/invite", LinkReset: "/reset", LinkSignIn: "/sign-in-link"}

// newSecret is 256 random bits, and their SHA-256: what is stored.
func newSecret() (secret string, hash []byte, err error) {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", nil, err
	}
	secret = base64.RawURLEncoding.EncodeToString(raw)
	return secret, hashSecret(secret), nil
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// newLink makes a one-time link in place of those of the same purpose and user. The secret is in
// the fragment, which browsers send to nobody.
func (h *Hub) newLink(tx *store.Tx, purpose, userID string, valid time.Duration) (url string, expires time.Time, err error) {
	secret, hash, err := newSecret()
	if err != nil {
		return "", time.Time{}, err
	}
	if err := tx.DropLinks(purpose, userID); err != nil {
		return "", time.Time{}, err
	}
	expires = tx.Now.Add(valid)
	l := &store.Link{Hash: hash, Purpose: purpose, UserID: userID, ExpiresAt: expires.UnixMilli()}
	if err := tx.AddLink(l); err != nil {
		return "", time.Time{}, err
	}
	return h.cfg.URL + linkPages[purpose] + "#" + secret, expires, nil
}

// useLink consumes a link: what it is good for happens in the same transaction.
func (h *Hub) useLink(tx *store.Tx, purpose, secret string) (*store.Link, error) {
	l, err := tx.Link(purpose, hashSecret(secret))
	if errors.Is(err, store.ErrNotFound) {
		return nil, &Problem{Code: reason.NotFound, Field: "link", Text: "was used already, has expired, or never was", Remedy: "ask for a new one"}
	}
	if err != nil {
		return nil, err
	}
	return l, tx.DropLinks(l.Purpose, l.UserID)
}
