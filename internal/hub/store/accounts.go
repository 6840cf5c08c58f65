package store

import (
	"strings"

	"github.com/uptrace/bun"
)

// accountTables are the tables of people: users, sign-ins, keys, providers, and of the audit.
var accountTables = []string{
	// name_key is the name in lower case: names differ by more than case.
	`CREATE TABLE users (id TEXT PRIMARY KEY, name TEXT NOT NULL, name_key TEXT NOT NULL UNIQUE, display_name TEXT NOT NULL,
		email TEXT NOT NULL, email_verified BOOLEAN NOT NULL, role TEXT NOT NULL, mapped_by TEXT NOT NULL, disabled BOOLEAN NOT NULL,
		pending BOOLEAN NOT NULL, password TEXT NOT NULL, created_at BIGINT NOT NULL, last_sign_in_at BIGINT NOT NULL)`,
	`CREATE TABLE identities (issuer TEXT NOT NULL, subject TEXT NOT NULL, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
		provider TEXT NOT NULL, email TEXT NOT NULL, PRIMARY KEY (issuer, subject))`,
	`CREATE INDEX identities_user ON identities (user_id)`,
	`CREATE TABLE sign_ins (id TEXT PRIMARY KEY, hash BYTES NOT NULL UNIQUE, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
		method TEXT NOT NULL, address TEXT NOT NULL, user_agent TEXT NOT NULL, created_at BIGINT NOT NULL, last_seen_at BIGINT NOT NULL,
		expires_at BIGINT NOT NULL)`,
	`CREATE INDEX sign_ins_user ON sign_ins (user_id)`,
	// signed_in_at is set for the key of a tool that was signed in, which is a sign-in too.
	`CREATE TABLE api_keys (id TEXT PRIMARY KEY, hash BYTES NOT NULL UNIQUE, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
		name TEXT NOT NULL, scopes TEXT NOT NULL, hosts TEXT NOT NULL, prefix TEXT NOT NULL, signed_in_at BIGINT NOT NULL,
		created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, last_used_at BIGINT NOT NULL, last_used_from TEXT NOT NULL)`,
	`CREATE UNIQUE INDEX api_keys_name ON api_keys (user_id, name) WHERE signed_in_at = 0`,
	`CREATE TABLE links (hash BYTES PRIMARY KEY, kind TEXT NOT NULL, user_id TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)`,
	`CREATE TABLE device_requests (hash BYTES PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, client TEXT NOT NULL, address TEXT NOT NULL,
		scopes TEXT NOT NULL, state TEXT NOT NULL, user_id TEXT NOT NULL, signed_in_at BIGINT NOT NULL, created_at BIGINT NOT NULL,
		expires_at BIGINT NOT NULL)`,
	`CREATE TABLE providers (name TEXT PRIMARY KEY, spec BYTES NOT NULL, secret BYTES NOT NULL)`,
	`CREATE TABLE oidc_flows (hash BYTES PRIMARY KEY, sealed BYTES NOT NULL, expires_at BIGINT NOT NULL)`,
	`CREATE TABLE attempts (subject TEXT PRIMARY KEY, failures INTEGER NOT NULL, since BIGINT NOT NULL, until BIGINT NOT NULL)`,
	`CREATE TABLE audit (id BIGINT PRIMARY KEY, at BIGINT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL,
		source TEXT NOT NULL, result TEXT NOT NULL, detail TEXT NOT NULL)`,
	`CREATE INDEX audit_at ON audit (at)`,
}

// User is a person. Times are Unix milliseconds, 0 = never.
type User struct {
	bun.BaseModel `bun:"table:users"`

	ID   string `bun:",pk"`
	Name string
	// NameKey is Name in lower case.
	NameKey       string
	DisplayName   string
	Email         string
	EmailVerified bool
	Role          string
	// MappedBy is the provider whose groups decide the role; empty = nobody's do.
	MappedBy string
	Disabled bool
	// Pending users were invited and have not made their account yet.
	Pending bool
	// Password is an argon2id hash in PHC format; empty = none.
	Password     string
	CreatedAt    int64
	LastSignInAt int64

	Identities []Identity `bun:"-"`
}

