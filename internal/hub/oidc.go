package hub

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// flowLife is how long somebody may take at the provider.
const flowLife = 10 * time.Minute

const flowPurpose = "sign-in at a provider"

// flow is a sign-in that has begun, sealed in the store.
type flow struct {
	Provider, Nonce, Verifier string
	// Browser is the hash of the cookie of the browser that began it.
	Browser []byte
	// LinkUser is who, being signed in, wants the account linked; empty for a sign-in.
	LinkUser string
}

// StartOIDC begins a sign-in at a provider, or the linking of an account to link, who is signed in.
// The browser goes to the address, with the cookie.
func (h *Hub) StartOIDC(ctx context.Context, provider string, link *Actor) (address, cookie string, err error) {
	p, err := h.relyingParty(ctx, provider)
	if err != nil {
		return "", "", err
	}
	f := flow{Provider: provider, Verifier: oauth2.GenerateVerifier()}
	if link != nil {
		if !link.Fresh(h.cfg.Now()) {
			return "", "", reason.New(reason.AccessDenied, reason.HopHub, "linking an account needs a sign-in younger than ten minutes; sign in again")
		}
		f.LinkUser = link.UserID
	}
	state, stateHash := newSecret()
	f.Nonce, _ = newSecret()
	cookie, f.Browser = newSecret()
	raw, err := json.Marshal(f)
	if err != nil {
		return "", "", err
	}
	sealed, err := h.sealer.Seal(flowPurpose, raw)
	if err != nil {
		return "", "", err
	}
	err = h.store.Write(ctx, func(tx *store.Tx) error {
		return tx.AddOIDCFlow(&store.OIDCFlow{Hash: stateHash, Sealed: sealed, ExpiresAt: tx.Now.Add(flowLife).UnixMilli()})
	})
	if err != nil {
		return "", "", err
	}
	return h.oauth(p).AuthCodeURL(state, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), cookie, nil
}

// FinishOIDC takes what the provider sent the browser back with, and signs in or links; after
// linking there is no new sign-in.
func (h *Hub) FinishOIDC(ctx context.Context, b Browser, provider string, answer url.Values, flowCookie string) (in *NewSignIn, err error) {
	ctx = h.pageCall(ctx, b, "sign_in", "provider "+clip(provider, 32))
	defer func() {
		if err != nil {
			h.Finished(ctx, err)
		}
	}()
	f, err := h.takeFlow(ctx, provider, answer.Get("state"), flowCookie)
	if err != nil {
		return nil, err
	}
	p, err := h.relyingParty(ctx, provider)
	if err != nil {
		return nil, err
	}
	who, err := h.askProvider(ctx, p, f, answer)
	if err != nil {
		return nil, err
	}
	if f.LinkUser != "" {
		return nil, h.linkIdentity(ctx, f.LinkUser, who)
	}
	return h.signInAs(ctx, b, p, who)
}

// takeFlow finds the sign-in that an answer belongs to, once.
func (h *Hub) takeFlow(ctx context.Context, provider, state, cookie string) (*flow, error) {
	stale := reason.New(reason.Unauthenticated, reason.HopHub, "this sign-in took too long, was finished already, or began in another browser; begin again")
	if state == "" || cookie == "" {
		return nil, stale
	}
	var row *store.OIDCFlow
	err := h.store.Write(ctx, func(tx *store.Tx) (err error) { row, err = tx.TakeOIDCFlow(hashOf(state)); return err })
	if errors.Is(err, store.ErrNotFound) {
		return nil, stale
	}
	if err != nil {
		return nil, err
	}
	raw, err := h.sealer.Open(flowPurpose, row.Sealed)
	if err != nil {
		return nil, err
	}
	f := &flow{}
	if err := json.Unmarshal(raw, f); err != nil {
		return nil, err
	}
	if f.Provider != provider || subtle.ConstantTimeCompare(f.Browser, hashOf(cookie)) != 1 {
		return nil, stale
	}
	return f, nil
}

// account is who a provider says somebody is.
type account struct {
	provider, issuer, subject, name string
	// email is set only if the provider vouches for it.
	email  string
	groups []string
}

// askProvider exchanges the code and checks what comes (OpenID Connect Core 1.0, 3.1.3.7).
func (h *Hub) askProvider(ctx context.Context, p *relyingParty, f *flow, answer url.Values) (*account, error) {
	if code := answer.Get("error"); code != "" {
		return nil, providerFailed(p, "it refused: %s", clip(code+" "+answer.Get("error_description"), 200))
	}
	if iss := answer.Get("iss"); iss != "" && iss != p.spec.GetIssuer() { // RFC 9207
		return nil, providerFailed(p, "the answer is from another provider, %s", clip(iss, 200))
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, providerClient(p.spec.GetIssuer())), providerTimeout)
	defer cancel()
	token, err := h.oauth(p).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return nil, providerFailed(p, "it did not take its own code: %v", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return nil, providerFailed(p, "its answer has no id_token")
	}
	id, err := p.provider.VerifierContext(ctx, &oidc.Config{ClientID: p.spec.GetClientId(), Now: h.cfg.Now}).Verify(ctx, raw)
	if err != nil {
		return nil, providerFailed(p, "its id_token is not valid: %v", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return nil, providerFailed(p, "its id_token is for another sign-in")
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return nil, providerFailed(p, "its id_token cannot be read: %v", err)
	}
	if err := h.addUserInfo(ctx, p, token, id.Subject, claims); err != nil {
		return nil, err
	}
	a := &account{provider: p.spec.GetName(), issuer: id.Issuer, subject: id.Subject, groups: texts(claims[p.spec.GetGroupsClaim()])}
	email, _ := claims["email"].(string)
	verified := claims["email_verified"] == true || claims["email_verified"] == "true"
	if verified || p.spec.GetTrustEmail() {
		a.email = strings.ToLower(strings.TrimSpace(email))
	}
	for _, claim := range []string{"preferred_username", "nickname", "email"} {
		if s, _ := claims[claim].(string); a.name == "" {
			a.name, _, _ = strings.Cut(s, "@")
		}
	}
	return a, nil
}

