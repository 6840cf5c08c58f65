package hub

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// keyFor is how long an API key lives when nothing else is asked for.
	keyFor = 90 * 24 * time.Hour
	// prefixLen is how much of a key is shown in lists.
	prefixLen = len("adit_key_") + 6
	maxHosts  = 64
	maxKeys   = 200
)

var (
	scopeThings = []string{"tunnels", "agents", "invites", "access", "certs", "audit"}
	keyPrefix   = "adit_" + string(identity.KindKey) + "_"
)

// checkScopes returns scopes in order and once each; it refuses those that no key has.
func checkScopes(field string, in []string) ([]string, error) {
	var out []string
	for i, s := range in {
		thing, verb, _ := strings.Cut(s, ":")
		if s != "forward" && (!slices.Contains(scopeThings, thing) || verb != "read" && verb != "write") {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), s, "use forward, or one of "+strings.Join(scopeThings, ", ")+" with :read or :write", "is no scope")
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	sort.Strings(out)
	return out, nil
}

func checkHosts(in []string) ([]string, error) {
	if len(in) > maxHosts {
		return nil, invalid("hosts", "", fmt.Sprintf("give at most %d", maxHosts), "%d patterns are too many", len(in))
	}
	var out []string
	for i, s := range in {
		p, err := hostname.Parse(s)
		if err != nil {
			return nil, invalid(fmt.Sprintf("hosts[%d]", i), s, "give a name as a.example.com, *.example.com or **.example.com", "%v", err)
		}
		out = append(out, p.String())
	}
	return out, nil
}

// bearer makes the text of an API key and what the store keeps of it.
func (h *Hub) bearer() (string, *store.Key, error) {
	t, err := identity.NewToken(identity.KindKey, h.cfg.URL, [][]byte{h.key.Hash()}, nil)
	if err != nil {
		return "", nil, err
	}
	text, err := t.Encode()
	if err != nil {
		return "", nil, err
	}
	// Keys of one hub begin alike: what tells them apart is at their end, where the checksum is.
	return text, &store.Key{ID: newID(), Hash: hashOf(text), Prefix: text[:prefixLen] + "…" + text[len(text)-4:]}, nil
}

// CreateKey makes an API key of the caller, of another user for an owner, or an operator's key.
func (h *Hub) CreateKey(ctx context.Context, r *hubv1.CreateKeyRequest) (*hubv1.Key, string, error) {
	a := ActorFrom(ctx)
	if p := checkName("name", r.GetName()); p != nil {
		return nil, "", p
	}
	scopes, err := checkScopes("scopes", r.GetScopes())
	if err != nil {
		return nil, "", err
	}
	hosts, err := checkHosts(r.GetHosts())
	if err != nil {
		return nil, "", err
	}
	var until int64
	if e := r.GetExpiresAt(); e != nil {
		if !e.IsValid() || !e.AsTime().After(h.cfg.Now()) {
			return nil, "", invalid("expires_at", e.AsTime().Format(time.RFC3339), "give a time in the future", "is in the past")
		}
		until = e.AsTime().UnixMilli()
	}
	if r.GetOperator() {
		return h.createOperatorKey(ctx, r.GetName(), scopes, hosts, until)
	}
	token, k, err := h.bearer()
	if err != nil {
		return nil, "", err
	}
	k.Name, k.Scopes, k.Hosts, k.ExpiresAt = r.GetName(), strings.Join(scopes, " "), strings.Join(hosts, " "), until
	err = h.write(ctx, func(tx *store.Tx) error {
		if r.GetUser() == "" && a.UserID == "" {
			return invalid("user", "", "name the user whose key it is to be (--user), or make an operator's key (--operator)", "a key belongs to a user, and %s is none", a.Name)
		}
		id, err := whose(tx, a, r.GetUser())
		if err != nil {
			return err
		}
		if id == "" {
			id = r.GetUser()
		}
		u, err := findUser(tx, id)
		if err != nil {
			return err
		}
		if err := mayHold(u, scopes); err != nil {
			return err
		}
		mine, err := tx.Keys(u.ID, "", false, maxKeys)
		if err != nil {
			return err
		}
		if len(mine) >= maxKeys {
			return invalid("user", u.Name, "delete keys that are not used any more", "has %d keys, which is the most", len(mine))
		}
		k.UserID, k.UserName, k.CreatedAt = u.ID, u.Name, tx.Now.UnixMilli()
		if until == 0 {
			k.ExpiresAt = tx.Now.Add(keyFor).UnixMilli()
		}
		return tx.AddKey(k)
	})
	if store.Duplicate(err) {
		err = conflict(reason.NameConflict, "name", r.GetName(), "", "", "a key of this name exists", "choose another name, or delete it first")
	}
	if err != nil {
		return nil, "", err
	}
	return keyView(k), token, nil
}

