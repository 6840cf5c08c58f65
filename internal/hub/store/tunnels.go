package store

import (
	"database/sql"

	"github.com/uptrace/bun"
)

// Tunnel is one public endpoint. Spec is its hubv1.Tunnel.
type Tunnel struct {
	bun.BaseModel `bun:"table:tunnels"`

	ID     string `bun:",pk"`
	Tenant string
	Kind   int32
	// Hostname is unique; NULL for kinds with ports.
	Hostname sql.NullString
	Name     string
	// Source is declared or managed.
	Source    string
	Spec      []byte
	CreatedAt int64
	// OrphanedAt is since when no live replica has declared it (0 = one does); OrphanMark the
	// same on the listening clock.
	OrphanedAt int64
	OrphanMark int64
	// Agent is the id of the enrolled agent that serves a managed tunnel; Sealed its upstream
	// password.
	Agent  string
	Sealed []byte
}

// Port is one public port of a tunnel: one row each, so that the database refuses a second owner.
type Port struct {
	bun.BaseModel `bun:"table:ports"`

	Protocol string `bun:",pk"`
	Port     int    `bun:",pk"`
	TunnelID string
}

// HTTPPort is one clear HTTP port of a tunnel, which those of other hosts may have as well.
type HTTPPort struct {
	bun.BaseModel `bun:"table:http_ports"`

	Port     int    `bun:",pk"`
	TunnelID string `bun:",pk"`
}

// Reservation keeps ports for a tenant, with or without a tunnel.
type Reservation struct {
	bun.BaseModel `bun:"table:reservations"`

	Protocol  string `bun:",pk"`
	First     int    `bun:",pk"`
	Last      int
	Tenant    string
	CreatedAt int64
}

// AddTunnel stores a tunnel that claims ports first to last of protocol (empty: none).
func (t *Tx) AddTunnel(tun *Tunnel, protocol string, first, last int) error {
	if _, err := t.tx.NewInsert().Model(tun).Exec(t.ctx); err != nil {
		return err
	}
	if protocol == "" {
		return nil
	}
	return t.addPorts(tun.ID, protocol, first, last)
}

func (t *Tx) addPorts(id, protocol string, first, last int) error {
	ports := make([]Port, 0, last-first+1)
	for p := first; p <= last; p++ {
		ports = append(ports, Port{Protocol: protocol, Port: p, TunnelID: id})
	}
	return batch(t, ports)
}

// SetTunnel stores name, spec and orphan state of a tunnel that exists.
func (t *Tx) SetTunnel(tun *Tunnel) error {
	_, err := t.tx.NewUpdate().Model(tun).Column("name", "spec", "orphaned_at", "orphan_mark").WherePK().Exec(t.ctx)
	return err
}

// SetHTTPPorts stores the clear HTTP ports of a tunnel that exists.
func (t *Tx) SetHTTPPorts(id string, ports []uint32) error {
	if _, err := t.tx.NewRaw("DELETE FROM http_ports WHERE tunnel_id = ?", id).Exec(t.ctx); err != nil {
		return err
	}
	rows := make([]HTTPPort, len(ports))
	for i, p := range ports {
		rows[i] = HTTPPort{Port: int(p), TunnelID: id}
	}
	return batch(t, rows)
}

// DeleteTunnel removes a tunnel and its ports.
func (t *Tx) DeleteTunnel(id string) error {
	for _, table := range []string{"ports", "http_ports"} {
		if _, err := t.tx.NewRaw("DELETE FROM "+table+" WHERE tunnel_id = ?", id).Exec(t.ctx); err != nil {
			return err
		}
	}
	_, err := t.tx.NewRaw("DELETE FROM tunnels WHERE id = ?", id).Exec(t.ctx)
	return err
}

// Tunnel returns a tunnel by id.
func (t *Tx) Tunnel(id string) (*Tunnel, error) {
	tun := &Tunnel{}
	return tun, wrap(t.tx.NewSelect().Model(tun).Where("id = ?", id).Scan(t.ctx))
}

// TunnelByHost returns the tunnel that has this hostname.
func (t *Tx) TunnelByHost(hostname string) (*Tunnel, error) {
	tun := &Tunnel{}
	return tun, wrap(t.tx.NewSelect().Model(tun).Where("hostname = ?", hostname).Scan(t.ctx))
}

// TunnelsOnPorts returns the tunnels that have a port from first to last; of TCP also those of kind
// http that have it in clear text.
func (t *Tx) TunnelsOnPorts(protocol string, first, last int) ([]*Tunnel, error) {
	var out []*Tunnel
	q := t.tx.NewSelect().Model(&out).Order("id").
		Where("id IN (SELECT tunnel_id FROM ports WHERE protocol = ? AND port >= ? AND port <= ?)", protocol, first, last)
	if protocol == TCP {
		q = q.WhereOr("id IN (SELECT tunnel_id FROM http_ports WHERE port >= ? AND port <= ?)", first, last)
	}
	return out, q.Scan(t.ctx)
}

// Tunnels returns all tunnels.
func (t *Tx) Tunnels() ([]*Tunnel, error) {
	var out []*Tunnel
	return out, t.tx.NewSelect().Model(&out).Order("id").Scan(t.ctx)
}

// AddReservation stores a reservation.
func (t *Tx) AddReservation(r *Reservation) error {
	_, err := t.tx.NewInsert().Model(r).Exec(t.ctx)
	return err
}

// DeleteReservation removes the reservation that starts at first.
func (t *Tx) DeleteReservation(protocol string, first int) error {
	_, err := t.tx.NewRaw("DELETE FROM reservations WHERE protocol = ? AND first = ?", protocol, first).Exec(t.ctx)
	return err
}

// Reservations returns those that touch first to last of protocol; an empty protocol: all.
func (t *Tx) Reservations(protocol string, first, last int) ([]Reservation, error) {
	var out []Reservation
	q := t.tx.NewSelect().Model(&out).Order("protocol", "first")
	if protocol != "" {
		q = q.Where("protocol = ? AND first <= ? AND last >= ?", protocol, last, first)
	}
	return out, q.Scan(t.ctx)
}
