package store

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/uptrace/bun"
)

// accountTables are the tables of people: users, sign-ins, keys, providers, and what they did.
var accountTables = []string{
	`CREATE TABLE users (id TEXT PRIMARY KEY, name TEXT NOT NULL, name_key TEXT NOT NULL UNIQUE, display_name TEXT NOT NULL,
		email TEXT NOT NULL, email_verified BOOLEAN NOT NULL, role TEXT NOT NULL, disabled BOOLEAN NOT NULL, password TEXT NOT NULL,
		pending BOOLEAN NOT NULL, created_at BIGINT NOT NULL, last_sign_in_at BIGINT NOT NULL)`,
	`CREATE TABLE identities (issuer TEXT NOT NULL, subject TEXT NOT NULL, provider TEXT NOT NULL, email TEXT NOT NULL,
		mapped BOOLEAN NOT NULL, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE, PRIMARY KEY (issuer, subject))`,
	`CREATE INDEX identities_user ON identities (user_id)`,
	`CREATE TABLE links (hash BYTES PRIMARY KEY, purpose TEXT NOT NULL, user_id TEXT NOT NULL, created_by TEXT NOT NULL, expires_at BIGINT NOT NULL)`,
	`CREATE TABLE api_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
		hash BYTES NOT NULL UNIQUE, prefix TEXT NOT NULL, scopes TEXT NOT NULL, hosts TEXT NOT NULL, created_at BIGINT NOT NULL,
		expires_at BIGINT NOT NULL, last_used_at BIGINT NOT NULL, last_used_from TEXT NOT NULL, authenticated_at BIGINT NOT NULL,
		UNIQUE (user_id, name))`,
	`CREATE TABLE sign_ins (id TEXT PRIMARY KEY, hash BYTES NOT NULL UNIQUE, user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
		address TEXT NOT NULL, user_agent TEXT NOT NULL, method TEXT NOT NULL, created_at BIGINT NOT NULL, last_seen_at BIGINT NOT NULL,
		expires_at BIGINT NOT NULL, authenticated_at BIGINT NOT NULL)`,
	`CREATE INDEX sign_ins_user ON sign_ins (user_id)`,
	`CREATE TABLE devices (hash BYTES PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, client TEXT NOT NULL, scopes TEXT NOT NULL, address TEXT NOT NULL,
		state TEXT NOT NULL, user_id TEXT NOT NULL, expires_at BIGINT NOT NULL)`,
	`CREATE TABLE providers (name TEXT PRIMARY KEY, spec BYTES NOT NULL, secret BYTES NOT NULL)`,
	`CREATE TABLE oidc_flows (hash BYTES PRIMARY KEY, provider TEXT NOT NULL, sealed BYTES NOT NULL, expires_at BIGINT NOT NULL)`,
	`CREATE TABLE guesses (name TEXT PRIMARY KEY, failures INTEGER NOT NULL, blocked_until BIGINT NOT NULL, last_at BIGINT NOT NULL)`,
	`CREATE TABLE audit (id BIGINT PRIMARY KEY, at BIGINT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL,
		source TEXT NOT NULL, result TEXT NOT NULL, detail TEXT NOT NULL)`,
	`CREATE INDEX audit_at ON audit (at)`,
}

// User is a person. NameKey is the name in lower case; Password is an argon2id hash in PHC form,
// empty without one. Times are Unix milliseconds, 0 = never.
type User struct {
	bun.BaseModel `bun:"table:users"`

	ID            string `bun:",pk"`
	Name          string
	NameKey       string
	DisplayName   string
	Email         string
	EmailVerified bool
	Role          string
	Disabled      bool
	Password      string
	// Pending: invited, the account is not made yet.
	Pending      bool
	CreatedAt    int64
	LastSignInAt int64
}

// Identity is a user's account at a provider.
type Identity struct {
	bun.BaseModel `bun:"table:identities"`

	Issuer   string `bun:",pk"`
	Subject  string `bun:",pk"`
	Provider string
	Email    string
	// Mapped: a group of the provider made the user an admin, and leaving it takes that back.
	Mapped bool
	UserID string
}

