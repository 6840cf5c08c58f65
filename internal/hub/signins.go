package hub

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// signInIdle ends a sign-in that is not used, signInLongest any.
	signInIdle    = 12 * time.Hour
	signInLongest = 7 * 24 * time.Hour
	// seenEvery is how exactly uses are noted.
	seenEvery = time.Minute
	// knownFor is how long a browser stays known to an account.
	knownFor = 365 * 24 * time.Hour
)

var errDisabled = &Problem{Code: reason.AccessDenied, Text: "the account is disabled", Remedy: "ask an admin"}

// Browser is where somebody signs in.
type Browser struct {
	Address   netip.Addr
	UserAgent string
	// Known is the cookie that an earlier sign-in left.
	Known string
}

// NewSignIn is what a browser gets for a sign-in: two cookies.
type NewSignIn struct {
	Cookie  string
	Expires time.Time
	// Known lets the browser try on while others guess.
	Known        string
	KnownExpires time.Time
}

// pageCall is the context of what somebody does on a page without a credential.
func (h *Hub) pageCall(ctx context.Context, b Browser, what, subject string) context.Context {
	return WithActor(ctx, &Actor{From: b.Address.Unmap(), What: what, Subject: subject})
}

// signIn makes a sign-in for u and stores u.
func (h *Hub) signIn(tx *store.Tx, u *store.User, b Browser, method string) (*NewSignIn, error) {
	u.LastSignInAt = tx.Now.UnixMilli()
	if err := tx.PutUser(u); err != nil {
		return nil, err
	}
	secret, hash := newSecret()
	s := &store.SignIn{
		ID: newID(), Hash: hash, UserID: u.ID, Method: method, Address: b.Address.Unmap().String(), UserAgent: clip(b.UserAgent, maxField),
		CreatedAt: tx.Now.UnixMilli(), LastSeenAt: tx.Now.UnixMilli(), ExpiresAt: tx.Now.Add(signInLongest).UnixMilli(),
	}
	until := tx.Now.Add(knownFor)
	return &NewSignIn{Cookie: secret, Expires: time.UnixMilli(s.ExpiresAt), Known: h.knownCookie(u.ID, until), KnownExpires: until}, tx.AddSignIn(s)
}

// knownCookie says that a browser was signed in to an account; it admits to nothing.
func (h *Hub) knownCookie(userID string, until time.Time) string {
	text := userID + "." + strconv.FormatInt(until.Unix(), 10)
	key := h.key.Derive("known browser v1")
	m := hmac.New(sha256.New, key[:])
	m.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func (h *Hub) knows(cookie, userID string) bool {
	id, rest, _ := strings.Cut(cookie, ".")
	end, _, _ := strings.Cut(rest, ".")
	sec, err := strconv.ParseInt(end, 10, 64)
	if err != nil || id != userID || h.cfg.Now().Unix() > sec {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(h.knownCookie(id, time.Unix(sec, 0))), []byte(cookie)) == 1
}

// SignIn signs in with name and password. The attempt is counted before the comparison.
func (h *Hub) SignIn(ctx context.Context, b Browser, name, password string) (*NewSignIn, error) {
	ctx = h.pageCall(ctx, b, "sign_in", "user "+name)
	a := ActorFrom(ctx)
	in, err := h.trySignIn(ctx, b, name, password)
	var out *LockedOut
	if err != nil && !errors.As(err, &out) {
		h.Finished(ctx, err)
		h.log.Info("sign-in failed", "user", clip(name, maxField), "from", a.From.String(), "reason", reason.Of(err, reason.HopHub).Code)
	}
	return in, err
}

func (h *Hub) trySignIn(ctx context.Context, b Browser, name, password string) (in *NewSignIn, err error) {
	wrong := &Problem{Code: reason.Unauthenticated, Text: "name or password is wrong", Remedy: "check both; an admin of this hub can give you a new link"}
	if len(password) > 4*maxPassword || len(name) > maxField {
		return nil, wrong
	}
	var u *store.User
	budget := budget{address: b.Address}
	err = h.store.Write(ctx, func(tx *store.Tx) error {
		var err error
		u, err = tx.UserNamed(name)
		if errors.Is(err, store.ErrNotFound) || err == nil && strings.EqualFold(u.ID, name) {
			u, err = &store.User{}, nil
		}
		if err != nil {
			return err
		}
		budget.account, budget.known = u.ID, u.ID != "" && h.knows(b.Known, u.ID)
		locked, err := budget.take(tx)
		if err != nil {
			return err
		}
		return h.tellLockOut(tx, locked, name)
	})
	if err != nil {
		return nil, err
	}
	ok, err := h.hasher.verify(ctx, u.Password, password)
	if err != nil {
		// It was not compared, so it was no guess.
		_ = h.store.Write(context.WithoutCancel(ctx), budget.give)
		return nil, err
	}
	if !ok || u.Pending {
		return nil, wrong
	}
	if u.Disabled {
		return nil, errDisabled
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		if err := budget.give(tx); err != nil {
			return err
		}
		// The account may have changed since.
		now, err := tx.User(u.ID)
		if err != nil || now.Disabled || now.Password != u.Password {
			return errors.Join(wrong, err)
		}
		ActorFrom(ctx).Name = now.Name
		in, err = h.signIn(tx, now, b, "password")
		return err
	})
	return in, err
}

