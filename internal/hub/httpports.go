package hub

import (
	"slices"
	"strconv"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// maxHTTPPorts caps the clear HTTP ports of one tunnel.
const maxHTTPPorts = 16

// parseHTTPPorts checks the ports where the host is served in clear text, beside TLS.
func (c *claim) parseHTTPPorts(d *hubv1.DeclaredTunnel) *Problem {
	given := d.GetHttpPorts()
	switch n := len(given); {
	case n == 0:
		return nil
	case c.tunnel.Kind != wirev1.Kind_KIND_HTTP:
		return invalid("http_ports", portsText(given), "leave it away, or use kind http", "only http tunnels are served in clear text")
	case n > maxHTTPPorts:
		return invalid("http_ports", strconv.Itoa(n), "give at most "+strconv.Itoa(maxHTTPPorts), "are too many")
	}
	for _, p := range given {
		if p < 1 || p > 65535 {
			return invalid("http_ports", strconv.Itoa(int(p)), "give ports from 1 to 65535", "is no port")
		}
	}
	ps := slices.Clone(given)
	slices.Sort(ps)
	c.tunnel.HttpPorts = slices.Compact(ps)
	return nil
}

func portsText(ps []uint32) string {
	var out []byte
	for i, p := range ps {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = strconv.AppendUint(out, uint64(p), 10)
	}
	return string(out)
}

// parseShared refuses a tcp tunnel on what is a clear HTTP port in the same list, or the other way
// round, whichever comes later.
func (d *declaring) parseShared() {
	type use struct {
		key   string
		clear bool
	}
	first := map[int]use{}
	for i, c := range d.claims {
		if c == nil {
			continue
		}
		var parts []*claim
		if c.protocol == store.TCP {
			parts = append(parts, c)
		}
		for _, p := range c.tunnel.HttpPorts {
			if !d.h.plainHTTP(p) {
				parts = append(parts, c.onHTTPPort(p))
			}
		}
		for _, one := range parts {
			if u, taken := first[one.first]; taken && u.clear != one.clear {
				field, value := one.field()
				d.refuse(i, conflict(reason.PortConflict, field, value, "", "", "is a port of "+u.key+" already", "choose another port"))
				break
			}
			first[one.first] = use{d.verdicts[i].GetKey(), one.clear}
		}
	}
}

// plainHTTP reports whether a port is the plain HTTP listener, which serves all hosts anyhow: 80,
// whatever it is bound to, or the port that it is bound to.
func (h *Hub) plainHTTP(port uint32) bool {
	return h.cfg.HTTPPort != 0 && (port == 80 || port == uint32(h.cfg.HTTPPort))
}

// onHTTPPort is the claim of a tunnel of kind http for one of its clear HTTP ports.
func (c *claim) onHTTPPort(p uint32) *claim {
	return &claim{tunnel: c.tunnel, protocol: store.TCP, first: int(p), last: int(p), clear: true}
}

// claimHTTPPorts checks the clear HTTP ports of c as those of a tcp tunnel are: by grant, and against
// whoever has the port now. Tunnels of other hosts of the same tenant share it.
func (d *declaring) claimHTTPPorts(tx *store.Tx, tok *store.Token, c *claim) error {
	for _, p := range c.tunnel.HttpPorts {
		if d.h.plainHTTP(p) {
			continue
		}
		one := c.onHTTPPort(p)
		if p := d.h.granted(tok, one); p != nil {
			return p
		}
		holders, err := one.holders(tx)
		if err != nil {
			return err
		}
		for _, t := range holders {
			if t.Kind == int32(wirev1.Kind_KIND_HTTP) && t.Tenant == tok.Tenant {
				continue
			}
			if err := d.contest(tx, tok, one, t); err != nil {
				return err
			}
		}
		if err := d.h.reservedFor(tx, tok, one); err != nil {
			return err
		}
	}
	return nil
}
