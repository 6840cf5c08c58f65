package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// maxDeclared caps the entries of one replica.
	maxDeclared = 4096
	// holdNames is how long a hostname stays with its tenant after its tunnel was deleted.
	holdNames = 30 * 24 * time.Hour
)

// Declare replaces what a replica declares: what it no longer names is withdrawn, what it names
// is claimed. Each entry gets one verdict, in the order of the list.
func (h *Hub) Declare(ctx context.Context, c *hublink.Caller, r *hubv1.DeclareRequest) ([]*hubv1.Verdict, error) {
	if n := len(r.GetTunnels()); n > maxDeclared {
		return nil, invalid("tunnels", fmt.Sprint(n), fmt.Sprintf("declare at most %d", maxDeclared), "are too many")
	}
	d := &declaring{
		h: h, self: keyOf(c), live: h.presence.alive(h.cfg.Now()),
		claims: make([]*claim, len(r.GetTunnels())), verdicts: make([]*hubv1.Verdict, len(r.GetTunnels())),
	}
	d.parse(r.GetTunnels())
	err := h.write(ctx, func(tx *store.Tx) error {
		if h.store.Shared() {
			tx.Changed(declaredItem)
		}
		return d.apply(tx, c, r)
	})
	if store.Duplicate(err) {
		// Two hubs claimed the same name at once and the database kept one.
		err = d.raced(err)
	}
	if err != nil {
		return nil, err
	}
	h.presence.agent(d.self, h.cfg.Now(), func(a *agentPresence) {
		a.declared, a.hostName, a.software, a.draining = h.cfg.Now(), c.HostName, r.GetSoftware(), false
	})
	h.reap.invalidate()
	d.portProblems()
	for _, v := range d.verdicts {
		if v.GetCode() != string(reason.OK) {
			h.log.Info("declared tunnel refused", "token", c.Credential.GetName(), "host", c.HostName, "entry", v.GetKey(), "reason", v.GetCode(), "detail", v.GetDetail())
		}
	}
	return d.verdicts, nil
}

// declaring is one call of Declare.
type declaring struct {
	h        *Hub
	self     replicaKey
	live     map[replicaKey]map[string]bool
	claims   []*claim
	verdicts []*hubv1.Verdict
}

func (d *declaring) parse(list []*hubv1.DeclaredTunnel) {
	first := map[string]string{}
	for i, e := range list {
		d.claims[i], d.verdicts[i] = nil, &hubv1.Verdict{Key: e.GetKey(), Code: string(reason.OK)}
		c, p := parseEntry(e)
		if p == nil {
			if key, twice := first[c.tunnel.Id]; twice {
				field, value := c.field()
				p = invalid(field, value, "remove one of the entries", "is declared by %s already", key)
			} else {
				first[c.tunnel.Id] = e.GetKey()
			}
		}
		if p != nil {
			d.refuse(i, p)
			continue
		}
		d.claims[i] = c
	}
	d.parseShared()
}

func (d *declaring) refuse(i int, p *Problem) {
	d.claims[i] = nil
	d.verdicts[i].Code, d.verdicts[i].Detail = string(p.Code), p.Error()
}

// raced turns a duplicate that only the database saw into something to try again.
func (d *declaring) raced(err error) error {
	return reason.Wrap(err, reason.NameConflict, reason.HopHub, "somebody else claimed a name or port at the same moment; try again")
}

func (d *declaring) apply(tx *store.Tx, c *hublink.Caller, r *hubv1.DeclareRequest) error {
	tok, err := tx.Token(d.self.token)
	if errors.Is(err, store.ErrNotFound) {
		return reason.New(reason.TokenUnknown, reason.HopHub, "the token is not known any more")
	}
	if err != nil {
		return err
	}
	if tok.RevokedAt != 0 {
		return reason.New(reason.TokenRevoked, reason.HopHub, "the token %q was revoked; create a new invite", tok.Name)
	}
	// Withdrawals first, so that a renamed service can take over its own port.
	if err := d.withdraw(tx); err != nil {
		return err
	}
	at := d.h.front()
	for i, cl := range d.claims {
		if cl == nil {
			continue
		}
		err := d.claim(tx, tok, cl)
		var p *Problem
		switch {
		case errors.As(err, &p):
			d.refuse(i, p)
		case err != nil:
			return err
		default:
			d.verdicts[i].TunnelId, d.verdicts[i].Url = cl.tunnel.Id, at.url(cl.tunnel)
		}
	}
	rows := make([]store.Declaration, len(d.verdicts))
	for i, v := range d.verdicts {
		entry, err := proto.Marshal(r.GetTunnels()[i])
		if err != nil {
			return err
		}
		verdict, err := proto.Marshal(v)
		if err != nil {
			return err
		}
		rows[i] = store.Declaration{TokenID: d.self.token, ReplicaID: d.self.replica, Position: i, Entry: entry, Verdict: verdict, TunnelID: v.GetTunnelId()}
	}
	return tx.SetDeclarations(&store.Replica{
		TokenID: d.self.token, ReplicaID: d.self.replica, HostName: c.HostName, Software: r.GetSoftware(), DeclaredAt: tx.Now.UnixMilli(),
	}, rows)
}

