package hub

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	maxGrants   = 256
	maxReplicas = 10000
)

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkName(field, name string) *Problem {
	if !nameRule.MatchString(name) {
		return invalid(field, name, "use 1 to 63 letters, digits, dots, hyphens and underscores; the first a letter or digit", "is no usable name")
	}
	return nil
}

// CreateInvite makes an invite token. The token itself is returned once and not kept.
func (h *Hub) CreateInvite(ctx context.Context, r *hubv1.CreateInviteRequest) (*hubv1.Invite, string, error) {
	tok := &store.Token{Kind: string(identity.KindInvite), Name: r.GetName(), Tenant: r.GetTenant(), ExpiresSessions: r.GetExpiresSessions()}
	if err := h.checkInvite(r, tok); err != nil {
		return nil, "", err
	}
	if err := mayGrant(ctx, "", grantOf(tok)); err != nil {
		return nil, "", err
	}
	token, err := h.newToken(identity.KindInvite, tok)
	if err != nil {
		return nil, "", err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		if err := h.inviteTenant(tx, r, tok); err != nil {
			return err
		}
		if err := h.freeGrants(tx, "", tok); err != nil {
			return err
		}
		tok.CreatedAt = tx.Now.UnixMilli()
		if err := tx.AddToken(tok); err != nil {
			return err
		}
		tx.Changed("credential/" + tok.ID)
		return nil
	})
	if store.Duplicate(err) {
		err = conflict(reason.NameConflict, "name", r.GetName(), "", "", "an invite of this name exists", "choose another name, or revoke it first")
	}
	if err != nil {
		return nil, "", err
	}
	return h.invite(tok), token, nil
}

// checkInvite validates what needs no store and fills in tok.
func (h *Hub) checkInvite(r *hubv1.CreateInviteRequest, tok *store.Token) error {
	if p := checkName("name", r.GetName()); p != nil {
		return p
	}
	if r.GetTenant() != "" {
		if p := checkName("tenant", r.GetTenant()); p != nil {
			return p
		}
	}
	if len(r.GetHostnames())+len(r.GetTcpPorts())+len(r.GetUdpPorts()) == 0 {
		return grantsNothing("hostnames")
	}
	if err := h.parseGrant("", &hubv1.Grant{Hostnames: r.GetHostnames(), TcpPorts: r.GetTcpPorts(), UdpPorts: r.GetUdpPorts()}, tok); err != nil {
		return err
	}
	return h.checkBounds(r, tok)
}

func grantsNothing(field string) *Problem {
	return invalid(field, "", "give at least one host name, TCP port or UDP port", "the invite would grant nothing")
}

// parseGrant checks what a token is to be granted and fills it in; fields begin with prefix.
func (h *Hub) parseGrant(prefix string, g *hubv1.Grant, tok *store.Token) error {
	tok.Grants = nil
	if n := len(g.GetHostnames()) + len(g.GetTcpPorts()) + len(g.GetUdpPorts()); n > maxGrants {
		return invalid(prefix+"hostnames", "", fmt.Sprintf("give at most %d names and ports together", maxGrants), "%d names and ports are too many", n)
	}
	for i, s := range g.GetHostnames() {
		field := fmt.Sprintf("%shostnames[%d]", prefix, i)
		p, err := hostname.Parse(s)
		if err != nil {
			return invalid(field, s, "give a name as a.example.com, *.example.com or **.example.com", "%v", err)
		}
		if what := h.reserved(p); what != "" {
			return invalid(field, s, "choose another name", "is %s and cannot be granted", what)
		}
		tok.Grants = append(tok.Grants, store.Grant{Protocol: store.Host, Pattern: p.String()})
	}
	for _, l := range []struct {
		field, protocol string
		ranges          []*hubv1.PortRange
	}{{"tcp_ports", store.TCP, g.GetTcpPorts()}, {"udp_ports", store.UDP, g.GetUdpPorts()}} {
		for i, pr := range l.ranges {
			if p := h.grantable(fmt.Sprintf("%s%s[%d]", prefix, l.field, i), l.protocol, pr); p != nil {
				return p
			}
			tok.Grants = append(tok.Grants, store.Grant{Protocol: l.protocol, First: int(pr.GetFirst()), Last: int(max(pr.GetFirst(), pr.GetLast()))})
		}
	}
	return nil
}