// Link is a one-time link; only the SHA-256 of its secret is stored. Purpose is setup, invite,
// reset or sign_in.
type Link struct {
	bun.BaseModel `bun:"table:links"`

	Hash      []byte `bun:",pk"`
	Purpose   string
	UserID    string
	CreatedBy string
	ExpiresAt int64
}

// APIKey is a person's key; Hash is the SHA-256 of it. Scopes and Hosts are separated by spaces.
// AuthenticatedAt is when its maker had signed in.
type APIKey struct {
	bun.BaseModel `bun:"table:api_keys"`

	ID              string `bun:",pk"`
	Name            string
	UserID          string
	Hash            []byte
	Prefix          string
	Scopes          string
	Hosts           string
	CreatedAt       int64
	ExpiresAt       int64
	LastUsedAt      int64
	LastUsedFrom    string
	AuthenticatedAt int64
}

// SignIn is a dashboard session; Hash is the SHA-256 of its cookie. AuthenticatedAt is when
// somebody last proved who they are.
type SignIn struct {
	bun.BaseModel `bun:"table:sign_ins"`

	ID              string `bun:",pk"`
	Hash            []byte
	UserID          string
	Address         string
	UserAgent       string
	Method          string
	CreatedAt       int64
	LastSeenAt      int64
	ExpiresAt       int64
	AuthenticatedAt int64
}

// Device is a tool that waits for a person to confirm it. State is pending, approved or denied.
type Device struct {
	bun.BaseModel `bun:"table:devices"`

	Hash      []byte `bun:",pk"`
	UserCode  string
	Client    string
	Scopes    string
	Address   string
	State     string
	UserID    string
	ExpiresAt int64
}

// Provider is a sign-in provider. Spec is its hubv1.Provider without the secret, which is sealed.
type Provider struct {
	bun.BaseModel `bun:"table:providers"`

	Name   string `bun:",pk"`
	Spec   []byte
	Secret []byte
}

// OIDCFlow is a sign-in at a provider that has begun; Hash is the SHA-256 of its state.
type OIDCFlow struct {
	bun.BaseModel `bun:"table:oidc_flows"`

	Hash      []byte `bun:",pk"`
	Provider  string
	Sealed    []byte
	ExpiresAt int64
}

// Guesses counts failures to sign in, of an account or an address.
type Guesses struct {
	bun.BaseModel `bun:"table:guesses"`

	Name         string `bun:",pk"`
	Failures     int
	BlockedUntil int64
	LastAt       int64
}

// AuditEntry is who did what. Rows are never changed; only age removes them.
type AuditEntry struct {
	bun.BaseModel `bun:"table:audit"`

	ID      int64 `bun:",pk"`
	At      int64
	Who     string
	What    string
	Subject string
	Source  string
	Result  string
	Detail  string
}

// insert stores a new row of any table.
func insert[T any](t *Tx, row *T) error {
	_, err := t.tx.NewInsert().Model(row).Exec(t.ctx)
	return err
}

// update stores all columns of a row that exists.
func update[T any](t *Tx, row *T) error {
	_, err := t.tx.NewUpdate().Model(row).WherePK().Exec(t.ctx)
	return err
}

// one returns the row that a condition names; ErrNotFound if there is none.
func one[T any](t *Tx, where string, args ...any) (*T, error) {
	row := new(T)
	return row, wrap(t.tx.NewSelect().Model(row).Where(where, args...).Limit(1).Scan(t.ctx))
}

// AddUser stores a user; a name that is taken is a Duplicate.
func (t *Tx) AddUser(u *User) error { return insert(t, u) }

// SetUser stores a user that exists.
func (t *Tx) SetUser(u *User) error { return update(t, u) }

// User returns a user by id; UserNamed by name in lower case; UserByIdentity by account.
func (t *Tx) User(id string) (*User, error) { return one[User](t, "id = ?", id) }

