package hub

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// signInIdle and signInLife bound a dashboard session: without use, and at all.
	signInIdle = 12 * time.Hour
	signInLife = 7 * 24 * time.Hour
	// seenStep is how exactly the last use of a session or key is noted.
	seenStep = time.Minute
	// maxUserAgent bounds what is kept of a browser's name.
	maxUserAgent = 200
)

// MethodPassword is how somebody signed in; other methods are the names of providers.
const MethodPassword = "password"

// openSignIn begins a session of a user and returns its cookie, which is stored as a hash only.
func (h *Hub) openSignIn(tx *store.Tx, user *store.User, method string, from netip.Addr, userAgent string) (cookie string, err error) {
	if user.Disabled || user.Pending {
		return "", reason.New(reason.AccessDenied, reason.HopHub, "the account %s may not sign in", user.Name)
	}
	secret, hash, err := newSecret()
	if err != nil {
		return "", err
	}
	id, _, err := newSecret()
	if err != nil {
		return "", err
	}
	now := tx.Now.UnixMilli()
	user.LastSignInAt = now
	if err := tx.SetUser(user); err != nil {
		return "", err
	}
	return secret, tx.AddSignIn(&store.SignIn{
		ID: id[:16], Hash: hash, UserID: user.ID, Address: from.String(), UserAgent: clip(userAgent, maxUserAgent), Method: method,
		CreatedAt: now, LastSeenAt: now, ExpiresAt: tx.Now.Add(signInLife).UnixMilli(), AuthenticatedAt: now,
	})
}

func clip(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// Browser is who sends a form of the dashboard, and the session that its cookie names.
type Browser struct {
	From      netip.Addr
	UserAgent string
	// Cookie is empty without one.
	Cookie string
}

// SignIn signs a user in with a password, and ends the session that the browser had: its cookie
// is another one afterwards.
func (h *Hub) SignIn(ctx context.Context, b Browser, name, password string) (cookie string, err error) {
	key := strings.ToLower(strings.TrimSpace(name))
	g := guesser{account: key, from: b.From}
	if err := h.takeGuess(ctx, g); err != nil {
		h.auditFailed(ctx, "sign_in", clip(key, maxUserAgent), "", b.From, reason.Of(err, reason.HopHub).Code)
		return "", err
	}
	var u *store.User
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) { u, err = tx.UserNamed(key); return err })
	if errors.Is(err, store.ErrNotFound) {
		u, err = &store.User{}, nil
	}
	if err != nil {
		return "", err
	}
	right, err := h.verifyPassword(ctx, u.Password, password)
	if err != nil {
		return "", err
	}
	if !right || u.Disabled || u.Pending {
		h.auditFailed(ctx, "sign_in", clip(key, maxUserAgent), "", b.From, reason.Unauthenticated)
		return "", reason.New(reason.Unauthenticated, reason.HopHub, "name or password is wrong, or the account is disabled")
	}
	err = h.write(h.page(ctx, u, b, "sign_in"), func(tx *store.Tx) error {
		now, err := tx.User(u.ID)
		if err != nil {
			return err
		}
		if now.Password != u.Password { // changed while it was compared
			return reason.New(reason.Unauthenticated, reason.HopHub, "the password was changed at this moment; sign in again")
		}
		if err := h.rightGuess(tx, g); err != nil {
			return err
		}
		if err := endSignIn(tx, b.Cookie); err != nil {
			return err
		}
		cookie, err = h.openSignIn(tx, now, MethodPassword, b.From, b.UserAgent)
		return err
	})
	return cookie, err
}

// page is the context of something that a user does on a page, for the audit.
func (h *Hub) page(ctx context.Context, u *store.User, b Browser, what string) context.Context {
	a := &Actor{Name: u.Name, UserID: u.ID, UserName: u.Name, Role: u.Role, From: b.From}
	a.What = what
	return WithActor(ctx, a)
}

// endSignIn ends the session of a cookie, if there is one.
func endSignIn(tx *store.Tx, cookie string) error {
	if cookie == "" {
		return nil
	}
	s, err := tx.SignInByHash(hashSecret(cookie))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.DeleteSignIn(s.ID)
}

// SignedIn tells whose session a browser's cookie names. Nobody's is an Unauthenticated error.
func (h *Hub) SignedIn(ctx context.Context, b Browser) (*Actor, error) {
	nobody := reason.New(reason.Unauthenticated, reason.HopHub, "sign in first")
	if b.Cookie == "" {
		return nil, nobody
	}
	var s *store.SignIn
	var u *store.User
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if s, err = tx.SignInByHash(hashSecret(b.Cookie)); err == nil {
			u, err = tx.User(s.UserID)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nobody
	}
	if err != nil {
		return nil, err
	}
	now := h.cfg.Now()
	if u.Disabled || now.UnixMilli() >= s.ExpiresAt || now.Sub(time.UnixMilli(s.LastSeenAt)) >= signInIdle {
		return nil, nobody
	}
	if now.Sub(time.UnixMilli(s.LastSeenAt)) >= seenStep {
		s.LastSeenAt, s.Address = now.UnixMilli(), b.From.String()
		if err := h.store.Write(ctx, func(tx *store.Tx) error { return tx.SetSignIn(s) }); err != nil {
			h.log.Warn("use of a session not noted", "error", err)
		}
	}
	return &Actor{
		Name: u.Name, UserID: u.ID, UserName: u.Name, Role: u.Role, SignInID: s.ID, SignedIn: time.UnixMilli(s.AuthenticatedAt), From: b.From,
	}, nil
}

// SignOut ends the browser's session, or all of its user.
func (h *Hub) SignOut(ctx context.Context, b Browser, everywhere bool) error {
	a, err := h.SignedIn(ctx, b)
	if err != nil {
		return ignoreUnauthenticated(err)
	}
	a.What = "sign_out"
	return h.write(WithActor(ctx, a), func(tx *store.Tx) error {
		if everywhere {
			_, err := tx.DeleteSignInsOf(a.UserID, "")
			return err
		}
		return tx.DeleteSignIn(a.SignInID)
	})
}

func ignoreUnauthenticated(err error) error {
	if reason.Is(err, reason.Unauthenticated) {
		return nil
	}
	return err
}

// newUserID is the id of a new user.
func newUserID() (string, error) {
	k, err := identity.NewNodeKey()
	if err != nil {
		return "", err
	}
	return k.ID(), nil
}
