package store

import (
	"database/sql"

	"github.com/uptrace/bun"
)

// Replica is an agent process that has declared tunnels.
type Replica struct {
	bun.BaseModel `bun:"table:replicas"`

	TokenID    string `bun:",pk"`
	ReplicaID  string `bun:",pk"`
	HostName   string
	Software   string
	DeclaredAt int64
	// LostMark is when it was lost, on the listening clock; NULL while it lives.
	LostMark sql.NullInt64
}

// Declaration is one entry of a replica's list with the hub's verdict. Entry is its
// hubv1.DeclaredTunnel, Verdict its hubv1.Verdict.
type Declaration struct {
	bun.BaseModel `bun:"table:declarations"`

	TokenID   string `bun:",pk"`
	ReplicaID string `bun:",pk"`
	Position  int    `bun:",pk"`
	Entry     []byte
	Verdict   []byte
	// TunnelID is the tunnel it holds up; empty when it was refused.
	TunnelID string
}

// SetDeclarations replaces what a replica declares.
func (t *Tx) SetDeclarations(r *Replica, list []Declaration) error {
	_, err := t.tx.NewInsert().Model(r).On("CONFLICT (token_id, replica_id) DO UPDATE").
		Set("host_name = EXCLUDED.host_name").Set("software = EXCLUDED.software").
		Set("declared_at = EXCLUDED.declared_at").Set("lost_mark = NULL").Exec(t.ctx)
	if err != nil {
		return err
	}
	if _, err := t.tx.NewRaw("DELETE FROM declarations WHERE token_id = ? AND replica_id = ?", r.TokenID, r.ReplicaID).Exec(t.ctx); err != nil {
		return err
	}
	return batch(t, list)
}

// Replicas returns all replicas that have declared.
func (t *Tx) Replicas() ([]Replica, error) {
	var out []Replica
	return out, t.tx.NewSelect().Model(&out).Order("token_id", "replica_id").Scan(t.ctx)
}

// SetLost notes when a replica was lost, or that it lives.
func (t *Tx) SetLost(tokenID, replicaID string, mark sql.NullInt64) error {
	_, err := t.tx.NewRaw("UPDATE replicas SET lost_mark = ? WHERE token_id = ? AND replica_id = ?", mark, tokenID, replicaID).Exec(t.ctx)
	return err
}

// DeleteReplica forgets a replica and what it declared.
func (t *Tx) DeleteReplica(tokenID, replicaID string) error {
	_, err := t.tx.NewRaw("DELETE FROM replicas WHERE token_id = ? AND replica_id = ?", tokenID, replicaID).Exec(t.ctx)
	return err
}

// DeleteReplicasOf forgets all replicas of a token.
func (t *Tx) DeleteReplicasOf(tokenID string) error {
	_, err := t.tx.NewRaw("DELETE FROM replicas WHERE token_id = ?", tokenID).Exec(t.ctx)
	return err
}

// Declarations returns all that hold up one tunnel.
func (t *Tx) Declarations(tunnelID string) ([]Declaration, error) {
	var out []Declaration
	return out, t.tx.NewSelect().Model(&out).Where("tunnel_id = ?", tunnelID).Order("token_id", "replica_id").Scan(t.ctx)
}

// DeclarationsBy returns those of one replica, of all replicas of a token (replicaID empty), or
// all (both empty).
func (t *Tx) DeclarationsBy(tokenID, replicaID string) ([]Declaration, error) {
	var out []Declaration
	q := t.tx.NewSelect().Model(&out).Order("token_id", "replica_id", "position")
	if tokenID != "" {
		q = q.Where("token_id = ?", tokenID)
	}
	if replicaID != "" {
		q = q.Where("replica_id = ?", replicaID)
	}
	return out, q.Scan(t.ctx)
}

// DeclarationsFor returns those that hold up the tunnels ids, and all that were refused.
func (t *Tx) DeclarationsFor(ids []string) ([]Declaration, error) {
	var out []Declaration
	return out, t.tx.NewSelect().Model(&out).Where("tunnel_id IN (?)", bun.List(append([]string{""}, ids...))).Scan(t.ctx)
}