// SignedIn tells who has a cookie; it notes the use.
func (h *Hub) SignedIn(ctx context.Context, cookie string, from netip.Addr) (*Actor, error) {
	if cookie == "" {
		return nil, unauthenticated("nobody is signed in")
	}
	var s *store.SignIn
	var u *store.User
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) { s, u, err = tx.SignInOf(hashOf(cookie)); return err })
	now := h.cfg.Now()
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, unauthenticated("the sign-in has ended")
	case err != nil:
		return nil, err
	case u.Disabled, now.UnixMilli() >= s.ExpiresAt, now.Sub(time.UnixMilli(s.LastSeenAt)) >= signInIdle:
		return nil, unauthenticated("the sign-in has ended")
	}
	if now.Sub(time.UnixMilli(s.LastSeenAt)) >= seenEvery {
		h.quietly(ctx, func(tx *store.Tx) error { return tx.SeenSignIn(s.ID) })
	}
	return &Actor{Name: u.Name, UserName: u.Name, UserID: u.ID, Role: u.Role, SignInID: s.ID, SignedIn: time.UnixMilli(s.CreatedAt), From: from.Unmap()}, nil
}

// quietly writes what nobody waits for; a store that takes nothing does not stop reads.
func (h *Hub) quietly(ctx context.Context, f func(*store.Tx) error) {
	if err := h.store.Write(context.WithoutCancel(ctx), f); err != nil {
		h.log.Debug("a use was not noted", "error", err)
	}
}

// ListSessions returns one page of sign-ins, browsers and tools: the caller's, or for an owner those
// of a user or of everybody ("*").
func (h *Hub) ListSessions(ctx context.Context, r *hubv1.ListSessionsRequest) ([]*hubv1.SignIn, string, error) {
	after, n, err := pageOf(r.GetPageSize(), r.GetPageToken(), 1)
	if err != nil {
		return nil, "", err
	}
	out := []*hubv1.SignIn{}
	next := ""
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		userID, err := whose(tx, ActorFrom(ctx), r.GetUser())
		if err != nil {
			return err
		}
		browsers, err := tx.SignIns(userID, after[0], int64(n+1))
		if err != nil {
			return err
		}
		tools, err := tx.Keys(userID, after[0], true, int64(n+1))
		if err != nil {
			return err
		}
		for len(browsers)+len(tools) > 0 {
			if len(out) == n {
				next = pageToken(out[n-1].GetId())
				return nil
			}
			if len(tools) == 0 || len(browsers) > 0 && browsers[0].ID < tools[0].ID {
				if s := browsers[0]; tx.Now.UnixMilli() < s.ExpiresAt && tx.Now.Sub(time.UnixMilli(s.LastSeenAt)) < signInIdle {
					out = append(out, &hubv1.SignIn{Id: s.ID, User: s.UserName, Address: s.Address, UserAgent: s.UserAgent, CreatedAt: stamp(s.CreatedAt),
						LastSeenAt: stamp(s.LastSeenAt), ExpiresAt: stamp(s.ExpiresAt), Method: s.Method})
				}
				browsers = browsers[1:]
				continue
			}
			if k := tools[0]; !expired(k.ExpiresAt, tx.Now) {
				out = append(out, &hubv1.SignIn{Id: k.ID, User: k.UserName, Address: k.LastUsedFrom, UserAgent: k.Name, CreatedAt: stamp(k.SignedInAt),
					LastSeenAt: stamp(k.LastUsedAt), ExpiresAt: stamp(k.ExpiresAt), Method: "device"})
			}
			tools = tools[1:]
		}
		return nil
	})
	return out, next, err
}

