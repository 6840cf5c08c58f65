package store

import (
	"github.com/uptrace/bun"
)

// managedTables are the tables of enrolled agents, managed tunnels and access.
var managedTables = []string{
	// Rotation: a token with member_of is a further one of the agent or invite of that id; ends_at
	// is when one that was rotated out ends.
	`ALTER TABLE tokens ADD COLUMN member_of TEXT NOT NULL DEFAULT ''`,
	`ALTER TABLE tokens ADD COLUMN ends_at BIGINT NOT NULL DEFAULT 0`,
	`ALTER TABLE tokens ADD COLUMN disabled BOOLEAN NOT NULL DEFAULT FALSE`,
	`DROP INDEX tokens_live_name`,
	`CREATE UNIQUE INDEX tokens_live_name ON tokens (kind, name) WHERE revoked_at = 0 AND member_of = ''`,
	`CREATE INDEX tokens_member ON tokens (member_of)`,
	`ALTER TABLE tunnels ADD COLUMN agent TEXT NOT NULL DEFAULT ''`,
	`ALTER TABLE tunnels ADD COLUMN sealed BYTES`,
	`CREATE INDEX tunnels_agent ON tunnels (agent)`,
	`ALTER TABLE edges ADD COLUMN drained BOOLEAN NOT NULL DEFAULT FALSE`,
	`CREATE TABLE removed_edges (id TEXT PRIMARY KEY, removed_at BIGINT NOT NULL)`,
	// Who holds an enrolment, and the edges at which it does.
	`CREATE TABLE holders (agent TEXT PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE, replica TEXT NOT NULL,
		host_name TEXT NOT NULL, since BIGINT NOT NULL, term BIGINT NOT NULL)`,
	`CREATE TABLE holder_edges (agent TEXT NOT NULL REFERENCES holders (agent) ON DELETE CASCADE, edge TEXT NOT NULL,
		PRIMARY KEY (agent, edge))`,
	`CREATE TABLE policies (name TEXT PRIMARY KEY, spec BYTES NOT NULL, version BIGINT NOT NULL, updated_at BIGINT NOT NULL)`,
	`CREATE TABLE policy_uses (policy TEXT NOT NULL REFERENCES policies (name),
		tunnel_id TEXT NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE, PRIMARY KEY (policy, tunnel_id))`,
	`CREATE INDEX policy_uses_tunnel ON policy_uses (tunnel_id)`,
}

