package hub

import (
	"fmt"
	"net"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// maxRange caps the ports of one udp tunnel: each is a row and a socket.
const maxRange = 16384

func protocolOf(k wirev1.Kind) string {
	switch k {
	case wirev1.Kind_KIND_TCP:
		return store.TCP
	case wirev1.Kind_KIND_UDP:
		return store.UDP
	default:
		return store.Host
	}
}

func kindOf(protocol string) wirev1.Kind {
	switch protocol {
	case store.TCP:
		return wirev1.Kind_KIND_TCP
	case store.UDP:
		return wirev1.Kind_KIND_UDP
	default:
		return wirev1.Kind_KIND_UNSPECIFIED
	}
}

func ports(first, last int) string {
	if last <= first {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// reserved tells what of the server's own a pattern is, or lies below; "" if nothing. A wildcard
// above an own name is fine: edges look at their own names first.
func (h *Hub) reserved(p hostname.Pattern) string {
	switch {
	case p.Name == h.cfg.HubHost && p.Depth == hostname.Exact:
		return "the hub's own name"
	case p.Name == h.cfg.HubHost || hostname.Below(p.Name, h.cfg.HubHost):
		return "below the hub's own name"
	case p.Name == h.cfg.Domain && p.Depth == hostname.Exact:
		return "the base domain itself"
	}
	if p.Depth != hostname.Exact {
		return ""
	}
	for _, e := range h.feed.edges() {
		for _, a := range e.GetAddress().GetAddresses() {
			if n := addressName(a); n != "" && n == p.Name {
				return "the advertised name of edge " + e.GetAddress().GetId()
			}
		}
	}
	return ""
}

// addressName is the normalized host name in host:port, "" for an IP address.
func addressName(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	n, err := hostname.Normalize(host)
	if err != nil {
		return ""
	}
	return n
}

// ownPort tells whether the server itself listens on a port of first to last.
func (h *Hub) ownPort(protocol string, first, last int) (int, bool) {
	for _, o := range h.cfg.OwnPorts {
		if protocolOf(o.Kind) == protocol && first <= int(o.Port) && int(o.Port) <= last {
			return int(o.Port), true
		}
	}
	return 0, false
}

// grantable checks one range of ports of an invite or reservation.
func (h *Hub) grantable(field, protocol string, r *hubv1.PortRange) *Problem {
	first, last := int(r.GetFirst()), int(r.GetLast())
	if last == 0 {
		last = first
	}
	value := ports(first, last)
	if first < 1 || last > 65535 || last < first {
		return invalid(field, value, "give a port from 1 to 65535, or a range FIRST-LAST", "is no port or range of ports")
	}
	if p, ok := h.ownPort(protocol, first, last); ok {
		remedy := "choose another port"
		if first != last {
			remedy = fmt.Sprintf("leave %d out: give %s", p, around(first, last, p))
		}
		return invalid(field, value, remedy, "the server itself listens on %s port %d", protocol, p)
	}
	allowed, flag := h.cfg.TCPPorts, "--tcp-ports"
	if protocol == store.UDP {
		allowed, flag = h.cfg.UDPPorts, "--udp-ports"
	}
	if !covered(allowed, first, last) {
		return invalid(field, value, fmt.Sprintf("choose a port within %s, or start the server with other %s", rangesText(allowed), flag), "the server grants %s ports %s only", protocol, rangesText(allowed))
	}
	if first < 1024 && last != first {
		return invalid(field, value, "name each port below 1024 by itself", "ports below 1024 are granted one by one only")
	}
	return nil
}

func around(first, last, p int) string {
	var parts []string
	if first < p {
		parts = append(parts, ports(first, p-1))
	}
	if p < last {
		parts = append(parts, ports(p+1, last))
	}
	return strings.Join(parts, " and ")
}

func covered(ranges []*hubv1.PortRange, first, last int) bool {
	for p := first; p <= last; {
		next := p
		for _, r := range ranges {
			hi := max(int(r.GetLast()), int(r.GetFirst()))
			if int(r.GetFirst()) <= p && p <= hi {
				next = max(next, hi+1)
			}
		}
		if next == p {
			return false
		}
		p = next
	}
	return true
}

func rangesText(rs []*hubv1.PortRange) string {
	if len(rs) == 0 {
		return "none"
	}
	var s []string
	for _, r := range rs {
		s = append(s, ports(int(r.GetFirst()), int(r.GetLast())))
	}
	return strings.Join(s, ", ")
}

func conflict(code reason.Code, field, value, holder, held, text, remedy string) *Problem {
	return &Problem{Code: code, Field: field, Value: value, Holder: holder, Held: held, Text: text, Remedy: remedy}
}

// freeName checks that no other tenant has, or still holds, a name that overlaps with p.
func (h *Hub) freeName(tx *store.Tx, field, tenant string, p hostname.Pattern) error {
	grants, err := tx.GrantsOfOthers(tenant, store.Host, 0, 0)
	if err != nil {
		return err
	}
	var taken []store.Grant
	for _, g := range grants {
		if q, err := hostname.Parse(g.Pattern); err == nil && q.Overlaps(p) {
			taken = append(taken, g)
		}
	}
	if len(taken) > 0 {
		return nameTaken(field, p, taken)
	}
	held, err := tx.HeldByOthers(tenant)
	if err != nil {
		return err
	}
	for _, g := range held {
		if q, err := hostname.Parse(g.Name); err == nil && q.Overlaps(p) {
			return conflict(reason.NameConflict, field, p.String(), g.Tenant, g.Name,
				fmt.Sprintf("overlaps with %s, which stays with tenant %q for 30 days after its tunnel was deleted", g.Name, g.Tenant),
				fmt.Sprintf("use --tenant %s, or choose another name", g.Tenant))
		}
	}
	return h.overlapsTunnel(tx, field, tenant, p)
}

// nameTaken names who holds what overlaps with p.
func nameTaken(field string, p hostname.Pattern, taken []store.Grant) *Problem {
	const most = 5
	var parts []string
	for _, g := range taken[:min(len(taken), most)] {
		parts = append(parts, fmt.Sprintf("%s, which tenant %q holds", g.Pattern, g.Tenant))
	}
	text := "overlaps with " + strings.Join(parts, ", and with ")
	if n := len(taken) - most; n > 0 {
		text += fmt.Sprintf(", and with %d more", n)
	}
	remedy := "revoke the invites that grant them, or choose another name"
	if len(taken) == 1 {
		remedy = fmt.Sprintf("use --tenant %s to share it, revoke the invite that grants it, or choose another name", taken[0].Tenant)
	}
	return conflict(reason.NameConflict, field, p.String(), taken[0].Tenant, taken[0].Pattern, text, remedy)
}

// freePorts checks that no other tenant was granted, has reserved or uses a port of the range.
func (h *Hub) freePorts(tx *store.Tx, field, tenant, protocol string, first, last int) error {
	taken := func(holder, held, how string) error {
		return conflict(reason.PortConflict, field, ports(first, last), holder, held,
			fmt.Sprintf("overlaps with %s %s, which %s tenant %q", protocol, held, how, holder),
			fmt.Sprintf("use --tenant %s to share it, or choose another port", holder))
	}
	grants, err := tx.GrantsOfOthers(tenant, protocol, first, last)
	if err != nil {
		return err
	}
	for _, g := range grants {
		return taken(g.Tenant, ports(g.First, g.Last), "is granted to")
	}
	rs, err := tx.Reservations(protocol, first, last)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Tenant != tenant {
			return taken(r.Tenant, ports(r.First, r.Last), "is reserved for")
		}
	}
	tunnels, err := tx.TunnelsOnPorts(protocol, first, last)
	if err != nil {
		return err
	}
	for _, t := range tunnels {
		if t.Tenant != tenant {
			return taken(t.Tenant, "tunnel "+t.ID, "belongs to")
		}
	}
	return nil
}
