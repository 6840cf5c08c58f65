package store

import "github.com/uptrace/bun"

// Provider is a sign-in provider. Spec is its hubv1.Provider without the secret, Secret that,
// sealed.
type Provider struct {
	bun.BaseModel `bun:"table:providers"`

	Name   string `bun:",pk"`
	Spec   []byte
	Secret []byte
}

// Providers returns all, by name.
func (t *Tx) Providers() ([]*Provider, error) {
	var out []*Provider
	return out, t.tx.NewSelect().Model(&out).Order("name").Scan(t.ctx)
}

// Provider returns one by name.
func (t *Tx) Provider(name string) (*Provider, error) {
	p := &Provider{}
	return p, wrap(t.tx.NewSelect().Model(p).Where("name = ?", name).Scan(t.ctx))
}

// PutProvider stores one.
func (t *Tx) PutProvider(p *Provider) error {
	_, err := t.tx.NewInsert().Model(p).On("CONFLICT (name) DO UPDATE").Set("spec = EXCLUDED.spec").Set("secret = EXCLUDED.secret").Exec(t.ctx)
	return err
}

// DropProvider deletes one and tells whether there was one.
func (t *Tx) DropProvider(name string) (bool, error) {
	res, err := t.tx.NewRaw("DELETE FROM providers WHERE name = ?", name).Exec(t.ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// OIDCFlow is a sign-in at a provider that has begun; Hash is the SHA-256 of its state.
type OIDCFlow struct {
	bun.BaseModel `bun:"table:oidc_flows"`

	Hash      []byte `bun:",pk"`
	Sealed    []byte
	ExpiresAt int64
}

// AddOIDCFlow stores a sign-in that has begun, and forgets those that took too long.
func (t *Tx) AddOIDCFlow(f *OIDCFlow) error {
	if _, err := t.tx.NewRaw("DELETE FROM oidc_flows WHERE expires_at <= ?", t.Now.UnixMilli()).Exec(t.ctx); err != nil {
		return err
	}
	_, err := t.tx.NewInsert().Model(f).Exec(t.ctx)
	return err
}

// TakeOIDCFlow returns a flow and removes it: it counts once. ErrNotFound if there is none that
// has not expired.
func (t *Tx) TakeOIDCFlow(hash []byte) (*OIDCFlow, error) {
	f := &OIDCFlow{}
	err := t.tx.NewSelect().Model(f).Where("hash = ?", hash).Where("expires_at > ?", t.Now.UnixMilli()).Scan(t.ctx)
	if err != nil {
		return nil, wrap(err)
	}
	_, err = t.tx.NewRaw("DELETE FROM oidc_flows WHERE hash = ?", hash).Exec(t.ctx)
	return f, err
}
