package hub

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"time"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// One-time links. The secret is in the fragment of the address, so that no server logs it; the hub
// keeps its hash.
const (
	linkSetUp  = "setup"
	linkInvite = "invite"
	linkReset  = "reset"
	linkSignIn = "sign-in"

	setUpFor  = 24 * time.Hour
	inviteFor = 72 * time.Hour
	resetFor  = 24 * time.Hour
	signInFor = time.Hour
)

// Pages of one-time links on the hub's host.
const (
	PathSetUp  = "/setup"
	PathJoin   = "/join"
	PathReset  = "/reset"
	PathEnter  = "/enter"
	PathDevice = "/device"
)

var linkPaths = map[string]string{linkSetUp: PathSetUp, linkInvite: PathJoin, linkReset: PathReset, linkSignIn: PathEnter}

// newSecret returns 256 random bits as text, and their hash.
func newSecret() (string, []byte) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	s := base64.RawURLEncoding.EncodeToString(raw)
	return s, hashOf(s)
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// newID names a row.
func newID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// addLink makes a link in a transaction and returns its address.
func (h *Hub) addLink(tx *store.Tx, kind, userID string, d time.Duration) (string, time.Time, error) {
	secret, hash := newSecret()
	until := tx.Now.Add(d)
	err := tx.AddLink(&store.Link{Hash: hash, Kind: kind, UserID: userID, CreatedAt: tx.Now.UnixMilli(), ExpiresAt: until.UnixMilli()})
	return h.cfg.URL + linkPaths[kind] + "#" + secret, until, err
}

// useLink takes a link, once.
func useLink(tx *store.Tx, kind, secret string) (*store.Link, error) {
	l, err := tx.Link(kind, hashOf(secret))
	if errors.Is(err, store.ErrNotFound) {
		return nil, &Problem{Code: reason.Unauthenticated, Field: "code", Text: "the link is not known, was used, or has expired", Remedy: "ask for a new one"}
	}
	if err != nil {
		return nil, err
	}
	return l, tx.DropLinks(kind, l.UserID)
}

// needsSetUp tells whether nobody can sign in as owner yet.
func needsSetUp(tx *store.Tx) (bool, error) {
	n, err := tx.Owners()
	return n == 0, err
}

// SetUpLink makes a link with which the first owner makes their account. It is refused once there
// is an owner.
func (h *Hub) SetUpLink(ctx context.Context) (url string, until time.Time, err error) {
	err = h.write(ctx, func(tx *store.Tx) error {
		needed, err := needsSetUp(tx)
		if err != nil {
			return err
		}
		if !needed {
			return &Problem{Code: reason.Invalid, Text: "this hub is set up: it has an owner", Remedy: "to recover access run `adit user reset NAME` on the server's host"}
		}
		url, until, err = h.addLink(tx, linkSetUp, "", setUpFor)
		return err
	})
	return url, until, err
}

// SetUpOpen tells whether there is no owner yet, and whether a set-up link waits for one.
func (h *Hub) SetUpOpen(ctx context.Context) (needed, open bool, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		if needed, err = needsSetUp(tx); err != nil || !needed {
			return err
		}
		n, err := tx.LiveLinks(linkSetUp)
		open = n > 0
		return err
	})
	return needed, open, err
}

// SetUp makes the first owner with the secret of a set-up link and signs them in.
func (h *Hub) SetUp(ctx context.Context, b Browser, secret, name, password string) (*NewSignIn, error) {
	ctx = h.pageCall(ctx, b, "set_up", "user "+name)
	if p := checkUserName("name", name); p != nil {
		return nil, p
	}
	if err := checkPassword(password, name); err != nil {
		return nil, err
	}
	// Hashing is dear: strangers do not get as far.
	err := h.store.Read(ctx, func(tx *store.Tx) error { _, err := tx.Link(linkSetUp, hashOf(secret)); return err })
	if errors.Is(err, store.ErrNotFound) {
		err = &Problem{Code: reason.Unauthenticated, Field: "code", Text: "the set-up link is not known, was used, or has expired", Remedy: "run `adit server setup-link` on the server's host for a new one"}
	}
	if err != nil {
		return nil, err
	}
	hash, err := h.hasher.hash(ctx, password)
	if err != nil {
		return nil, err
	}
	var in *NewSignIn
	err = h.write(ctx, func(tx *store.Tx) error {
		if needed, err := needsSetUp(tx); err != nil || !needed {
			if err == nil {
				err = &Problem{Code: reason.Unauthenticated, Text: "this hub has an owner already", Remedy: "sign in, or ask the owner for an invitation"}
			}
			return err
		}
		if _, err := useLink(tx, linkSetUp, secret); err != nil {
			return err
		}
		u := &store.User{ID: newID(), Name: name, Role: RoleOwner, Password: hash, CreatedAt: tx.Now.UnixMilli()}
		if err := tx.AddUser(u); err != nil {
			return err
		}
		ActorFrom(ctx).Name = u.Name
		in, err = h.signIn(tx, u, b, "password")
		return err
	})
	if store.Duplicate(err) {
		err = userExists(name)
	}
	if err == nil {
		h.dropSetUpFile()
	}
	return in, err
}

