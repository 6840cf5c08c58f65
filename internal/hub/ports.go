package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// ListPorts returns one page of reservations, grants and tunnels, by protocol and port.
func (h *Hub) ListPorts(ctx context.Context, size uint32, page string) ([]*hubv1.Port, string, error) {
	var out []*hubv1.Port
	err := h.store.Read(ctx, func(tx *store.Tx) error {
		rs, err := tx.Reservations("", 0, 0)
		if err != nil {
			return err
		}
		for _, r := range rs {
			out = append(out, portOf(r))
		}
		toks, err := tx.LiveTokensOf(agentKinds, "", "", 0)
		if err != nil {
			return err
		}
		for _, t := range toks {
			for _, g := range t.Grants {
				if t.RevokedAt == 0 && g.Protocol != store.Host {
					out = append(out, &hubv1.Port{Kind: kindOf(g.Protocol), First: uint32(g.First), Last: uint32(g.Last), Tenant: t.Tenant, Source: "grant"})
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	for _, t := range h.feed.tunnels() {
		for _, p := range t.GetHttpPorts() {
			out = append(out, &hubv1.Port{Kind: t.GetKind(), First: p, Last: p, Tenant: t.GetTenant(), Source: "tunnel", TunnelId: t.GetId()})
		}
		if t.GetPort() == 0 {
			continue
		}
		p := &hubv1.Port{Kind: t.GetKind(), First: t.GetPort(), Last: max(t.GetPort(), t.GetPortLast()), Tenant: t.GetTenant(), Source: "tunnel", TunnelId: t.GetId()}
		if problem := h.presence.portProblem(t.GetId(), h.cfg.Now()); problem != nil {
			p.Problem = problem.String()
		}
		out = append(out, p)
	}
	key := func(p *hubv1.Port) string {
		return fmt.Sprintf("%d:%05d:%05d:%s:%s:%s", p.GetKind(), p.GetFirst(), p.GetLast(), p.GetSource(), p.GetTenant(), p.GetTunnelId())
	}
	sort.Slice(out, func(i, j int) bool { return key(out[i]) < key(out[j]) })
	return cut(out, key, size, page)
}

func portOf(r store.Reservation) *hubv1.Port {
	return &hubv1.Port{Kind: kindOf(r.Protocol), First: uint32(r.First), Last: uint32(r.Last), Tenant: r.Tenant, Source: "reservation"}
}

// ReservePort keeps a port, or a range, for a tenant; port 0 takes any free one.
func (h *Hub) ReservePort(ctx context.Context, r *hubv1.ReservePortRequest) (*hubv1.Port, error) {
	protocol := protocolOf(r.GetKind())
	if protocol == store.Host {
		return nil, invalid("kind", r.GetKind().String(), "use tcp or udp", "has no ports")
	}
	tenant := r.GetTenant()
	if tenant == "" {
		tenant = store.DefaultTenant
	}
	first, last := int(r.GetPort()), int(max(r.GetPort(), r.GetLast()))
	if first != 0 {
		if p := h.grantable("port", protocol, &hubv1.PortRange{First: r.GetPort(), Last: r.GetLast()}); p != nil {
			return nil, p
		}
	} else if r.GetLast() != 0 {
		return nil, invalid("last", fmt.Sprint(r.GetLast()), "give port too", "is the end of a range without a start")
	}
	res := store.Reservation{Protocol: protocol, First: first, Last: last, Tenant: tenant}
	err := h.write(ctx, func(tx *store.Tx) error {
		ok, err := tx.TenantExists(tenant)
		if err != nil {
			return err
		}
		if !ok {
			return &Problem{Code: reason.NotFound, Field: "tenant", Value: tenant, Text: "there is no such tenant", Remedy: "give the tenant of an invite, or none for " + store.DefaultTenant}
		}
		if first == 0 {
			if res.First, err = h.anyPort(tx, protocol); err != nil {
				return err
			}
			res.Last = res.First
		} else if err := h.reservable(tx, &res); err != nil {
			return err
		}
		res.CreatedAt = tx.Now.UnixMilli()
		return tx.AddReservation(&res)
	})
	if err != nil {
		return nil, err
	}
	return portOf(res), nil
}

func (h *Hub) reservable(tx *store.Tx, res *store.Reservation) error {
	rs, err := tx.Reservations(res.Protocol, res.First, res.Last)
	if err != nil {
		return err
	}
	for _, r := range rs {
		return conflict(reason.PortConflict, "port", ports(res.First, res.Last), r.Tenant, ports(r.First, r.Last),
			fmt.Sprintf("overlaps with %s %s, which is reserved for tenant %q", r.Protocol, ports(r.First, r.Last), r.Tenant), "release that one first, or choose another port")
	}
	return h.freePorts(tx, "port", res.Tenant, res.Protocol, res.First, res.Last)
}

// anyPort finds a port that nobody was granted, has reserved or uses.
func (h *Hub) anyPort(tx *store.Tx, protocol string) (int, error) {
	ranges, flag := h.cfg.TCPPorts, "--tcp-ports"
	if protocol == store.UDP {
		ranges, flag = h.cfg.UDPPorts, "--udp-ports"
	}
	total := 0
	for _, r := range ranges {
		total += int(max(r.GetFirst(), r.GetLast())) - int(r.GetFirst()) + 1
	}
	if total > 0 {
		// From a random place on: numbers in a row would tell who came before.
		start := rand.IntN(total)
		for i := range total {
			p := nth(ranges, (start+i)%total)
			if _, own := h.ownPort(protocol, p, p); own || p < 1024 {
				continue
			}
			err := h.reservable(tx, &store.Reservation{Protocol: protocol, First: p, Last: p})
			var taken *Problem
			if !errors.As(err, &taken) {
				return p, err
			}
		}
	}
	return 0, &Problem{Code: reason.PortConflict, Field: "port", Value: "0", Text: "no " + protocol + " port is free", Remedy: "release one, or start the server with a wider " + flag}
}

func nth(ranges []*hubv1.PortRange, n int) int {
	for _, r := range ranges {
		size := int(max(r.GetFirst(), r.GetLast())) - int(r.GetFirst()) + 1
		if n < size {
			return int(r.GetFirst()) + n
		}
		n -= size
	}
	return 0
}

// ReleasePort ends the reservation that starts at, or holds, a port.
func (h *Hub) ReleasePort(ctx context.Context, kind wirev1.Kind, port uint32) error {
	protocol := protocolOf(kind)
	if protocol == store.Host {
		return invalid("kind", kind.String(), "use tcp or udp", "has no ports")
	}
	return h.write(ctx, func(tx *store.Tx) error {
		rs, err := tx.Reservations(protocol, int(port), int(port))
		if err != nil {
			return err
		}
		if len(rs) == 0 {
			return notFoundIn("port", "reservation of "+protocol+" port", fmt.Sprint(port), "list them with adit port list; ports of grants are freed by adit invite revoke")
		}
		return tx.DeleteReservation(protocol, rs[0].First)
	})
}