// mayHold refuses scopes that the user's role does not have.
func mayHold(u *store.User, scopes []string) error {
	if u.Disabled || u.Pending {
		return &Problem{Code: reason.Invalid, Field: "user", Value: u.Name, Text: "cannot sign in now", Remedy: "enable the user, or wait until the invitation is accepted"}
	}
	if u.Role == RoleVisitor {
		return &Problem{Code: reason.AccessDenied, Field: "user", Value: u.Name, Text: "is a visitor, who may do nothing with a key", Remedy: "ask an admin for another role"}
	}
	for i, s := range scopes {
		if u.Role == RoleViewer && !strings.HasSuffix(s, ":read") {
			return &Problem{Code: reason.AccessDenied, Field: fmt.Sprintf("scopes[%d]", i), Value: s, Text: "is more than the role viewer may", Remedy: "use scopes that end with :read"}
		}
	}
	return nil
}

// createOperatorKey makes a token of kind key: the operator proves itself with it as agents do.
func (h *Hub) createOperatorKey(ctx context.Context, name string, scopes, hosts []string, until int64) (*hubv1.Key, string, error) {
	if err := mayGive(ActorFrom(ctx), "operator", RoleAdmin); err != nil {
		return nil, "", err
	}
	if len(scopes) > 0 {
		return nil, "", invalid("scopes", scopes[0], "leave scopes away; hosts limit what the operator may claim", "an operator's key has no scopes")
	}
	tok := &store.Token{Kind: string(identity.KindKey), Name: name, Tenant: store.DefaultTenant, ExpiresAt: until}
	for _, p := range hosts {
		tok.Grants = append(tok.Grants, store.Grant{Protocol: store.Host, Pattern: p})
	}
	token, err := h.newToken(identity.KindKey, tok)
	if err != nil {
		return nil, "", err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		for i, g := range tok.Grants {
			p, err := hostname.Parse(g.Pattern)
			if err != nil {
				return err
			}
			if err := h.freeName(tx, fmt.Sprintf("hosts[%d]", i), tok.Tenant, p); err != nil {
				return err
			}
		}
		tok.CreatedAt = tx.Now.UnixMilli()
		if err := tx.AddToken(tok); err != nil {
			return err
		}
		tx.Changed("credential/" + tok.ID)
		return nil
	})
	if store.Duplicate(err) {
		err = conflict(reason.NameConflict, "name", name, "", "", "an operator's key of this name exists", "choose another name, or delete it first")
	}
	if err != nil {
		return nil, "", err
	}
	return operatorKeyView(tok), token, nil
}

func keyView(k *store.Key) *hubv1.Key {
	return &hubv1.Key{Id: k.ID, Name: k.Name, User: k.UserName, Scopes: k.ScopeList(), Hosts: k.HostList(), CreatedAt: stamp(k.CreatedAt),
		ExpiresAt: stamp(k.ExpiresAt), LastUsedAt: stamp(k.LastUsedAt), LastUsedFrom: k.LastUsedFrom, Prefix: k.Prefix}
}

func operatorKeyView(t *store.Token) *hubv1.Key {
	return &hubv1.Key{Id: t.ID, Name: t.Name, Hosts: grantOf(t).GetHostnames(), CreatedAt: stamp(t.CreatedAt), ExpiresAt: stamp(t.ExpiresAt),
		Prefix: keyPrefix, Operator: true}
}