// addUserInfo adds what only the provider's userinfo says: some keep e-mail and groups there.
func (h *Hub) addUserInfo(ctx context.Context, p *relyingParty, token *oauth2.Token, subject string, claims map[string]any) error {
	_, hasEmail := claims["email"]
	_, hasGroups := claims[p.spec.GetGroupsClaim()]
	if p.provider.UserInfoEndpoint() == "" || hasEmail && (hasGroups || p.spec.GetAdminGroup() == "") {
		return nil
	}
	info, err := p.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return providerFailed(p, "its userinfo failed: %v", err)
	}
	if info.Subject != subject {
		return providerFailed(p, "its userinfo is of somebody else")
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil {
		return providerFailed(p, "its userinfo cannot be read: %v", err)
	}
	if !hasEmail { // address and assurance belong together
		claims["email"], claims["email_verified"] = more["email"], more["email_verified"]
	}
	for _, c := range []string{p.spec.GetGroupsClaim(), "preferred_username"} {
		if _, ok := claims[c]; !ok {
			claims[c] = more[c]
		}
	}
	return nil
}

// texts reads a claim that is a text or a list of texts.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, x := range v {
			if s, ok := x.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

// identity is the account as one of u's.
func (a *account) identity(u *store.User) *store.Identity {
	return &store.Identity{Issuer: a.issuer, Subject: a.subject, Provider: a.provider, Email: a.email, UserID: u.ID}
}

// linkIdentity gives somebody who is signed in another way to sign in.
func (h *Hub) linkIdentity(ctx context.Context, userID string, who *account) error {
	a := ActorFrom(ctx)
	a.What = "link_identity"
	err := h.write(ctx, func(tx *store.Tx) error {
		u, err := tx.User(userID)
		if err != nil {
			return err
		}
		if u.Disabled {
			return errDisabled
		}
		a.Name, a.UserID, a.UserName, a.Role = u.Name, u.ID, u.Name, u.Role
		return tx.AddIdentity(who.identity(u))
	})
	if store.Duplicate(err) {
		return reason.New(reason.NameConflict, reason.HopHub, "this account at %s belongs to a user already", who.provider)
	}
	return err
}

// signInAs signs in the user whose account it is. Somebody new becomes who was invited with this
// e-mail address, or an admin by a group, or a visitor.
func (h *Hub) signInAs(ctx context.Context, b Browser, p *relyingParty, who *account) (in *NewSignIn, err error) {
	a := ActorFrom(ctx)
	err = h.write(ctx, func(tx *store.Tx) error {
		u, err := h.userOf(tx, who)
		if err != nil {
			return err
		}
		if u.Disabled {
			return errDisabled
		}
		if err := h.mapRole(tx, p, u, who); err != nil {
			return err
		}
		a.Name, a.UserID, a.UserName, a.Role = u.Name, u.ID, u.Name, u.Role
		in, err = h.signIn(tx, u, b, who.provider)
		return err
	})
	return in, err
}

// userOf finds or makes the user of an account.
func (h *Hub) userOf(tx *store.Tx, who *account) (*store.User, error) {
	u, err := tx.UserOfIdentity(who.issuer, who.subject)
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return u, err
	}
	u, err = tx.InvitedByEmail(who.email)
	switch {
	case err == nil:
		u.Pending, u.EmailVerified = false, true
		if err := tx.DropLinks(linkInvite, u.ID); err != nil {
			return nil, err
		}
		return u, tx.AddIdentity(who.identity(u))
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	u = &store.User{ID: newID(), Role: RoleVisitor, Email: who.email, EmailVerified: who.email != "", CreatedAt: tx.Now.UnixMilli()}
	if u.Name, err = freeUserName(tx, who); err != nil {
		return nil, err
	}
	if err := tx.AddUser(u); err != nil {
		return nil, err
	}
	return u, tx.AddIdentity(who.identity(u))
}

var notInName = regexp.MustCompile(`[^a-z0-9._-]+`)

// freeUserName is a name for somebody new, after what the provider calls them.
func freeUserName(tx *store.Tx, who *account) (string, error) {
	base := strings.Trim(notInName.ReplaceAllString(strings.ToLower(who.name), "-"), "-._")
	if base == "" {
		base = "user"
	}
	base = clip(base, 48)
	for n := 1; ; n++ {
		name := base
		if n > 1 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		_, err := tx.UserNamed(name)
		if errors.Is(err, store.ErrNotFound) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
	}
}

// mapRole keeps the role of a user in line with the provider's admin group: who is in it is an
// admin, who was one only by it and left is a viewer. Owners are never touched.
func (h *Hub) mapRole(tx *store.Tx, p *relyingParty, u *store.User, who *account) error {
	if p.spec.GetAdminGroup() == "" {
		return nil
	}
	member := slices.Contains(who.groups, p.spec.GetAdminGroup())
	switch {
	case member && (u.Role == RoleViewer || u.Role == RoleVisitor):
		u.Role, u.MappedBy = RoleAdmin, who.provider
	case !member && u.Role == RoleAdmin && u.MappedBy == who.provider:
		u.Role, u.MappedBy = RoleViewer, ""
	default:
		return nil
	}
	_, err := tx.DropSignIns(u.ID, "")
	return err // who signs in is stored with the sign-in
}
