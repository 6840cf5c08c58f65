package hub

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// place checks what a managed tunnel claims against what others have, and gives it its agent. old
// is the tunnel before, nil for a new one.
func (h *Hub) place(tx *store.Tx, m *managed, agent string, old *hubv1.Tunnel) error {
	if err := h.placeAgent(tx, m, agent); err != nil {
		return err
	}
	if err := h.placePolicies(tx, m); err != nil {
		return err
	}
	var err error
	if m.protocol == "" {
		err = h.placeName(tx, m, old)
	} else {
		err = h.placePort(tx, m, old)
	}
	if err != nil {
		return err
	}
	return h.placeHTTPPorts(tx, m, old)
}

func (h *Hub) placeAgent(tx *store.Tx, m *managed, agent string) error {
	if agent == "" {
		return invalid("agent", "", "name the enrolled agent that serves the tunnel; make one with adit agents create", "is missing")
	}
	tok, err := tx.TokenNamed(string(identity.KindAgent), agent)
	if errors.Is(err, store.ErrNotFound) || err == nil && tok.RevokedAt != 0 {
		return &Problem{Code: reason.NotFound, Field: "agent", Value: agent, Text: "there is no such enrolled agent", Remedy: "list them with adit agents list, or make one with adit agents create"}
	}
	if err != nil {
		return err
	}
	m.agent, m.tunnel.TokenIds = tok, []string{tok.ID}
	return nil
}

func (h *Hub) placePolicies(tx *store.Tx, m *managed) error {
	for i, name := range m.tunnel.GetAccess().GetPolicies() {
		_, err := tx.Policy(name)
		if errors.Is(err, store.ErrNotFound) {
			return &Problem{Code: reason.NotFound, Field: fmt.Sprintf("access.policies[%d]", i), Value: name, Text: "there is no such policy", Remedy: "list them with adit policy list, or make it with adit policy set"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Hub) placeName(tx *store.Tx, m *managed, old *hubv1.Tunnel) error {
	field, value := m.field()
	if what := h.reserved(m.pattern); what != "" {
		return conflict(reason.NameConflict, field, value, "", "", "is "+what, "choose another name")
	}
	t, err := tx.TunnelByHost(m.tunnel.Hostname)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return err
	case t.ID != old.GetId():
		return h.heldBy(tx, m.claim, field, value, t)
	}
	if old.GetHostname() == m.tunnel.Hostname {
		return nil
	}
	err = h.freeName(tx, field, store.DefaultTenant, m.pattern)
	var p *Problem
	if errors.As(err, &p) {
		p.Value, p.Remedy = value, fmt.Sprintf("choose another name, or have an agent of tenant %q declare it", p.Holder)
	}
	return err
}

// heldBy says who has what the claim c wants.
func (h *Hub) heldBy(tx *store.Tx, c *claim, field, value string, t *store.Tunnel) error {
	if t.Tenant != store.DefaultTenant {
		return conflict(c.code(), field, value, t.Tenant, t.ID, fmt.Sprintf("belongs to tenant %q", t.Tenant), "choose another one, or use an invite of that tenant")
	}
	spec := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, spec); err != nil {
		return err
	}
	who := fmt.Sprintf("the declared tunnel %q", name(spec))
	if t.Source == sourceManaged {
		agent, err := tx.Token(t.Agent)
		if err != nil {
			return err
		}
		who = fmt.Sprintf("the managed tunnel %q of the agent %q", name(spec), agent.Name)
	}
	return conflict(c.code(), field, value, t.Tenant, t.ID, "belongs to "+who, "change or delete that tunnel, or choose another one")
}

// name is what people call a tunnel.
func name(t *hubv1.Tunnel) string {
	switch {
	case t.GetName() != "":
		return t.GetName()
	case t.GetHostname() != "":
		return t.GetHostname()
	}
	return protocolOf(t.GetKind()) + ":" + ports(int(t.GetPort()), int(t.GetPortLast()))
}

func (h *Hub) placePort(tx *store.Tx, m *managed, old *hubv1.Tunnel) error {
	t := m.tunnel
	if m.anyPort {
		// A change that names no port keeps the one there is.
		p := int(old.GetPort())
		if p == 0 {
			var err error
			if p, err = h.anyPort(tx, m.protocol); err != nil {
				return err
			}
		}
		m.first, m.last, t.Port = p, p, uint32(p)
	}
	if t.Name == "" {
		t.Name = fmt.Sprintf("%s-%d", m.protocol, t.Port)
	}
	if t.Port == old.GetPort() && t.PortLast == old.GetPortLast() {
		return nil
	}
	if p := h.grantable("port", m.protocol, &hubv1.PortRange{First: t.Port, Last: t.PortLast}); p != nil {
		return p
	}
	return h.freeFor(tx, m.claim, "port", old.GetId())
}

// freeFor checks that nobody else has, was granted or reserved the ports of c; the tenant's own
// reservations are there to be used.
func (h *Hub) freeFor(tx *store.Tx, c *claim, field, self string) error {
	holders, err := c.holders(tx)
	if err != nil {
		return err
	}
	for _, t := range holders {
		shared := c.clear && t.Kind == int32(wirev1.Kind_KIND_HTTP) && t.Tenant == store.DefaultTenant
		if t.ID != self && !shared {
			return h.heldBy(tx, c, field, ports(c.first, c.last), t)
		}
	}
	err = h.freePorts(tx, field, store.DefaultTenant, c.protocol, c.first, c.last)
	var p *Problem
	if errors.As(err, &p) {
		p.Remedy = fmt.Sprintf("choose another port, or have an agent of tenant %q declare it", p.Holder)
	}
	return err
}

func (h *Hub) placeHTTPPorts(tx *store.Tx, m *managed, old *hubv1.Tunnel) error {
	for i, p := range m.tunnel.HttpPorts {
		if h.plainHTTP(p) {
			continue
		}
		field := fmt.Sprintf("http_ports[%d]", i)
		if p := h.grantable(field, store.TCP, &hubv1.PortRange{First: p}); p != nil {
			return p
		}
		if err := h.freeFor(tx, m.onHTTPPort(p), field, old.GetId()); err != nil {
			return err
		}
	}
	return nil
}

// freed notes that the address of a tunnel is free now: its hostname stays with the tenant for a
// while, and whoever was refused because of it may try again.
func (h *Hub) freed(tx *store.Tx, t *hubv1.Tunnel, release bool) error {
	if t.GetHostname() != "" && !release {
		if err := tx.Hold(store.Held{Name: t.GetHostname(), Tenant: t.GetTenant(), Until: tx.Now.Add(holdNames).UnixMilli()}); err != nil {
			return err
		}
	}
	return h.askAgainFor(tx, t)
}

// overlapsTunnel checks that no tunnel of another tenant has a name that overlaps with p.
func (h *Hub) overlapsTunnel(tx *store.Tx, field, tenant string, p hostname.Pattern) error {
	others, err := tx.HostnamesOfOthers(tenant)
	if err != nil {
		return err
	}
	for _, t := range others {
		if q, err := hostname.Parse(t.Hostname.String); err == nil && q.Overlaps(p) {
			return conflict(reason.NameConflict, field, p.String(), t.Tenant, t.ID,
				fmt.Sprintf("overlaps with the tunnel %s of tenant %q", t.Hostname.String, t.Tenant), "delete that tunnel, or choose another name")
		}
	}
	return nil
}