// ListKeys returns one page of keys: the caller's, or everybody's with those of operators.
func (h *Hub) ListKeys(ctx context.Context, r *hubv1.ListKeysRequest) ([]*hubv1.Key, string, error) {
	a := ActorFrom(ctx)
	if r.GetAll() && !RoleIncludes(a.Role, RoleAdmin) {
		return nil, "", &Problem{Code: reason.AccessDenied, Field: "all", Value: "true", Text: "keys of others are shown to admins and owners", Remedy: "leave it away for your own"}
	}
	var all []*hubv1.Key
	err := h.store.Read(ctx, func(tx *store.Tx) error {
		userID := a.UserID
		if r.GetAll() || userID == "" {
			userID = ""
			toks, err := tx.LiveTokensOf([]string{string(identity.KindKey)}, "", "", 0)
			if err != nil {
				return err
			}
			for _, t := range toks {
				all = append(all, operatorKeyView(t))
			}
		}
		keys, err := tx.Keys(userID, "", false, 100*maxKeys)
		for _, k := range keys {
			all = append(all, keyView(k))
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	sort.Slice(all, func(i, j int) bool { return all[i].GetId() < all[j].GetId() })
	return cut(all, func(k *hubv1.Key) string { return k.GetId() }, r.GetPageSize(), r.GetPageToken())
}

// DeleteKey ends a key: one's own, an operator's for admins, anybody's for owners.
func (h *Hub) DeleteKey(ctx context.Context, idOrName string) error {
	a := ActorFrom(ctx)
	var mine bool
	err := h.write(ctx, func(tx *store.Tx) error {
		k, err := tx.KeyNamed(a.UserID, idOrName)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if k.UserID != a.UserID && a.Role != RoleOwner {
			return &Problem{Code: reason.AccessDenied, Field: "id", Value: idOrName, Text: "is a key of " + k.UserName, Remedy: "ask an owner, or its user"}
		}
		mine = true
		return tx.DropKey(k.ID)
	})
	if err != nil || mine {
		return err
	}
	if !RoleIncludes(a.Role, RoleAdmin) {
		return notFound("key", idOrName, "list them with adit key list")
	}
	_, err = h.revoke(ctx, identity.KindKey, "key", idOrName)
	return err
}

// authenticateKey tells whose API key it is. It never exceeds its user.
func (h *Hub) authenticateKey(ctx context.Context, key string, from netip.Addr) (*Actor, error) {
	var k *store.Key
	var u *store.User
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) { k, u, err = tx.KeyOf(hashOf(key)); return err })
	now := h.cfg.Now()
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, unauthenticated("the key is not known to this hub: it was deleted, belongs to another hub, or is an operator's")
	case err != nil:
		return nil, err
	}
	a := &Actor{Name: "key:" + k.Name + "@" + u.Name, UserName: u.Name, UserID: u.ID, Role: u.Role, KeyID: k.ID,
		Scopes: k.ScopeList(), Hosts: k.HostList(), From: from}
	if k.SignedInAt > 0 {
		a.Name, a.SignInID, a.SignedIn = u.Name, k.ID, time.UnixMilli(k.SignedInAt)
	}
	switch {
	case expired(k.ExpiresAt, now):
		return a, reason.New(reason.TokenExpired, reason.HopHub, "the key %q expired on %s; make a new one with adit key create, or sign in again with adit login",
			k.Name, time.UnixMilli(k.ExpiresAt).UTC().Format("2006-01-02"))
	case u.Disabled:
		return a, unauthenticated("the account of the key's user is disabled; ask an admin")
	}
	if now.Sub(time.UnixMilli(k.LastUsedAt)) >= seenEvery || k.LastUsedFrom != from.String() {
		h.quietly(ctx, func(tx *store.Tx) error { return tx.UsedKey(k.ID, from.String()) })
	}
	return a, nil
}
