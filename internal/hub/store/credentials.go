package store

import (
	"strings"

	"github.com/uptrace/bun"
)

// SignIn is a browser that somebody signed in with; only the hash of its cookie is kept.
type SignIn struct {
	bun.BaseModel `bun:"table:sign_ins"`

	ID         string `bun:",pk"`
	Hash       []byte
	UserID     string
	Method     string
	Address    string
	UserAgent  string
	CreatedAt  int64
	LastSeenAt int64
	ExpiresAt  int64

	UserName string `bun:",scanonly"`
}

// Key is an API key; only its hash is kept.
type Key struct {
	bun.BaseModel `bun:"table:api_keys"`

	ID     string `bun:",pk"`
	Hash   []byte
	UserID string
	Name   string
	// Scopes and Hosts are separated by spaces.
	Scopes string
	Hosts  string
	Prefix string
	// SignedInAt is set where a tool was signed in with it.
	SignedInAt   int64
	CreatedAt    int64
	ExpiresAt    int64
	LastUsedAt   int64
	LastUsedFrom string

	UserName string `bun:",scanonly"`
}

// ScopeList and HostList are what the key is limited to; none = nothing.
func (k *Key) ScopeList() []string { return strings.Fields(k.Scopes) }

// HostList is ScopeList for hosts.
func (k *Key) HostList() []string { return strings.Fields(k.Hosts) }

// AddSignIn stores a sign-in.
func (t *Tx) AddSignIn(s *SignIn) error {
	_, err := t.tx.NewInsert().Model(s).Exec(t.ctx)
	return err
}

// SignInOf returns the sign-in with a cookie of this hash, and its user.
func (t *Tx) SignInOf(hash []byte) (*SignIn, *User, error) {
	s := &SignIn{}
	if err := t.tx.NewSelect().Model(s).Where("hash = ?", hash).Scan(t.ctx); err != nil {
		return nil, nil, wrap(err)
	}
	u, err := t.User(s.UserID)
	return s, u, err
}

// SeenSignIn notes that a sign-in was used now.
func (t *Tx) SeenSignIn(id string) error {
	_, err := t.tx.NewRaw("UPDATE sign_ins SET last_seen_at = ? WHERE id = ?", t.Now.UnixMilli(), id).Exec(t.ctx)
	return err
}

// SignIns returns sign-ins by id after one; of one user, or of all when userID is empty.
func (t *Tx) SignIns(userID, after string, limit int64) ([]*SignIn, error) {
	var out []*SignIn
	q := t.tx.NewSelect().Model(&out).ModelTableExpr("sign_ins AS sign_in").ColumnExpr("sign_in.*, users.name AS user_name").
		Join("JOIN users ON users.id = sign_in.user_id").Where("sign_in.id > ?", after).OrderExpr("sign_in.id").Limit(limit)
	if userID != "" {
		q = q.Where("sign_in.user_id = ?", userID)
	}
	return out, q.Scan(t.ctx)
}

// DropSignIn ends one sign-in of a user, in a browser or of a tool, or of anybody when userID is
// empty; it tells whether there was one.
func (t *Tx) DropSignIn(id, userID string) (int, error) {
	return t.drop("id = ?", "id = ? AND signed_in_at > 0", userID, id)
}

// DropSignIns ends all sign-ins of a user, but one, and tells how many.
func (t *Tx) DropSignIns(userID, except string) (int, error) {
	return t.drop("id <> ?", "id <> ? AND signed_in_at > 0", userID, except)
}

func (t *Tx) drop(browsers, tools, userID string, args ...any) (n int, err error) {
	for _, q := range []string{"DELETE FROM sign_ins WHERE " + browsers, "DELETE FROM api_keys WHERE " + tools} {
		all := args
		if userID != "" {
			q, all = q+" AND user_id = ?", append(append([]any{}, args...), userID)
		}
		res, err := t.tx.NewRaw(q, all...).Exec(t.ctx)
		if err != nil {
			return n, err
		}
		rows, err := res.RowsAffected()
		if err != nil {
			return n, err
		}
		n += int(rows)
	}
	return n, nil
}

// AddKey stores an API key.
func (t *Tx) AddKey(k *Key) error {
	_, err := t.tx.NewInsert().Model(k).Exec(t.ctx)
	return err
}

// KeyOf returns the API key of this hash, and its user.
func (t *Tx) KeyOf(hash []byte) (*Key, *User, error) {
	k := &Key{}
	if err := t.tx.NewSelect().Model(k).Where("hash = ?", hash).Scan(t.ctx); err != nil {
		return nil, nil, wrap(err)
	}
	u, err := t.User(k.UserID)
	return k, u, err
}