// withdraw takes back what this replica declared before and does not name now. A tunnel that no
// other live replica declares is gone at once.
func (d *declaring) withdraw(tx *store.Tx) error {
	before, err := tx.DeclarationsBy(d.self.token, d.self.replica)
	if err != nil {
		return err
	}
	var kept []string
	for _, c := range d.claims {
		if c != nil {
			kept = append(kept, c.tunnel.Id)
		}
	}
	for _, b := range before {
		if b.TunnelID == "" || slices.Contains(kept, b.TunnelID) {
			continue
		}
		others, err := d.others(tx, b.TunnelID)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(others, d.lives) {
			if err := d.h.dropDeclarer(tx, b.TunnelID, d.self); err != nil {
				return err
			}
			continue
		}
		if err := d.h.deleteTunnel(tx, b.TunnelID); err != nil {
			return err
		}
	}
	return nil
}

// others are the declarations of other replicas that hold up a tunnel.
func (d *declaring) others(tx *store.Tx, id string) ([]store.Declaration, error) {
	all, err := tx.Declarations(id)
	return slices.DeleteFunc(all, func(o store.Declaration) bool { return keyOfDeclaration(o) == d.self }), err
}

func keyOfDeclaration(d store.Declaration) replicaKey { return replicaKey{d.TokenID, d.ReplicaID} }

func (d *declaring) lives(o store.Declaration) bool {
	_, ok := d.live[keyOfDeclaration(o)]
	return ok
}

// claim gives the tunnel of c to the token's tenant, or returns the Problem that refuses it.
func (d *declaring) claim(tx *store.Tx, tok *store.Token, c *claim) error {
	if p := d.h.granted(tok, c); p != nil {
		return p
	}
	if anyGrant(tok) {
		if err := d.h.freeOfGrants(tx, tok, c); err != nil {
			return err
		}
	}
	holders, err := c.holders(tx)
	if err != nil {
		return err
	}
	for _, t := range holders {
		if err := d.contest(tx, tok, c, t); err != nil {
			return err
		}
	}
	if c.protocol != "" {
		if err := d.h.reservedFor(tx, tok, c); err != nil {
			return err
		}
	}
	if err := d.claimHTTPPorts(tx, tok, c); err != nil {
		return err
	}
	t, err := tx.Tunnel(c.tunnel.Id)
	if errors.Is(err, store.ErrNotFound) {
		return d.add(tx, tok, c)
	}
	if err != nil {
		return err
	}
	return d.update(tx, tok, c, t)
}

// holders are the tunnels that have the name or a port of c now, that of the same id included.
func (c *claim) holders(tx *store.Tx) ([]*store.Tunnel, error) {
	if c.protocol != "" {
		return tx.TunnelsOnPorts(c.protocol, c.first, c.last)
	}
	t, err := tx.TunnelByHost(c.tunnel.Hostname)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return []*store.Tunnel{t}, err
}

// contest decides between the claim c and the tunnel t that has its name or port. The one that
// lives keeps it; equal ones are copies; a claim may replace what only dead replicas declare.
func (d *declaring) contest(tx *store.Tx, tok *store.Token, c *claim, t *store.Tunnel) error {
	field, value := c.field()
	if t.Tenant != tok.Tenant {
		return conflict(c.code(), field, value, t.Tenant, t.ID, fmt.Sprintf("belongs to tenant %q", t.Tenant), "choose another one, or use an invite of that tenant")
	}
	if t.Source != "declared" {
		return conflict(c.code(), field, value, t.Tenant, t.ID, "belongs to a managed tunnel", "delete that tunnel, or choose another one")
	}
	spec := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, spec); err != nil {
		return err
	}
	if t.ID == c.tunnel.Id && spec.GetAccess().GetMode() == c.tunnel.Access.Mode {
		return nil // a copy
	}
	others, err := d.others(tx, t.ID)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(others, d.lives); i >= 0 {
		return conflict(c.code(), field, value, t.Tenant, t.ID,
			fmt.Sprintf("is declared differently (%s, %s) by replica %.8s", kindText(spec.GetKind()), accessText(spec), others[i].ReplicaID),
			"declare the same kind, ports and access in all replicas, or stop the other one")
	}
	if t.ID == c.tunnel.Id {
		return nil // update changes it
	}
	return d.h.deleteTunnel(tx, t.ID)
}

