package hub

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

var userNameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$`)

func checkUserName(field, name string) *Problem {
	if !userNameRule.MatchString(name) {
		return invalid(field, name, "use 1 to 100 letters, digits and . _ @ + -; the first a letter or digit", "is no usable user name")
	}
	return nil
}

func userExists(name string) error {
	return conflict(reason.NameConflict, "name", name, "", "", "a user of this name exists", "choose another name")
}

func findUser(tx *store.Tx, idOrName string) (*store.User, error) {
	u, err := tx.UserNamed(idOrName)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound("user", idOrName, "list them with adit user list")
	}
	return u, err
}

func userView(u *store.User) *hubv1.User {
	v := &hubv1.User{
		Id: u.ID, Name: u.Name, DisplayName: u.DisplayName, Email: u.Email, EmailVerified: u.EmailVerified, Role: u.Role, Disabled: u.Disabled,
		CreatedAt: stamp(u.CreatedAt), LastSignInAt: stamp(u.LastSignInAt), HasPassword: u.Password != "", Pending: u.Pending,
	}
	for _, i := range u.Identities {
		v.Identities = append(v.Identities, &hubv1.Identity{Provider: i.Provider, Issuer: i.Issuer, Subject: i.Subject, Email: i.Email})
	}
	return v
}

// WhoAmI tells whose credential the call has.
func (h *Hub) WhoAmI(ctx context.Context) (*hubv1.WhoAmIResponse, error) {
	a := ActorFrom(ctx)
	out := &hubv1.WhoAmIResponse{Name: a.Name, Role: a.Role, Scopes: a.Scopes, Hub: h.cfg.URL, SignInId: a.SignInID}
	if a.UserID == "" {
		return out, nil
	}
	return out, h.store.Read(ctx, func(tx *store.Tx) error {
		u, err := tx.User(a.UserID)
		if err == nil {
			out.User = userView(u)
		}
		return err
	})
}

// GetUser returns a user by id or name.
func (h *Hub) GetUser(ctx context.Context, idOrName string) (out *hubv1.User, err error) {
	return out, h.store.Read(ctx, func(tx *store.Tx) error {
		u, err := findUser(tx, idOrName)
		if err == nil {
			out = userView(u)
		}
		return err
	})
}

// ListUsers returns one page of users by name.
func (h *Hub) ListUsers(ctx context.Context, r *hubv1.ListUsersRequest) ([]*hubv1.User, string, error) {
	at, n, err := pageOf(r.GetPageSize(), r.GetPageToken(), 1)
	if err != nil {
		return nil, "", err
	}
	var rows []*store.User
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.Users(at[0], r.GetFilter(), int64(n+1)); return err }); err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > n {
		rows = rows[:n]
		next = pageToken(rows[n-1].NameKey)
	}
	out := make([]*hubv1.User, len(rows))
	for i, u := range rows {
		out[i] = userView(u)
	}
	return out, next, nil
}

func checkRole(field, role string) error {
	if roleRank[role] == 0 {
		return invalid(field, role, "use owner, admin, viewer or visitor", "is no role")
	}
	return nil
}

// mayGive refuses a role above the caller's own.
func mayGive(a *Actor, field, role string) error {
	if !RoleIncludes(a.Role, role) {
		return &Problem{Code: reason.AccessDenied, Field: field, Value: role, Text: "is above your own role " + a.Role, Remedy: "ask an owner"}
	}
	return nil
}

// mayTouch refuses to change an owner for anybody else.
func mayTouch(a *Actor, u *store.User) error {
	if u.Role == RoleOwner && a.Role != RoleOwner {
		return &Problem{Code: reason.AccessDenied, Field: "id", Value: u.Name, Text: "is an owner", Remedy: "ask an owner"}
	}
	return nil
}

// InviteUser makes a user who has not made their account yet, and the link for it. A user that is
// still pending gets a new link.
func (h *Hub) InviteUser(ctx context.Context, r *hubv1.InviteUserRequest) (out *hubv1.User, url string, until time.Time, err error) {
	role := r.GetRole()
	if role == "" {
		role = RoleViewer
	}
	if p := checkUserName("name", r.GetName()); p != nil {
		return nil, "", until, p
	}
	if err := checkRole("role", role); err != nil {
		return nil, "", until, err
	}
	if err := mayGive(ActorFrom(ctx), "role", role); err != nil {
		return nil, "", until, err
	}
	if err := checkEmail(r.GetEmail()); err != nil {
		return nil, "", until, err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		u, err := tx.UserNamed(r.GetName())
		switch {
		case errors.Is(err, store.ErrNotFound):
			u = &store.User{ID: newID(), Name: r.GetName(), Email: r.GetEmail(), Role: role, Pending: true, CreatedAt: tx.Now.UnixMilli()}
			err = tx.AddUser(u)
		case err == nil && !u.Pending:
			err = userExists(r.GetName())
		case err == nil:
			if err = mayTouch(ActorFrom(ctx), u); err != nil {
				return err
			}
			u.Email, u.Role = r.GetEmail(), role
			if err = tx.PutUser(u); err == nil {
				err = tx.DropLinks(linkInvite, u.ID)
			}
		}
		if err != nil {
			return err
		}
		out = userView(u)
		url, until, err = h.addLink(tx, linkInvite, u.ID, inviteFor)
		return err
	})
	if store.Duplicate(err) {
		err = userExists(r.GetName())
	}
	return out, url, until, err
}

func checkEmail(s string) error {
	if s == "" {
		return nil
	}
	if a, err := mail.ParseAddress(s); err != nil || a.Address != s || len(s) > 254 {
		return invalid("email", s, "give an address as alice@example.com, or none", "is no e-mail address")
	}
	return nil
}

// UpdateUser changes role, display name or whether the account is disabled. Sign-ins end when role
// or disabled change.
func (h *Hub) UpdateUser(ctx context.Context, r *hubv1.UpdateUserRequest) (out *hubv1.User, err error) {
	if r.Role == nil && r.DisplayName == nil && r.Disabled == nil {
		return nil, invalid("role", "", "give role, display_name or disabled", "nothing would change")
	}
	if r.Role != nil {
		if err := checkRole("role", r.GetRole()); err != nil {
			return nil, err
		}
		if err := mayGive(ActorFrom(ctx), "role", r.GetRole()); err != nil {
			return nil, err
		}
	}
	if n := utf8.RuneCountInString(r.GetDisplayName()); n > 100 {
		return nil, invalid("display_name", "", "use at most 100 characters", "has %d characters", n)
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		u, err := findUser(tx, r.GetId())
		if err != nil {
			return err
		}
		if err := mayTouch(ActorFrom(ctx), u); err != nil {
			return err
		}
		was := *u
		if r.Role != nil {
			// A role given by hand is not the provider's any more.
			u.Role, u.MappedBy = r.GetRole(), ""
		}
		if r.DisplayName != nil {
			u.DisplayName = r.GetDisplayName()
		}
		if r.Disabled != nil {
			u.Disabled = r.GetDisabled()
		}
		if err := tx.PutUser(u); err != nil {
			return err
		}
		if u.Role != was.Role || u.Disabled != was.Disabled {
			if err := keepOwner(tx, &was); err != nil {
				return err
			}
			if _, err := tx.DropSignIns(u.ID, ""); err != nil {
				return err
			}
		}
		out = userView(u)
		return nil
	})
	return out, err
}

// keepOwner refuses a change that leaves nobody who can do everything.
func keepOwner(tx *store.Tx, was *store.User) error {
	if was.Role != RoleOwner || was.Pending || was.Disabled {
		return nil
	}
	n, err := tx.Owners()
	if err == nil && n == 0 {
		err = &Problem{Code: reason.Invalid, Field: "id", Value: was.Name, Text: "is the last owner", Remedy: "make another user an owner first"}
	}
	return err
}

// DeleteUser deletes a user with sign-ins and keys; tunnels of the user pass to the caller.
func (h *Hub) DeleteUser(ctx context.Context, idOrName string) error {
	a := ActorFrom(ctx)
	return h.write(ctx, func(tx *store.Tx) error {
		u, err := findUser(tx, idOrName)
		if err != nil {
			return err
		}
		if err := mayTouch(a, u); err != nil {
			return err
		}
		if u.ID == a.UserID {
			return &Problem{Code: reason.Invalid, Field: "id", Value: u.Name, Text: "is yourself", Remedy: "ask another owner or admin, or run the command on the server's host"}
		}
		if err := tx.DropUser(u.ID); err != nil {
			return err
		}
		if err := keepOwner(tx, u); err != nil {
			return err
		}
		if err := h.passTunnels(tx, u.ID, a.UserID); err != nil {
			return fmt.Errorf("tunnels of %s: %w", u.Name, err)
		}
		return nil
	})
}

// passTunnels gives the tunnels of one user to another; "" is the server's own host.
func (h *Hub) passTunnels(tx *store.Tx, from, to string) error {
	all, err := tx.Tunnels()
	if err != nil {
		return err
	}
	for _, t := range all {
		spec := &hubv1.Tunnel{}
		if err := proto.Unmarshal(t.Spec, spec); err != nil {
			return err
		}
		if spec.GetOwner() != from {
			continue
		}
		spec.Owner = to
		if t.Spec, err = proto.Marshal(spec); err != nil {
			return err
		}
		if err := tx.SetTunnel(t); err != nil {
			return err
		}
		tx.Changed("tunnel/" + t.ID)
	}
	return nil
}