// whose resolves the user that a list is of: "" is the caller, "*" everybody.
func whose(tx *store.Tx, a *Actor, user string) (string, error) {
	switch {
	case user == "" && a.UserID != "", user == a.UserID && a.UserID != "", user != "" && strings.EqualFold(user, a.UserName):
		return a.UserID, nil
	case a.Role != RoleOwner:
		return "", &Problem{Code: reason.AccessDenied, Field: "user", Value: user, Text: "is not you", Remedy: "ask an owner, or leave it away for your own"}
	case user == "" || user == "*":
		return "", nil
	}
	u, err := findUser(tx, user)
	if err != nil {
		return "", err
	}
	return u.ID, nil
}

// RevokeSession ends one sign-in, or all of a user.
func (h *Hub) RevokeSession(ctx context.Context, r *hubv1.RevokeSessionRequest) (n int, err error) {
	a := ActorFrom(ctx)
	if len(a.Scopes) > 0 && r.GetId() != a.SignInID {
		return 0, &Problem{Code: reason.AccessDenied, Field: "id", Value: r.GetId(), Text: "is not the sign-in of this key, which has scopes", Remedy: "use a key without scopes"}
	}
	if r.GetId() == "" && r.GetUser() == "" {
		return 0, invalid("id", "", "give the id of a sign-in (adit session list), or a user to end all of theirs", "nothing is named")
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		user := r.GetUser()
		if user == "" && a.Role == RoleOwner {
			user = "*"
		}
		userID, err := whose(tx, a, user)
		if err != nil {
			return err
		}
		if r.GetId() == "" {
			n, err = tx.DropSignIns(userID, "")
			return err
		}
		if n, err = tx.DropSignIn(r.GetId(), userID); err == nil && n == 0 {
			err = notFound("sign-in", r.GetId(), "list them with adit session list")
		}
		return err
	})
	return n, err
}

// ChangePassword sets the caller's password and ends their other sign-ins. One who has a password
// gives it; one who has none needs a fresh sign-in. The sign-in that goes on has a new cookie.
func (h *Hub) ChangePassword(ctx context.Context, b Browser, old, password string) (in *NewSignIn, err error) {
	a := ActorFrom(ctx)
	a.What, a.Subject = "change_password", "user "+a.UserName
	if err := checkPassword(password, a.UserName); err != nil {
		return nil, err
	}
	var u *store.User
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { u, err = tx.User(a.UserID); return err }); err != nil {
		return nil, err
	}
	if u.Password == "" && !a.Fresh(h.cfg.Now()) {
		return nil, &Problem{Code: reason.AccessDenied, Text: "the sign-in is older than ten minutes", Remedy: "sign in again, then set the password"}
	}
	if u.Password != "" {
		if err := h.checkOwn(ctx, b, u, old); err != nil {
			return nil, err
		}
	}
	hash, err := h.hasher.hash(ctx, password)
	if err != nil {
		return nil, err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		now, err := tx.User(u.ID)
		if err != nil {
			return err
		}
		if now.Password != u.Password || now.Disabled {
			return &Problem{Code: reason.Invalid, Text: "the account was changed at the same moment", Remedy: "load the page again"}
		}
		now.Password = hash
		if _, err := tx.DropSignIns(u.ID, ""); err != nil {
			return err
		}
		in, err = h.signIn(tx, now, b, "password")
		return err
	})
	return in, err
}

// checkOwn compares the password of somebody who is signed in; guesses count as at sign-in.
func (h *Hub) checkOwn(ctx context.Context, b Browser, u *store.User, password string) error {
	budget := budget{address: b.Address, account: u.ID, known: h.knows(b.Known, u.ID)}
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		locked, err := budget.take(tx)
		if err != nil {
			return err
		}
		return h.tellLockOut(tx, locked, u.Name)
	})
	if err != nil {
		return err
	}
	ok, err := h.hasher.verify(ctx, u.Password, password)
	if err == nil && !ok {
		return &Problem{Code: reason.Unauthenticated, Field: "old", Text: "the password is wrong", Remedy: "type the password you sign in with now"}
	}
	if werr := h.store.Write(context.WithoutCancel(ctx), budget.give); werr != nil && err == nil {
		err = werr
	}
	return err
}

// SignOut ends the caller's own sign-in, or all of them.
func (h *Hub) SignOut(ctx context.Context, everywhere bool) error {
	a := ActorFrom(ctx)
	a.What, a.Subject = "sign_out", "user "+a.UserName
	return h.write(ctx, func(tx *store.Tx) error {
		var err error
		if everywhere {
			_, err = tx.DropSignIns(a.UserID, "")
		} else {
			_, err = tx.DropSignIn(a.SignInID, a.UserID)
		}
		if err != nil {
			return fmt.Errorf("sign out: %w", err)
		}
		return nil
	})
}

func expired(at int64, now time.Time) bool { return at > 0 && now.UnixMilli() >= at }