// UsedKey notes that an API key was used now.
func (t *Tx) UsedKey(id, from string) error {
	_, err := t.tx.NewRaw("UPDATE api_keys SET last_used_at = ?, last_used_from = ? WHERE id = ?", t.Now.UnixMilli(), from, id).Exec(t.ctx)
	return err
}

// KeyNamed returns an API key by id, or by name among those of a user.
func (t *Tx) KeyNamed(userID, idOrName string) (*Key, error) {
	k := &Key{}
	err := t.keys(k).Where("key.id = ? OR key.user_id = ? AND key.name = ?", idOrName, userID, idOrName).Where("key.signed_in_at = 0").Limit(1).Scan(t.ctx)
	return k, wrap(err)
}

// Keys returns API keys, or with tools those of signed-in tools, by id after one; of one user, or
// of all when userID is empty.
func (t *Tx) Keys(userID, after string, tools bool, limit int64) ([]*Key, error) {
	var out []*Key
	q := t.keys(&out).Where("key.id > ?", after).OrderExpr("key.id").Limit(limit)
	if tools {
		q = q.Where("key.signed_in_at > 0")
	} else {
		q = q.Where("key.signed_in_at = 0")
	}
	if userID != "" {
		q = q.Where("key.user_id = ?", userID)
	}
	return out, q.Scan(t.ctx)
}

func (t *Tx) keys(model any) *bun.SelectQuery {
	return t.tx.NewSelect().Model(model).ModelTableExpr("api_keys AS key").ColumnExpr("key.*, users.name AS user_name").
		Join("JOIN users ON users.id = key.user_id")
}

// DropKey deletes an API key.
func (t *Tx) DropKey(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM api_keys WHERE id = ?", id).Exec(t.ctx)
	return err
}

// DeviceRequest is a tool that wants to be signed in.
type DeviceRequest struct {
	bun.BaseModel `bun:"table:device_requests"`

	Hash     []byte `bun:",pk"`
	UserCode string
	Client   string
	Address  string
	Scopes   string
	// State is pending, approved or denied.
	State  string
	UserID string
	// SignedInAt is when the one who approved had signed in.
	SignedInAt int64
	CreatedAt  int64
	ExpiresAt  int64
}

// AddDeviceRequest stores one.
func (t *Tx) AddDeviceRequest(d *DeviceRequest) error {
	_, err := t.tx.NewInsert().Model(d).Exec(t.ctx)
	return err
}

// DeviceRequests counts those that wait, of one address or of all.
func (t *Tx) DeviceRequests(address string) (mine, all int, err error) {
	err = t.tx.NewRaw("SELECT count(*), coalesce(sum(CASE WHEN address = ? THEN 1 ELSE 0 END), 0) FROM device_requests WHERE expires_at > ?",
		address, t.Now.UnixMilli()).Scan(t.ctx, &all, &mine)
	return mine, all, err
}

// DeviceRequest returns the request of a device code's hash, DeviceRequestOf that of a user code.
func (t *Tx) DeviceRequest(hash []byte) (*DeviceRequest, error) {
	d := &DeviceRequest{}
	return d, wrap(t.tx.NewSelect().Model(d).Where("hash = ?", hash).Scan(t.ctx))
}

// DeviceRequestOf returns the request that a person sees as userCode.
func (t *Tx) DeviceRequestOf(userCode string) (*DeviceRequest, error) {
	d := &DeviceRequest{}
	return d, wrap(t.tx.NewSelect().Model(d).Where("user_code = ?", userCode).Scan(t.ctx))
}

// PutDeviceRequest stores the state of one.
func (t *Tx) PutDeviceRequest(d *DeviceRequest) error {
	_, err := t.tx.NewUpdate().Model(d).WherePK().Exec(t.ctx)
	return err
}

// DropDeviceRequest deletes one.
func (t *Tx) DropDeviceRequest(hash []byte) error {
	_, err := t.tx.NewRaw("DELETE FROM device_requests WHERE hash = ?", hash).Exec(t.ctx)
	return err
}

// CredentialLives tells whether a sign-in or key is there and has not expired.
func (t *Tx) CredentialLives(signInID, keyID string, now int64) (bool, error) {
	var n int
	err := t.tx.NewRaw("SELECT (SELECT count(*) FROM sign_ins WHERE id = ? AND expires_at > ?) + "+
		"(SELECT count(*) FROM api_keys WHERE id = ? AND (expires_at = 0 OR expires_at > ?))", signInID, now, keyID, now).Scan(t.ctx, &n)
	return n > 0, err
}
