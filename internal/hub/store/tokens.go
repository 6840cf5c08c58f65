package store

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/uptrace/bun"
)

// DefaultTenant owns what users, enrolled agents and operators make.
const DefaultTenant = "default"

// Protocols of grants, ports and reservations.
const (
	Host = "host"
	TCP  = "tcp"
	UDP  = "udp"
)

// Token is an invite or edge token: its public keys and what bounds it. Times are Unix
// milliseconds, 0 = never.
type Token struct {
	bun.BaseModel `bun:"table:tokens"`

	ID              string `bun:",pk"`
	Kind            string
	Name            string
	Tenant          string
	Ed25519         []byte `bun:"ed25519"`
	MLDSA65         []byte `bun:"mldsa65"`
	CreatedAt       int64
	ExpiresAt       int64
	ExpiresSessions bool
	MaxReplicas     int
	MaxEdges        int
	// Sources are CIDRs, separated by spaces.
	Sources   string
	RevokedAt int64
	// MemberOf is the id of the agent or invite that this is a further token of; EndsAt when one that
	// was rotated out ends.
	MemberOf string
	EndsAt   int64
	// Disabled: switched off, until it is switched on again.
	Disabled bool

	Grants []Grant `bun:"-"`
}

// From are the networks the token may be used from; none = any.
func (t *Token) From() []string { return strings.Fields(t.Sources) }

// Grant is one pattern, or one range of ports, that a token may claim.
type Grant struct {
	bun.BaseModel `bun:"table:grants"`

	TokenID  string `bun:",pk"`
	Position int    `bun:",pk"`
	Protocol string
	Pattern  string
	First    int
	Last     int

	// Tenant of the token, filled in where it is asked for.
	Tenant string `bun:",scanonly"`
}

// TenantExists tells whether there is a tenant of this name.
func (t *Tx) TenantExists(name string) (bool, error) {
	var n int
	err := t.tx.NewRaw("SELECT count(*) FROM tenants WHERE name = ?", name).Scan(t.ctx, &n)
	return n > 0, err
}

// AddTenant makes a tenant; one that exists stays.
func (t *Tx) AddTenant(name string) error {
	_, err := t.tx.NewRaw("INSERT INTO tenants (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING", name, t.Now.UnixMilli()).Exec(t.ctx)
	return err
}

// AddToken stores a token with its grants.
func (t *Tx) AddToken(tok *Token) error {
	if _, err := t.tx.NewInsert().Model(tok).Exec(t.ctx); err != nil {
		return err
	}
	for i := range tok.Grants {
		tok.Grants[i].TokenID, tok.Grants[i].Position = tok.ID, i
	}
	return batch(t, tok.Grants)
}

// RevokeToken marks a token as revoked now.
func (t *Tx) RevokeToken(id string) error {
	_, err := t.tx.NewRaw("UPDATE tokens SET revoked_at = ? WHERE id = ?", t.Now.UnixMilli(), id).Exec(t.ctx)
	return err
}

// Token returns a token with its grants; ErrNotFound if there is none.
func (t *Tx) Token(id string) (*Token, error) {
	tok := &Token{}
	if err := t.tx.NewSelect().Model(tok).Where("id = ?", id).Scan(t.ctx); err != nil {
		return nil, wrap(err)
	}
	return tok, t.fillGrants(tok)
}

// TokenNamed returns the token of a kind by id or name: a live one before revoked ones, the
// newest of those. Of one that rotation added it returns the one it was added to.
func (t *Tx) TokenNamed(kind, idOrName string) (*Token, error) {
	tok := &Token{}
	err := t.tx.NewSelect().Model(tok).Where("kind = ?", kind).Where("id = ? OR name = ? AND member_of = ''", strings.ToLower(idOrName), idOrName).
		OrderExpr("revoked_at = 0 DESC, created_at DESC").Limit(1).Scan(t.ctx)
	if err != nil {
		return nil, wrap(err)
	}
	if tok.MemberOf != "" {
		return t.Token(tok.MemberOf)
	}
	return tok, t.fillGrants(tok)
}

// Tokens returns tokens of some kinds in the order of name and id, after a position; limit 0 = all.
func (t *Tx) Tokens(kinds []string, afterName, afterID string, limit int64) ([]*Token, error) {
	return t.tokens(kinds, afterName, afterID, limit, "")
}

// FirstTokensOf is Tokens without those that rotation added: one for each agent or invite.
func (t *Tx) FirstTokensOf(kinds []string, afterName, afterID string, limit int64) ([]*Token, error) {
	return t.tokens(kinds, afterName, afterID, limit, "member_of = ''")
}

// LiveTokensOf is FirstTokensOf without those that are revoked.
func (t *Tx) LiveTokensOf(kinds []string, afterName, afterID string, limit int64) ([]*Token, error) {
	return t.tokens(kinds, afterName, afterID, limit, "member_of = '' AND revoked_at = 0")
}