// Identity is a user's account at a provider.
type Identity struct {
	bun.BaseModel `bun:"table:identities"`

	Issuer   string `bun:",pk"`
	Subject  string `bun:",pk"`
	UserID   string
	Provider string
	Email    string
}

// AddUser stores a user.
func (t *Tx) AddUser(u *User) error {
	u.NameKey = strings.ToLower(u.Name)
	_, err := t.tx.NewInsert().Model(u).Exec(t.ctx)
	return err
}

// PutUser stores all of a user that is there.
func (t *Tx) PutUser(u *User) error {
	u.NameKey = strings.ToLower(u.Name)
	_, err := t.tx.NewUpdate().Model(u).WherePK().Exec(t.ctx)
	return err
}

// DropUser deletes a user with sign-ins, keys, identities and links.
func (t *Tx) DropUser(id string) error {
	if _, err := t.tx.NewRaw("DELETE FROM links WHERE user_id = ?", id).Exec(t.ctx); err != nil {
		return err
	}
	_, err := t.tx.NewRaw("DELETE FROM users WHERE id = ?", id).Exec(t.ctx)
	return err
}

// User returns a user by id.
func (t *Tx) User(id string) (*User, error) { return t.user("id = ?", id) }

// UserNamed returns a user by id or name; names are compared without case.
func (t *Tx) UserNamed(idOrName string) (*User, error) {
	return t.user("id = ? OR name_key = ?", idOrName, strings.ToLower(idOrName))
}

// UserOfIdentity returns the user to whom an account at a provider belongs.
func (t *Tx) UserOfIdentity(issuer, subject string) (*User, error) {
	return t.user("id = (SELECT user_id FROM identities WHERE issuer = ? AND subject = ?)", issuer, subject)
}

// InvitedByEmail returns the user that was invited with an address, if exactly one was.
func (t *Tx) InvitedByEmail(email string) (*User, error) {
	var ids []string
	err := t.tx.NewRaw("SELECT id FROM users WHERE pending AND lower(email) = ? LIMIT 2", strings.ToLower(email)).Scan(t.ctx, &ids)
	if err != nil {
		return nil, err
	}
	if email == "" || len(ids) != 1 {
		return nil, ErrNotFound
	}
	return t.User(ids[0])
}

func (t *Tx) user(where string, args ...any) (*User, error) {
	u := &User{}
	if err := t.tx.NewSelect().Model(u).Where(where, args...).Limit(1).Scan(t.ctx); err != nil {
		return nil, wrap(err)
	}
	return u, t.tx.NewSelect().Model(&u.Identities).Where("user_id = ?", u.ID).Order("issuer", "subject").Scan(t.ctx)
}

// Users returns users by name after one, at most limit; filter is a part of name or e-mail.
func (t *Tx) Users(after, filter string, limit int64) ([]*User, error) {
	var out []*User
	q := t.tx.NewSelect().Model(&out).Where("name_key > ?", after).Order("name_key").Limit(limit)
	if filter != "" {
		q = q.Where(contains("name")+" OR "+contains("email"), likePattern(filter), likePattern(filter))
	}
	if err := q.Scan(t.ctx); err != nil || len(out) == 0 {
		return out, err
	}
	ids, byID := make([]string, len(out)), map[string]*User{}
	for i, u := range out {
		ids[i], byID[u.ID] = u.ID, u
	}
	var all []Identity
	err := t.tx.NewSelect().Model(&all).Where("user_id IN (?)", bun.List(ids)).Order("issuer", "subject").Scan(t.ctx)
	for _, i := range all {
		byID[i.UserID].Identities = append(byID[i.UserID].Identities, i)
	}
	return out, err
}

// Owners counts the users with the role owner that can sign in.
func (t *Tx) Owners() (int, error) {
	var n int
	err := t.tx.NewRaw("SELECT count(*) FROM users WHERE role = 'owner' AND NOT pending AND NOT disabled").Scan(t.ctx, &n)
	return n, err
}