// UserNamed returns a user by name in lower case.
func (t *Tx) UserNamed(nameKey string) (*User, error) { return one[User](t, "name_key = ?", nameKey) }

// UserByIdentity returns the user whose account at a provider this is.
func (t *Tx) UserByIdentity(issuer, subject string) (*User, error) {
	return one[User](t, "id = (SELECT user_id FROM identities WHERE issuer = ? AND subject = ?)", issuer, subject)
}

// Users returns users by name after one, at most limit, whose name or e-mail contains filter.
func (t *Tx) Users(filter, afterKey string, limit int64) ([]*User, error) {
	var out []*User
	q := t.tx.NewSelect().Model(&out).Where("name_key > ?", afterKey).Order("name_key").Limit(limit)
	if filter != "" {
		p := likePattern(filter)
		q = q.Where("("+contains("name")+" OR "+contains("email")+")", p, p)
	}
	return out, q.Scan(t.ctx)
}

// CountOwners counts owners who can sign in.
func (t *Tx) CountOwners() (n int, err error) {
	return n, t.tx.NewRaw("SELECT count(*) FROM users WHERE role = 'owner' AND NOT disabled AND NOT pending").Scan(t.ctx, &n)
}

// DeleteUser removes a user with identities, keys and sign-ins.
func (t *Tx) DeleteUser(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM users WHERE id = ?", id).Exec(t.ctx)
	return err
}

// AddIdentity links an account to a user; one that is linked already is a Duplicate.
func (t *Tx) AddIdentity(i *Identity) error { return insert(t, i) }

// SetIdentity stores an account that is linked already.
func (t *Tx) SetIdentity(i *Identity) error { return update(t, i) }

// Identity returns an account by issuer and subject.
func (t *Tx) Identity(issuer, subject string) (*Identity, error) {
	return one[Identity](t, "issuer = ? AND subject = ?", issuer, subject)
}

// PendingByEmail returns who was invited with an e-mail address, in either case, and has not come.
func (t *Tx) PendingByEmail(email string) (*User, error) {
	return one[User](t, "pending AND NOT disabled AND lower(email) = ?", strings.ToLower(email))
}

// Identities returns the accounts of a user.
func (t *Tx) Identities(userID string) ([]*Identity, error) {
	var out []*Identity
	return out, t.tx.NewSelect().Model(&out).Where("user_id = ?", userID).Order("provider", "issuer", "subject").Scan(t.ctx)
}

// AddLink stores a one-time link.
func (t *Tx) AddLink(l *Link) error { return insert(t, l) }

// Link returns a link that has not expired, by the hash of its secret and its purpose.
func (t *Tx) Link(purpose string, hash []byte) (*Link, error) {
	return one[Link](t, "hash = ? AND purpose = ? AND expires_at > ?", hash, purpose, t.Now.UnixMilli())
}

// DropLinks removes links of a purpose and user, used or not.
func (t *Tx) DropLinks(purpose, userID string) error {
	_, err := t.tx.NewRaw("DELETE FROM links WHERE purpose = ? AND user_id = ?", purpose, userID).Exec(t.ctx)
	return err
}

// AddAPIKey stores a key; a second one of the same user and name is a Duplicate.
func (t *Tx) AddAPIKey(k *APIKey) error { return insert(t, k) }

// APIKeyByHash returns a key by the hash of it, expired or not.
func (t *Tx) APIKeyByHash(hash []byte) (*APIKey, error) { return one[APIKey](t, "hash = ?", hash) }

// APIKeys returns the keys of a user, or of all (userID empty), by name.
func (t *Tx) APIKeys(userID string) ([]*APIKey, error) {
	var out []*APIKey
	q := t.tx.NewSelect().Model(&out).Order("name", "id")
	if userID != "" {
		q = q.Where("user_id = ?", userID)
	}
	return out, q.Scan(t.ctx)
}