func (h *Hub) checkBounds(r *hubv1.CreateInviteRequest, tok *store.Token) error {
	if e := r.GetExpiresAt(); e != nil {
		t := e.AsTime()
		if !e.IsValid() || !t.After(h.cfg.Now()) {
			return invalid("expires_at", t.Format(time.RFC3339), "give a time in the future, or none for an invite that does not expire", "is in the past")
		}
		tok.ExpiresAt = t.UnixMilli()
	} else if r.GetExpiresSessions() {
		return invalid("expires_sessions", "true", "give expires_at too", "an invite that does not expire cannot end sessions")
	}
	if r.GetMaxReplicas() > maxReplicas {
		return invalid("max_replicas", fmt.Sprint(r.GetMaxReplicas()), fmt.Sprintf("give at most %d, or 0 for no limit", maxReplicas), "is too many")
	}
	tok.MaxReplicas = int(r.GetMaxReplicas())
	return parseSources(r.GetFrom(), tok)
}

// parseSources checks the networks that a token may be used from and fills them in.
func parseSources(given []string, tok *store.Token) error {
	var from []string
	for i, s := range given {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return invalid(fmt.Sprintf("from[%d]", i), s, "give a network as 192.0.2.0/24 or 2001:db8::/32", "is no network")
		}
		from = append(from, p.Masked().String())
	}
	tok.Sources = strings.Join(from, " ")
	return nil
}

// inviteTenant finds or makes the tenant. A tenant without a live token may be taken up again by
// an invite of its name: its names are still its own.
func (h *Hub) inviteTenant(tx *store.Tx, r *hubv1.CreateInviteRequest, tok *store.Token) error {
	if r.GetTenant() != "" {
		ok, err := tx.TenantExists(r.GetTenant())
		if err == nil && !ok {
			err = &Problem{Code: reason.NotFound, Field: "tenant", Value: r.GetTenant(), Text: "there is no such tenant", Remedy: "leave it away to make a tenant named like the invite"}
		}
		return err
	}
	tok.Tenant = tok.Name
	n, err := tx.LiveTokens(tok.Tenant)
	if err != nil {
		return err
	}
	if n > 0 || tok.Tenant == store.DefaultTenant {
		return conflict(reason.NameConflict, "name", tok.Name, tok.Tenant, "", "a tenant of this name exists",
			fmt.Sprintf("use --tenant %s to add the invite to it, or choose another name", tok.Tenant))
	}
	return tx.AddTenant(tok.Tenant)
}