func (t *Tx) tokens(kinds []string, afterName, afterID string, limit int64, which string) ([]*Token, error) {
	var out []*Token
	q := t.tx.NewSelect().Model(&out).Where("kind IN (?)", bun.List(kinds)).Order("name", "id")
	if which != "" {
		q = q.Where(which)
	}
	if afterID != "" {
		q = q.Where("name > ? OR name = ? AND id > ?", afterName, afterName, afterID)
	}
	if limit > 0 {
		q = q.Limit(limit)
	}
	if err := q.Scan(t.ctx); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, nil
	}
	ids, byID := make([]string, len(out)), map[string]*Token{}
	for i, tok := range out {
		ids[i], byID[tok.ID] = tok.ID, tok
	}
	var grants []Grant
	gq := t.tx.NewSelect().Model(&grants).Order("token_id", "position")
	if limit > 0 {
		gq = gq.Where("token_id IN (?)", bun.List(ids))
	}
	if err := gq.Scan(t.ctx); err != nil {
		return nil, err
	}
	for _, g := range grants {
		if tok := byID[g.TokenID]; tok != nil {
			tok.Grants = append(tok.Grants, g)
		}
	}
	return out, nil
}

// LiveTokens counts the tokens of a tenant that are not revoked.
func (t *Tx) LiveTokens(tenant string) (int, error) {
	var n int
	err := t.tx.NewRaw("SELECT count(*) FROM tokens WHERE tenant = ? AND revoked_at = 0", tenant).Scan(t.ctx, &n)
	return n, err
}

func (t *Tx) fillGrants(tok *Token) error {
	return t.tx.NewSelect().Model(&tok.Grants).Where("token_id = ?", tok.ID).Order("position").Scan(t.ctx)
}

// GrantsOfOthers returns the grants of one protocol that live tokens of other tenants hold.
// For ports only those that touch first to last.
func (t *Tx) GrantsOfOthers(tenant, protocol string, first, last int) ([]Grant, error) {
	var out []Grant
	q := t.tx.NewSelect().Model(&out).ColumnExpr("\"grant\".*, tokens.tenant AS tenant").
		ModelTableExpr("grants AS \"grant\"").
		Join("JOIN tokens ON tokens.id = \"grant\".token_id").
		Where("tokens.revoked_at = 0").Where("tokens.tenant <> ?", tenant).Where("\"grant\".protocol = ?", protocol)
	if protocol != Host {
		q = q.Where("\"grant\".first <= ?", last).Where("\"grant\".last >= ?", first)
	}
	return out, q.Scan(t.ctx)
}

// Held is a name that stays with a tenant for a while after its tunnel was deleted.
type Held struct {
	bun.BaseModel `bun:"table:released_names"`

	Name   string `bun:",pk"`
	Tenant string
	Until  int64
}

// Hold keeps name for tenant until a time.
func (t *Tx) Hold(h Held) error {
	_, err := t.tx.NewInsert().Model(&h).On("CONFLICT (name) DO UPDATE").Set("tenant = EXCLUDED.tenant").Set("until = EXCLUDED.until").Exec(t.ctx)
	return err
}

// HeldByOthers returns the names that other tenants hold now.
func (t *Tx) HeldByOthers(tenant string) ([]Held, error) {
	var out []Held
	return out, t.tx.NewSelect().Model(&out).Where("tenant <> ?", tenant).Where("until > ?", t.Now.UnixMilli()).Scan(t.ctx)
}

// DropHeld forgets names that nobody holds any more.
func (t *Tx) DropHeld() error {
	_, err := t.tx.NewRaw("DELETE FROM released_names WHERE until <= ?", t.Now.UnixMilli()).Exec(t.ctx)
	return err
}

// Meta returns a small value; nil if it was never set.
func (t *Tx) Meta(name string) ([]byte, error) { return t.value("meta", "value", name) }

// SetMeta stores a small value.
func (t *Tx) SetMeta(name string, value []byte) error {
	return t.setValue("meta", "value", name, value)
}

// Secret returns a sealed value; nil if it was never set.
func (t *Tx) Secret(name string) ([]byte, error) { return t.value("secrets", "sealed", name) }

// SetSecret stores a sealed value.
func (t *Tx) SetSecret(name string, sealed []byte) error {
	return t.setValue("secrets", "sealed", name, sealed)
}

func (t *Tx) value(table, column, name string) ([]byte, error) {
	var v []byte
	err := t.tx.NewRaw("SELECT ? FROM ? WHERE name = ?", bun.Ident(column), bun.Ident(table), name).Scan(t.ctx, &v)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return v, err
}

func (t *Tx) setValue(table, column, name string, v []byte) error {
	_, err := t.tx.NewRaw("INSERT INTO ? (name, ?) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET ? = EXCLUDED.?",
		bun.Ident(table), bun.Ident(column), name, v, bun.Ident(column), bun.Ident(column)).Exec(t.ctx)
	return err
}