// UsedAPIKey notes when and from where a key was used.
func (t *Tx) UsedAPIKey(id, from string) error {
	_, err := t.tx.NewRaw("UPDATE api_keys SET last_used_at = ?, last_used_from = ? WHERE id = ?", t.Now.UnixMilli(), from, id).Exec(t.ctx)
	return err
}

// DeleteAPIKey removes a key.
func (t *Tx) DeleteAPIKey(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM api_keys WHERE id = ?", id).Exec(t.ctx)
	return err
}

// DeleteAPIKeysOf removes the keys of a user.
func (t *Tx) DeleteAPIKeysOf(userID string) error {
	_, err := t.tx.NewRaw("DELETE FROM api_keys WHERE user_id = ?", userID).Exec(t.ctx)
	return err
}

// AddSignIn stores a session.
func (t *Tx) AddSignIn(s *SignIn) error { return insert(t, s) }

// SetSignIn stores a session that exists.
func (t *Tx) SetSignIn(s *SignIn) error { return update(t, s) }

// SignInByHash returns a session by the hash of its cookie, expired or not.
func (t *Tx) SignInByHash(hash []byte) (*SignIn, error) { return one[SignIn](t, "hash = ?", hash) }

// SignIns returns the sessions of a user, or of all (userID empty), the newest first.
func (t *Tx) SignIns(userID string) ([]*SignIn, error) {
	var out []*SignIn
	q := t.tx.NewSelect().Model(&out).OrderExpr("created_at DESC, id")
	if userID != "" {
		q = q.Where("user_id = ?", userID)
	}
	return out, q.Scan(t.ctx)
}

// DeleteSignIn removes a session.
func (t *Tx) DeleteSignIn(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM sign_ins WHERE id = ?", id).Exec(t.ctx)
	return err
}