// freeGrants checks that no other tenant has what a token is to be granted.
func (h *Hub) freeGrants(tx *store.Tx, prefix string, tok *store.Token) error {
	n := map[string]int{}
	for _, g := range tok.Grants {
		i := n[g.Protocol]
		n[g.Protocol]++
		var err error
		if g.Protocol != store.Host {
			err = h.freePorts(tx, fmt.Sprintf("%s%s_ports[%d]", prefix, g.Protocol, i), tok.Tenant, g.Protocol, g.First, g.Last)
		} else {
			p, perr := hostname.Parse(g.Pattern)
			if perr != nil {
				return perr
			}
			err = h.freeName(tx, fmt.Sprintf("%shostnames[%d]", prefix, i), tok.Tenant, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newToken makes the secret and puts its public half into tok.
func (h *Hub) newToken(kind identity.TokenKind, tok *store.Token) (string, error) {
	var edges []*hubv1.Edge
	if kind != identity.KindEdge {
		edges = h.feed.edges()
	}
	token, err := identity.NewToken(kind, h.cfg.URL, h.pins, edgeAddresses(edges))
	if err != nil {
		return "", err
	}
	keys, err := token.Keys()
	if err != nil {
		return "", err
	}
	pub := keys.Public()
	tok.ID, tok.Ed25519, tok.MLDSA65 = pub.HexID(), pub.Ed25519, pub.MLDSA65
	return token.Encode()
}

// GetInvite returns an invite by id or name.
func (h *Hub) GetInvite(ctx context.Context, idOrName string) (*hubv1.Invite, error) {
	tok, err := h.tokenNamed(ctx, identity.KindInvite, "invite", idOrName)
	if err != nil {
		return nil, err
	}
	return h.invite(tok), nil
}

func (h *Hub) tokenNamed(ctx context.Context, kind identity.TokenKind, what, idOrName string) (*store.Token, error) {
	var tok *store.Token
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		tok, err = tx.TokenNamed(string(kind), idOrName)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(what, idOrName, "list them with adit "+what+" list")
	}
	return tok, err
}

// ListInvites returns one page of invites, live and revoked, by name.
func (h *Hub) ListInvites(ctx context.Context, size uint32, page string) ([]*hubv1.Invite, string, error) {
	at, n, err := pageOf(size, page, 2)
	if err != nil {
		return nil, "", err
	}
	var toks []*store.Token
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) {
		toks, err = tx.FirstTokensOf([]string{string(identity.KindInvite)}, at[0], at[1], int64(n+1))
		return err
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(toks) > n {
		toks = toks[:n]
		next = pageToken(toks[n-1].Name, toks[n-1].ID)
	}
	live := h.presence.replicas(h.cfg.Now())
	out := make([]*hubv1.Invite, len(toks))
	for i, t := range toks {
		out[i] = invite(t, live[t.ID])
	}
	return out, next, nil
}

// RevokeInvite ends an invite: its replicas are refused and their sessions closed, its tunnels go.
func (h *Hub) RevokeInvite(ctx context.Context, idOrName string) (*hubv1.Invite, error) {
	return h.revoke(ctx, identity.KindInvite, "invite", idOrName)
}

func (h *Hub) revoke(ctx context.Context, kind identity.TokenKind, what, idOrName string) (*hubv1.Invite, error) {
	var tok *store.Token
	var ended []string
	err := h.write(ctx, func(tx *store.Tx) (err error) {
		if tok, err = tx.TokenNamed(string(kind), idOrName); err != nil {
			return err
		}
		if tok.RevokedAt != 0 {
			return nil
		}
		if err := mayGrant(ctx, "id: grant.", grantOf(tok)); err != nil {
			return err
		}
		if kind == identity.KindEdge {
			tok.RevokedAt, ended = tx.Now.UnixMilli(), []string{tok.ID}
			h.tellRevoked(tx, tok.ID)
			if err := tx.RevokeToken(tok.ID); err != nil {
				return err
			}
			return dropEdges(tx, func(e *store.Edge) bool { return e.TokenID == tok.ID })
		}
		ended, err = h.revokeAll(tx, tok)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(what, idOrName, "list them with adit "+what+" list")
	}
	if err != nil {
		return nil, err
	}
	for _, id := range ended {
		h.revoked(id)
	}
	return h.invite(tok), nil
}

// revokeAll ends every token of an agent or invite and takes what its replicas declared.
func (h *Hub) revokeAll(tx *store.Tx, first *store.Token) (ended []string, err error) {
	group, err := tx.TokenGroup(first.ID)
	if err != nil {
		return nil, err
	}
	first.RevokedAt = tx.Now.UnixMilli()
	for _, t := range group {
		if err := tx.RevokeToken(t.ID); err != nil {
			return nil, err
		}
		tx.Changed("credential/" + t.ID)
		h.tellRevoked(tx, t.ID)
		ended = append(ended, t.ID)
	}
	return ended, h.dropToken(tx, first.ID)
}

func (h *Hub) invite(t *store.Token) *hubv1.Invite {
	return invite(t, h.presence.replicas(h.cfg.Now())[t.ID])
}

func invite(t *store.Token, replicas int) *hubv1.Invite {
	return &hubv1.Invite{
		Id: t.ID, Name: t.Name, Tenant: t.Tenant, Grant: grantOf(t), CreatedAt: stamp(t.CreatedAt), ExpiresAt: stamp(t.ExpiresAt),
		ExpiresSessions: t.ExpiresSessions, MaxReplicas: uint32(t.MaxReplicas), From: t.From(), RevokedAt: stamp(t.RevokedAt),
		Replicas: uint32(replicas),
	}
}

func grantOf(t *store.Token) *hubv1.Grant {
	g := &hubv1.Grant{}
	for _, x := range t.Grants {
		r := &hubv1.PortRange{First: uint32(x.First), Last: uint32(x.Last)}
		switch x.Protocol {
		case store.TCP:
			g.TcpPorts = append(g.TcpPorts, r)
		case store.UDP:
			g.UdpPorts = append(g.UdpPorts, r)
		default:
			g.Hostnames = append(g.Hostnames, x.Pattern)
		}
	}
	return g
}

func credentialOf(t *store.Token) *hubv1.Credential {
	c := &hubv1.Credential{
		TokenId: t.ID, Tenant: t.Tenant, Name: t.Name, Kind: t.Kind, Ed25519Public: t.Ed25519, Mldsa65Public: t.MLDSA65,
		ExpiresAt: stamp(t.ExpiresAt), Revoked: t.RevokedAt != 0, ExpiresSessions: t.ExpiresSessions,
		MaxReplicas: uint32(t.MaxReplicas), From: t.From(), Grant: grantOf(t), Disabled: t.Disabled, MemberOf: t.MemberOf,
	}
	if t.EndsAt != 0 && (t.ExpiresAt == 0 || t.EndsAt < t.ExpiresAt) {
		c.ExpiresAt, c.ExpiresSessions = stamp(t.EndsAt), true
	}
	return c
}

// firstToken is the id of the agent or invite that t is a token of.
func firstToken(t *store.Token) string {
	if t.MemberOf != "" {
		return t.MemberOf
	}
	return t.ID
}

// ownerOf is the same of a credential: what declares, serves and reports is known by it, whichever
// token it came with.
func ownerOf(c *hubv1.Credential) string {
	if c.GetMemberOf() != "" {
		return c.GetMemberOf()
	}
	return c.GetTokenId()
}

func stamp(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(ms))
}