func (d *declaring) add(tx *store.Tx, tok *store.Token, c *claim) error {
	t := c.row(tok.Tenant, tx.Now.UnixMilli())
	c.tunnel.Tenant, c.tunnel.TokenIds = tok.Tenant, []string{tok.ID}
	var err error
	if t.Spec, err = proto.Marshal(c.tunnel); err != nil {
		return err
	}
	if err := tx.AddTunnel(t, c.protocol, c.first, c.last); err != nil {
		return err
	}
	if err := tx.SetHTTPPorts(t.ID, c.tunnel.HttpPorts); err != nil {
		return err
	}
	tx.Changed("tunnel/" + t.ID)
	return nil
}

// update brings a tunnel that exists in line with the claim: the newest declaration says where
// the origin is, and every token that declares it may serve it.
func (d *declaring) update(tx *store.Tx, tok *store.Token, c *claim, t *store.Tunnel) error {
	old := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, old); err != nil {
		return err
	}
	c.tunnel.Tenant, c.tunnel.TokenIds = tok.Tenant, old.GetTokenIds()
	if !slices.Contains(c.tunnel.TokenIds, tok.ID) {
		c.tunnel.TokenIds = append(slices.Clone(c.tunnel.TokenIds), tok.ID)
	}
	if proto.Equal(old, c.tunnel) && t.OrphanedAt == 0 {
		return nil
	}
	var err error
	if t.Spec, err = proto.Marshal(c.tunnel); err != nil {
		return err
	}
	t.Name, t.OrphanedAt, t.OrphanMark = c.tunnel.Name, 0, 0
	if err := tx.SetHTTPPorts(t.ID, c.tunnel.HttpPorts); err != nil {
		return err
	}
	tx.Changed("tunnel/" + t.ID)
	return tx.SetTunnel(t)
}

// granted checks the token's grants and what nobody may have.
func (h *Hub) granted(tok *store.Token, c *claim) *Problem {
	field, value := c.field()
	missing := func(flag string) *Problem {
		return &Problem{Code: reason.GrantMissing, Field: field, Value: value,
			Text:   fmt.Sprintf("is not granted to the token %q, which may claim %s", tok.Name, grantText(tok)),
			Remedy: fmt.Sprintf("create an invite with %s %s", flag, value)}
	}
	if c.protocol == "" {
		if what := h.reserved(c.pattern); what != "" {
			return conflict(reason.NameConflict, field, value, "", "", "is "+what, "choose another name")
		}
		if anyGrant(tok) {
			return nil
		}
		for _, g := range tok.Grants {
			if p, err := hostname.Parse(g.Pattern); g.Protocol == store.Host && err == nil && p.Covers(c.pattern) {
				return nil
			}
		}
		return missing("--hostname")
	}
	var ranges []*hubv1.PortRange
	for _, g := range tok.Grants {
		if g.Protocol == c.protocol {
			ranges = append(ranges, &hubv1.PortRange{First: uint32(g.First), Last: uint32(g.Last)})
		}
	}
	if anyGrant(tok) {
		if ranges = h.cfg.TCPPorts; c.protocol == store.UDP {
			ranges = h.cfg.UDPPorts
		}
	}
	if !covered(ranges, c.first, c.last) {
		return missing("--" + c.protocol + "-port")
	}
	if p, ok := h.ownPort(c.protocol, c.first, c.last); ok {
		return conflict(reason.PortConflict, field, value, "", "", fmt.Sprintf("the server itself listens on %s port %d", c.protocol, p), "choose another port")
	}
	return nil
}

// anyGrant tells whether a token may claim whatever no other tenant was granted: an operator's key
// that is not limited to hosts.
func anyGrant(tok *store.Token) bool {
	return tok.Kind == string(identity.KindKey) && len(tok.Grants) == 0
}

// freeOfGrants checks that no other tenant was granted what c claims.
func (h *Hub) freeOfGrants(tx *store.Tx, tok *store.Token, c *claim) error {
	field, _ := c.field()
	if c.protocol == "" {
		return h.freeName(tx, field, tok.Tenant, c.pattern)
	}
	return h.freePorts(tx, field, tok.Tenant, c.protocol, c.first, c.last)
}

func (h *Hub) reservedFor(tx *store.Tx, tok *store.Token, c *claim) error {
	rs, err := tx.Reservations(c.protocol, c.first, c.last)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Tenant != tok.Tenant {
			field, value := c.field()
			return conflict(reason.PortConflict, field, value, r.Tenant, ports(r.First, r.Last), fmt.Sprintf("is reserved for tenant %q", r.Tenant), "choose another port")
		}
	}
	return nil
}

// portProblems tells what edges reported of ports that are claimed but not bound.
func (d *declaring) portProblems() {
	for i, c := range d.claims {
		if c == nil || c.protocol == "" && len(c.tunnel.HttpPorts) == 0 {
			continue
		}
		d.h.freshVerdict(d.verdicts[i], d.h.cfg.Now())
	}
}