// TokenGroup returns the tokens of an agent or invite: the one whose id it has, and those that
// rotation added, oldest first.
func (t *Tx) TokenGroup(id string) ([]*Token, error) {
	var out []*Token
	err := t.tx.NewSelect().Model(&out).Where("id = ? OR member_of = ?", id, id).Order("created_at", "id").Scan(t.ctx)
	if err != nil {
		return nil, err
	}
	for _, tok := range out {
		if err := t.fillGrants(tok); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// SetToken stores what can change of a token: bounds, end, whether it is switched off, and its
// grants.
func (t *Tx) SetToken(tok *Token) error {
	_, err := t.tx.NewUpdate().Model(tok).Column("expires_at", "expires_sessions", "max_replicas", "sources", "ends_at", "disabled").WherePK().Exec(t.ctx)
	if err != nil {
		return err
	}
	if _, err := t.tx.NewRaw("DELETE FROM grants WHERE token_id = ?", tok.ID).Exec(t.ctx); err != nil {
		return err
	}
	for i := range tok.Grants {
		tok.Grants[i].TokenID, tok.Grants[i].Position = tok.ID, i
	}
	return batch(t, tok.Grants)
}

// DeleteToken removes a token that rotation left behind.
func (t *Tx) DeleteToken(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM tokens WHERE id = ?", id).Exec(t.ctx)
	return err
}

// SetManaged stores what can change of a managed tunnel, with its ports first to last of protocol
// (empty: none).
func (t *Tx) SetManaged(tun *Tunnel, protocol string, first, last int) error {
	_, err := t.tx.NewUpdate().Model(tun).Column("name", "spec", "hostname", "agent", "sealed").WherePK().Exec(t.ctx)
	if err != nil || protocol == "" {
		return err
	}
	if _, err := t.tx.NewRaw("DELETE FROM ports WHERE tunnel_id = ?", tun.ID).Exec(t.ctx); err != nil {
		return err
	}
	return t.addPorts(tun.ID, protocol, first, last)
}

// TunnelsOfAgent returns the managed tunnels that an agent serves.
func (t *Tx) TunnelsOfAgent(agent string) ([]*Tunnel, error) {
	var out []*Tunnel
	return out, t.tx.NewSelect().Model(&out).Where("agent = ?", agent).Order("id").Scan(t.ctx)
}

// HostnamesOfOthers returns id, tenant and hostname of the tunnels of other tenants.
func (t *Tx) HostnamesOfOthers(tenant string) ([]*Tunnel, error) {
	var out []*Tunnel
	return out, t.tx.NewSelect().Model(&out).Column("id", "tenant", "hostname").Where("tenant <> ? AND hostname IS NOT NULL", tenant).Order("hostname").Scan(t.ctx)
}

// Release gives up a held name; it reports whether it was held.
func (t *Tx) Release(name string) (bool, error) {
	res, err := t.tx.NewRaw("DELETE FROM released_names WHERE name = ? AND until > ?", name, t.Now.UnixMilli()).Exec(t.ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// HeldNames returns all names that are held now.
func (t *Tx) HeldNames() ([]Held, error) {
	var out []Held
	return out, t.tx.NewSelect().Model(&out).Where("until > ?", t.Now.UnixMilli()).Order("name").Scan(t.ctx)
}

// Tenant owns names and ports. Invites counts its live invites and agents, Tunnels its tunnels.
type Tenant struct {
	bun.BaseModel `bun:"table:tenants"`

	Name      string `bun:",pk"`
	CreatedAt int64
	Invites   int `bun:",scanonly"`
	Tunnels   int `bun:",scanonly"`
}

// Tenants returns tenants in the order of their names, after one of them.
func (t *Tx) Tenants(after string, limit int) ([]Tenant, error) {
	var out []Tenant
	err := t.tx.NewSelect().Model(&out).ModelTableExpr("tenants AS tenant").
		ColumnExpr("tenant.name, tenant.created_at").
		ColumnExpr("(SELECT count(*) FROM tokens WHERE tokens.tenant = tenant.name AND revoked_at = 0 AND member_of = '' AND kind <> 'edge') AS invites").
		ColumnExpr("(SELECT count(*) FROM tunnels WHERE tunnels.tenant = tenant.name) AS tunnels").
		Where("tenant.name > ?", after).OrderExpr("tenant.name").Limit(int64(limit)).Scan(t.ctx)
	return out, err
}

// Holder is the replica that holds an enrolment; an empty replica: none does now.
type Holder struct {
	bun.BaseModel `bun:"table:holders"`

	Agent    string `bun:",pk"`
	Replica  string
	HostName string
	Since    int64
	Term     int64
}

// Holder returns who holds an agent's enrolment; ErrNotFound if nobody ever did.
func (t *Tx) Holder(agent string) (*Holder, error) {
	h := &Holder{}
	return h, wrap(t.tx.NewSelect().Model(h).Where("agent = ?", agent).Scan(t.ctx))
}

// Holders returns all.
func (t *Tx) Holders() ([]*Holder, error) {
	var out []*Holder
	return out, t.tx.NewSelect().Model(&out).Scan(t.ctx)
}

// SetHolder stores who holds an enrolment.
func (t *Tx) SetHolder(h *Holder) error {
	_, err := t.tx.NewInsert().Model(h).On("CONFLICT (agent) DO UPDATE").Set("replica = EXCLUDED.replica").
		Set("host_name = EXCLUDED.host_name").Set("since = EXCLUDED.since").Set("term = EXCLUDED.term").Exec(t.ctx)
	return err
}

// HolderEdge is an edge at which the holder of an enrolment has a session.
type HolderEdge struct {
	bun.BaseModel `bun:"table:holder_edges"`

	Agent string `bun:",pk"`
	Edge  string `bun:",pk"`
}

// HolderEdges returns all.
func (t *Tx) HolderEdges() ([]HolderEdge, error) {
	var out []HolderEdge
	return out, t.tx.NewSelect().Model(&out).Order("agent", "edge").Scan(t.ctx)
}

// AddHolderEdge notes that the holder has a session at an edge.
func (t *Tx) AddHolderEdge(agent, edge string) error {
	_, err := t.tx.NewRaw("INSERT INTO holder_edges (agent, edge) VALUES (?, ?) ON CONFLICT DO NOTHING", agent, edge).Exec(t.ctx)
	return err
}

// DropHolderEdge notes that it has none there.
func (t *Tx) DropHolderEdge(agent, edge string) error {
	_, err := t.tx.NewRaw("DELETE FROM holder_edges WHERE agent = ? AND edge = ?", agent, edge).Exec(t.ctx)
	return err
}

// DrainEdge takes an edge out of service, or back in.
func (t *Tx) DrainEdge(id string, drained bool) error {
	_, err := t.tx.NewRaw("UPDATE edges SET drained = ? WHERE id = ?", drained, id).Exec(t.ctx)
	return err
}

// RemoveEdge has the key of an edge refused from now on.
func (t *Tx) RemoveEdge(id string) error {
	_, err := t.tx.NewRaw("INSERT INTO removed_edges (id, removed_at) VALUES (?, ?) ON CONFLICT DO NOTHING", id, t.Now.UnixMilli()).Exec(t.ctx)
	return err
}

// EdgeRemoved tells whether the key of an edge is refused.
func (t *Tx) EdgeRemoved(id string) (bool, error) {
	var n int
	err := t.tx.NewRaw("SELECT count(*) FROM removed_edges WHERE id = ?", id).Scan(t.ctx, &n)
	return n > 0, err
}

// Policy is a named access. Spec is its hubv1.Access.
type Policy struct {
	bun.BaseModel `bun:"table:policies"`

	Name      string `bun:",pk"`
	Spec      []byte
	Version   int64
	UpdatedAt int64
}

// Policy returns a policy by name.
func (t *Tx) Policy(name string) (*Policy, error) {
	p := &Policy{}
	return p, wrap(t.tx.NewSelect().Model(p).Where("name = ?", name).Scan(t.ctx))
}

// Policies returns policies in the order of their names, after one of them; limit 0 = all.
func (t *Tx) Policies(after string, limit int) ([]*Policy, error) {
	var out []*Policy
	q := t.tx.NewSelect().Model(&out).Where("name > ?", after).Order("name")
	if limit > 0 {
		q = q.Limit(int64(limit))
	}
	return out, q.Scan(t.ctx)
}

// SetPolicy makes or replaces a policy.
func (t *Tx) SetPolicy(p *Policy) error {
	_, err := t.tx.NewInsert().Model(p).On("CONFLICT (name) DO UPDATE").Set("spec = EXCLUDED.spec").
		Set("version = EXCLUDED.version").Set("updated_at = EXCLUDED.updated_at").Exec(t.ctx)
	return err
}

// DeletePolicy removes a policy that no tunnel uses.
func (t *Tx) DeletePolicy(name string) error {
	_, err := t.tx.NewRaw("DELETE FROM policies WHERE name = ?", name).Exec(t.ctx)
	return err
}

// PolicyUse says that a tunnel uses a policy.
type PolicyUse struct {
	bun.BaseModel `bun:"table:policy_uses"`

	Policy   string `bun:",pk"`
	TunnelID string `bun:",pk"`
}

// PolicyUses returns the uses of a policy, or all (name empty).
func (t *Tx) PolicyUses(name string) ([]PolicyUse, error) {
	var out []PolicyUse
	q := t.tx.NewSelect().Model(&out).Order("policy", "tunnel_id")
	if name != "" {
		q = q.Where("policy = ?", name)
	}
	return out, q.Scan(t.ctx)
}

// UsePolicies notes which policies a tunnel uses.
func (t *Tx) UsePolicies(tunnelID string, names []string) error {
	if _, err := t.tx.NewRaw("DELETE FROM policy_uses WHERE tunnel_id = ?", tunnelID).Exec(t.ctx); err != nil {
		return err
	}
	uses := make([]PolicyUse, len(names))
	for i, n := range names {
		uses[i] = PolicyUse{Policy: n, TunnelID: tunnelID}
	}
	return batch(t, uses)
}