// linkUser takes a link of a user and hands the user to f, which may change it; then f's sign-in
// stands.
func (h *Hub) linkUser(ctx context.Context, kind, secret string, f func(tx *store.Tx, u *store.User) error) error {
	return h.write(ctx, func(tx *store.Tx) error {
		l, err := useLink(tx, kind, secret)
		if err != nil {
			return err
		}
		u, err := tx.User(l.UserID)
		if err != nil {
			return err
		}
		if u.Disabled {
			return errDisabled
		}
		a := ActorFrom(ctx)
		a.Name, a.Subject = u.Name, "user "+u.Name
		return f(tx, u)
	})
}

// checkLink refuses a secret that is none before anything dear is done for it.
func (h *Hub) checkLink(ctx context.Context, kind, secret string) error {
	return h.store.Read(ctx, func(tx *store.Tx) error {
		_, err := tx.Link(kind, hashOf(secret))
		if errors.Is(err, store.ErrNotFound) {
			err = &Problem{Code: reason.Unauthenticated, Field: "code", Text: "the link is not known, was used, or has expired", Remedy: "ask for a new one"}
		}
		return err
	})
}

// Join makes an account with the secret of an invitation and signs the person in. An empty name
// takes the invited one.
func (h *Hub) Join(ctx context.Context, b Browser, secret, name, password string) (in *NewSignIn, err error) {
	ctx = h.pageCall(ctx, b, "accept_invitation", "")
	if name != "" {
		if p := checkUserName("name", name); p != nil {
			return nil, p
		}
	}
	if err := checkPassword(password, name); err != nil {
		return nil, err
	}
	if err := h.checkLink(ctx, linkInvite, secret); err != nil {
		return nil, err
	}
	hash, err := h.hasher.hash(ctx, password)
	if err != nil {
		return nil, err
	}
	err = h.linkUser(ctx, linkInvite, secret, func(tx *store.Tx, u *store.User) error {
		if name != "" {
			u.Name = name
		}
		u.Password, u.Pending = hash, false
		in, err = h.signIn(tx, u, b, "password")
		return err
	})
	if store.Duplicate(err) {
		err = userExists(name)
	}
	return in, err
}

// SetPassword sets a new password with the secret of a reset link, ends all sign-ins of the person
// and signs them in.
func (h *Hub) SetPassword(ctx context.Context, b Browser, secret, password string) (in *NewSignIn, err error) {
	ctx = h.pageCall(ctx, b, "reset_password", "")
	if err := checkPassword(password, ""); err != nil {
		return nil, err
	}
	if err := h.checkLink(ctx, linkReset, secret); err != nil {
		return nil, err
	}
	hash, err := h.hasher.hash(ctx, password)
	if err != nil {
		return nil, err
	}
	err = h.linkUser(ctx, linkReset, secret, func(tx *store.Tx, u *store.User) error {
		if _, err := tx.DropSignIns(u.ID, ""); err != nil {
			return err
		}
		if err := tx.DropAttempt("account " + u.ID); err != nil {
			return err
		}
		u.Password, u.Pending = hash, false
		in, err = h.signIn(tx, u, b, "password")
		return err
	})
	return in, err
}

// Enter signs in with a one-time sign-in link.
func (h *Hub) Enter(ctx context.Context, b Browser, secret string) (in *NewSignIn, err error) {
	ctx = h.pageCall(ctx, b, "sign_in", "")
	err = h.linkUser(ctx, linkSignIn, secret, func(tx *store.Tx, u *store.User) error {
		u.Pending = false
		in, err = h.signIn(tx, u, b, "link")
		return err
	})
	return in, err
}

// UserLink makes a one-time link for a user: with kind reset one that sets a new password, with
// sign-in one that signs in.
func (h *Hub) userLink(ctx context.Context, kind, idOrName string, d time.Duration) (url string, until time.Time, err error) {
	err = h.write(ctx, func(tx *store.Tx) error {
		u, err := findUser(tx, idOrName)
		if err != nil {
			return err
		}
		if u.Disabled {
			return &Problem{Code: reason.Invalid, Field: "id", Value: idOrName, Text: "the user is disabled", Remedy: "enable the user first: adit user set " + u.Name + " --disabled=false"}
		}
		if err := tx.DropLinks(kind, u.ID); err != nil {
			return err
		}
		url, until, err = h.addLink(tx, kind, u.ID, d)
		return err
	})
	return url, until, err
}

// ResetUser makes a link that sets a new password.
func (h *Hub) ResetUser(ctx context.Context, idOrName string) (string, time.Time, error) {
	return h.userLink(ctx, linkReset, idOrName, resetFor)
}

// SignInLink makes a link that signs a user in, once, within the hour.
func (h *Hub) SignInLink(ctx context.Context, idOrName string) (string, time.Time, error) {
	return h.userLink(ctx, linkSignIn, idOrName, signInFor)
}