// Edge is one edge. Spec is its hubv1.Edge; TokenID is empty for an edge in the hub's process.
type Edge struct {
	bun.BaseModel `bun:"table:edges"`

	ID       string `bun:",pk"`
	TokenID  string
	Key      []byte
	Spec     []byte
	Software string
	LastSeen int64
	// Drained: taken out of service, until that is undone.
	Drained bool
}

// PutEdge stores an edge.
func (t *Tx) PutEdge(e *Edge) error {
	_, err := t.tx.NewInsert().Model(e).On("CONFLICT (id) DO UPDATE").Set("token_id = EXCLUDED.token_id").
		Set("spec = EXCLUDED.spec").Set("software = EXCLUDED.software").Set("last_seen = EXCLUDED.last_seen").Exec(t.ctx)
	return err
}

// SeenEdge notes when an edge was heard last.
func (t *Tx) SeenEdge(id string) error {
	_, err := t.tx.NewRaw("UPDATE edges SET last_seen = ? WHERE id = ?", t.Now.UnixMilli(), id).Exec(t.ctx)
	return err
}

// DeleteEdge forgets an edge.
func (t *Tx) DeleteEdge(id string) error {
	_, err := t.tx.NewRaw("DELETE FROM edges WHERE id = ?", id).Exec(t.ctx)
	return err
}

// Edges returns all edges.
func (t *Tx) Edges() ([]*Edge, error) {
	var out []*Edge
	return out, t.tx.NewSelect().Model(&out).Order("id").Scan(t.ctx)
}

// Certificate is what edges present for a name.
type Certificate struct {
	bun.BaseModel `bun:"table:certificates"`

	Name      string `bun:",pk"`
	Chain     []byte
	SealedKey []byte
	NotAfter  int64
	Problem   string
}

// PutCertificate stores a certificate.
func (t *Tx) PutCertificate(c *Certificate) error {
	_, err := t.tx.NewInsert().Model(c).On("CONFLICT (name) DO UPDATE").Set("chain = EXCLUDED.chain").
		Set("sealed_key = EXCLUDED.sealed_key").Set("not_after = EXCLUDED.not_after").Set("problem = EXCLUDED.problem").Exec(t.ctx)
	return err
}

// DeleteCertificate forgets a certificate.
func (t *Tx) DeleteCertificate(name string) error {
	_, err := t.tx.NewRaw("DELETE FROM certificates WHERE name = ?", name).Exec(t.ctx)
	return err
}

// Certificates returns all certificates.
func (t *Tx) Certificates() ([]*Certificate, error) {
	var out []*Certificate
	return out, t.tx.NewSelect().Model(&out).Order("name").Scan(t.ctx)
}

// Edge returns an edge by id.
func (t *Tx) Edge(id string) (*Edge, error) {
	e := &Edge{}
	return e, wrap(t.tx.NewSelect().Model(e).Where("id = ?", id).Scan(t.ctx))
}

// Certificate returns a certificate by name.
func (t *Tx) Certificate(name string) (*Certificate, error) {
	c := &Certificate{}
	return c, wrap(t.tx.NewSelect().Model(c).Where("name = ?", name).Scan(t.ctx))
}

// ReleaseDeclarations makes declarations hold up a deleted tunnel no longer.
func (t *Tx) ReleaseDeclarations(tunnelID string) error {
	_, err := t.tx.NewRaw("UPDATE declarations SET tunnel_id = '' WHERE tunnel_id = ?", tunnelID).Exec(t.ctx)
	return err
}

// ReplicasOf returns the replicas of a token that have declared.
func (t *Tx) ReplicasOf(tokenID string) ([]Replica, error) {
	var out []Replica
	return out, t.tx.NewSelect().Model(&out).Where("token_id = ?", tokenID).Order("replica_id").Scan(t.ctx)
}