// DeleteSignInsOf removes all sessions of a user but one; empty = all. It returns how many.
func (t *Tx) DeleteSignInsOf(userID, keepID string) (int64, error) {
	res, err := t.tx.NewRaw("DELETE FROM sign_ins WHERE user_id = ? AND id <> ?", userID, keepID).Exec(t.ctx)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// AddDevice stores a tool that waits; a user code that is in use is a Duplicate.
func (t *Tx) AddDevice(d *Device) error { return insert(t, d) }

// SetDevice stores a device that exists.
func (t *Tx) SetDevice(d *Device) error { return update(t, d) }

// DeviceByHash returns a device by the hash of its code, expired or not.
func (t *Tx) DeviceByHash(hash []byte) (*Device, error) { return one[Device](t, "hash = ?", hash) }

// DeviceByCode returns a device that waits and has not expired, by what its person reads.
func (t *Tx) DeviceByCode(userCode string) (*Device, error) {
	return one[Device](t, "user_code = ? AND state = 'pending' AND expires_at > ?", userCode, t.Now.UnixMilli())
}

// DeleteDevice removes a device.
func (t *Tx) DeleteDevice(hash []byte) error {
	_, err := t.tx.NewRaw("DELETE FROM devices WHERE hash = ?", hash).Exec(t.ctx)
	return err
}

// PutProvider stores a provider.
func (t *Tx) PutProvider(p *Provider) error {
	_, err := t.tx.NewInsert().Model(p).On("CONFLICT (name) DO UPDATE").Set("spec = EXCLUDED.spec").Set("secret = EXCLUDED.secret").Exec(t.ctx)
	return err
}

// Provider returns a provider by name.
func (t *Tx) Provider(name string) (*Provider, error) { return one[Provider](t, "name = ?", name) }

// Providers returns all providers.
func (t *Tx) Providers() ([]*Provider, error) {
	var out []*Provider
	return out, t.tx.NewSelect().Model(&out).Order("name").Scan(t.ctx)
}

// DeleteProvider removes a provider.
func (t *Tx) DeleteProvider(name string) error {
	_, err := t.tx.NewRaw("DELETE FROM providers WHERE name = ?", name).Exec(t.ctx)
	return err
}

// AddOIDCFlow stores a sign-in that has begun.
func (t *Tx) AddOIDCFlow(f *OIDCFlow) error { return insert(t, f) }

// TakeOIDCFlow returns a flow and removes it: it counts once. ErrNotFound if there is none that
// has not expired.
func (t *Tx) TakeOIDCFlow(hash []byte) (*OIDCFlow, error) {
	f, err := one[OIDCFlow](t, "hash = ? AND expires_at > ?", hash, t.Now.UnixMilli())
	if err != nil {
		return nil, err
	}
	_, err = t.tx.NewRaw("DELETE FROM oidc_flows WHERE hash = ?", hash).Exec(t.ctx)
	return f, err
}

// Guesses returns the failures of an account or address; none is a zero row.
func (t *Tx) Guesses(name string) (*Guesses, error) {
	g := &Guesses{Name: name}
	err := t.tx.NewSelect().Model(g).WherePK().Scan(t.ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return &Guesses{Name: name}, nil
	}
	return g, err
}

// SetGuesses stores failures; none removes the row.
func (t *Tx) SetGuesses(g *Guesses) error {
	if g.Failures == 0 {
		_, err := t.tx.NewRaw("DELETE FROM guesses WHERE name = ?", g.Name).Exec(t.ctx)
		return err
	}
	_, err := t.tx.NewInsert().Model(g).On("CONFLICT (name) DO UPDATE").Set("failures = EXCLUDED.failures").
		Set("blocked_until = EXCLUDED.blocked_until").Set("last_at = EXCLUDED.last_at").Exec(t.ctx)
	return err
}

// PruneAccounts forgets what has expired: links, sessions, devices, flows, keys, old guesses.
func (t *Tx) PruneAccounts() error {
	now := t.Now.UnixMilli()
	for _, q := range []string{
		"DELETE FROM links WHERE expires_at <= ?", "DELETE FROM sign_ins WHERE expires_at <= ?", "DELETE FROM devices WHERE expires_at <= ?",
		"DELETE FROM oidc_flows WHERE expires_at <= ?", "DELETE FROM guesses WHERE last_at + 86400000 <= ?",
	} {
		if _, err := t.tx.NewRaw(q, now).Exec(t.ctx); err != nil {
			return err
		}
	}
	return nil
}

// AddAudit stores an entry; its id follows.
func (t *Tx) AddAudit(e *AuditEntry) error {
	var last sql.NullInt64
	if err := t.tx.NewRaw("SELECT max(id) FROM audit").Scan(t.ctx, &last); err != nil {
		return err
	}
	e.ID, e.At = max(last.Int64+1, t.Now.UnixMicro()), t.Now.UnixMilli()
	return insert(t, e)
}

// AuditFilter says which entries are wanted; empty fields want all. Times are Unix milliseconds.
type AuditFilter struct {
	// Before bounds the id; 0 has no bound.
	Before             int64
	Who, What, Subject string
	Since, Until       int64
	Limit              int64
}

// Audit returns entries, the newest first.
func (t *Tx) Audit(f AuditFilter) ([]AuditEntry, error) {
	var out []AuditEntry
	q := t.tx.NewSelect().Model(&out).OrderExpr("id DESC").Limit(f.Limit).Where("at >= ?", f.Since)
	if f.Before > 0 {
		q = q.Where("id < ?", f.Before)
	}
	if f.Until > 0 {
		q = q.Where("at < ?", f.Until)
	}
	if f.Who != "" {
		q = q.Where(contains("who"), likePattern(f.Who))
	}
	if f.What != "" {
		q = q.Where(contains("what"), likePattern(f.What))
	}
	if f.Subject != "" {
		q = q.Where(contains("subject"), likePattern(f.Subject))
	}
	return out, q.Scan(t.ctx)
}

// PruneAudit forgets entries from before a time.
func (t *Tx) PruneAudit(before int64) error {
	_, err := t.tx.NewRaw("DELETE FROM audit WHERE at < ?", before).Exec(t.ctx)
	return err
}