// AddIdentity gives a user an account at a provider.
func (t *Tx) AddIdentity(i *Identity) error {
	_, err := t.tx.NewInsert().Model(i).Exec(t.ctx)
	return err
}

// DropIdentity takes an account at a provider away.
func (t *Tx) DropIdentity(userID, issuer, subject string) error {
	_, err := t.tx.NewRaw("DELETE FROM identities WHERE user_id = ? AND issuer = ? AND subject = ?", userID, issuer, subject).Exec(t.ctx)
	return err
}

// Link is a one-time link; only the hash of its secret is kept.
type Link struct {
	bun.BaseModel `bun:"table:links"`

	Hash      []byte `bun:",pk"`
	Kind      string
	UserID    string
	CreatedAt int64
	ExpiresAt int64
}

// AddLink stores a link.
func (t *Tx) AddLink(l *Link) error {
	_, err := t.tx.NewInsert().Model(l).Exec(t.ctx)
	return err
}

// Link returns a link of a kind that has not expired.
func (t *Tx) Link(kind string, hash []byte) (*Link, error) {
	l := &Link{}
	err := t.tx.NewSelect().Model(l).Where("hash = ?", hash).Where("kind = ?", kind).Where("expires_at > ?", t.Now.UnixMilli()).Scan(t.ctx)
	return l, wrap(err)
}

// DropLinks deletes the links of a kind of a user; of setup, those without user.
func (t *Tx) DropLinks(kind, userID string) error {
	_, err := t.tx.NewRaw("DELETE FROM links WHERE kind = ? AND user_id = ?", kind, userID).Exec(t.ctx)
	return err
}

// LiveLinks counts the links of a kind that have not expired.
func (t *Tx) LiveLinks(kind string) (int, error) {
	var n int
	err := t.tx.NewRaw("SELECT count(*) FROM links WHERE kind = ? AND expires_at > ?", kind, t.Now.UnixMilli()).Scan(t.ctx, &n)
	return n, err
}

// Attempt counts what somebody tried to guess.
type Attempt struct {
	bun.BaseModel `bun:"table:attempts"`

	Subject  string `bun:",pk"`
	Failures int
	// Since is when counting began, Until when the next attempt is taken.
	Since int64
	Until int64
}

// Attempt returns what is counted for a subject; nothing counted is no error.
func (t *Tx) Attempt(subject string) (*Attempt, error) {
	var rows []*Attempt
	if err := t.tx.NewSelect().Model(&rows).Where("subject = ?", subject).Scan(t.ctx); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return &Attempt{Subject: subject}, nil
	}
	return rows[0], nil
}

// PutAttempt stores a count.
func (t *Tx) PutAttempt(a *Attempt) error {
	_, err := t.tx.NewInsert().Model(a).On("CONFLICT (subject) DO UPDATE").Set("failures = EXCLUDED.failures").
		Set("since = EXCLUDED.since").Set("until = EXCLUDED.until").Exec(t.ctx)
	return err
}

// DropAttempt forgets a count.
func (t *Tx) DropAttempt(subject string) error {
	_, err := t.tx.NewRaw("DELETE FROM attempts WHERE subject = ?", subject).Exec(t.ctx)
	return err
}

// PruneAccounts deletes what has expired: links, sign-ins, requests of devices, counts from before
// a time. Expired keys stay 30 days, so that people see why a tool stopped.
func (t *Tx) PruneAccounts(idleBefore, attemptsBefore int64) error {
	now := t.Now.UnixMilli()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{"DELETE FROM links WHERE expires_at <= ?", []any{now}},
		{"DELETE FROM sign_ins WHERE expires_at <= ? OR last_seen_at <= ?", []any{now, idleBefore}},
		{"DELETE FROM device_requests WHERE expires_at <= ?", []any{now - 3600_000}},
		{"DELETE FROM attempts WHERE since <= ? AND until <= ?", []any{attemptsBefore, now}},
		{"DELETE FROM api_keys WHERE expires_at > 0 AND expires_at <= ?", []any{now - 30*24*3600_000}},
	} {
		if _, err := t.tx.NewRaw(q.sql, q.args...).Exec(t.ctx); err != nil {
			return err
		}
	}
	return nil
}
