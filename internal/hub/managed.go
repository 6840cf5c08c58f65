package hub

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// sourceManaged marks tunnels whose truth is in the hub.
const sourceManaged = "managed"

// errDryRun takes back what a dry run wrote.
var errDryRun = errors.New("dry run")

// CreateTunnel makes a managed tunnel that an enrolled agent serves.
func (h *Hub) CreateTunnel(ctx context.Context, r *hubv1.CreateTunnelRequest) (*hubv1.TunnelStatus, error) {
	spec := proto.CloneOf(r.GetTunnel())
	if spec == nil {
		return nil, invalid("tunnel", "", "give kind, label or hostname or port, and origins", "is missing")
	}
	actor := ActorFrom(ctx)
	spec.Id, spec.Tenant, spec.Source, spec.Version, spec.Owner = newTunnelID(), store.DefaultTenant, sourceManaged, 1, actor.UserID
	spec.TokenIds, spec.CreatedAt, spec.OrphanedAt = nil, nil, nil
	m, p := h.parseManaged(spec)
	if p != nil {
		return nil, p
	}
	if err := actor.MayWrite(m.nameField(), spec.GetHostname()); err != nil {
		return nil, err
	}
	err := h.write(ctx, func(tx *store.Tx) error {
		if err := h.place(tx, m, r.GetAgent(), nil); err != nil {
			return err
		}
		row, err := h.managedRow(m)
		if err != nil {
			return err
		}
		row.CreatedAt = tx.Now.UnixMilli()
		if err := tx.AddTunnel(row, m.protocol, m.first, m.last); err != nil {
			return err
		}
		return h.placed(tx, m, r.GetDryRun())
	})
	return h.wrote(ctx, m, err, r.GetDryRun())
}

func newTunnelID() string {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// placed stores what goes with the row of a managed tunnel, which is stored.
func (h *Hub) placed(tx *store.Tx, m *managed, dryRun bool) error {
	if err := tx.SetHTTPPorts(m.tunnel.Id, m.tunnel.HttpPorts); err != nil {
		return err
	}
	if err := tx.UsePolicies(m.tunnel.Id, m.tunnel.GetAccess().GetPolicies()); err != nil {
		return err
	}
	if dryRun {
		return errDryRun
	}
	tx.Changed("tunnel/" + m.tunnel.Id)
	return nil
}

// wrote answers a create or update.
func (h *Hub) wrote(ctx context.Context, m *managed, err error, dryRun bool) (*hubv1.TunnelStatus, error) {
	switch {
	case dryRun && errors.Is(err, errDryRun):
	case store.Duplicate(err):
		// Another hub took the name or port at the same moment.
		field, value := m.field()
		return nil, conflict(m.code(), field, value, "", "", "was taken at the same moment", "try again, or choose another one")
	case err != nil:
		return nil, err
	}
	s, err := h.statuses(ctx, []*hubv1.Tunnel{m.tunnel})
	if err != nil {
		return nil, err
	}
	s[0].Agent = m.agent.Name
	return s[0], nil
}

// managedRow is a managed tunnel as the store keeps it: the password apart, sealed.
func (h *Hub) managedRow(m *managed) (*store.Tunnel, error) {
	t := m.row(store.DefaultTenant, 0)
	t.Agent = m.agent.ID
	spec := m.tunnel
	if pw := spec.GetUpstreamBasicAuth().GetPassword(); pw != "" {
		var err error
		if t.Sealed, err = h.sealer.Seal("tunnel/"+spec.Id, []byte(pw)); err != nil {
			return nil, err
		}
		spec = withoutPassword(spec)
	}
	var err error
	t.Spec, err = proto.Marshal(spec)
	return t, err
}

// withoutPassword is t as anybody may see it.
func withoutPassword(t *hubv1.Tunnel) *hubv1.Tunnel {
	if t.GetUpstreamBasicAuth().GetPassword() == "" {
		return t
	}
	t = proto.CloneOf(t)
	t.UpstreamBasicAuth.Password = ""
	return t
}

// forAgent is t as its agent may see it: what it needs to serve, and nothing else.
func forAgent(t *hubv1.Tunnel) *hubv1.Tunnel {
	if t.GetSource() != sourceManaged {
		return t
	}
	t = proto.CloneOf(t)
	t.UpstreamBasicAuth, t.Owner = nil, ""
	t.Access = &hubv1.Access{Mode: t.GetAccess().GetMode()}
	return t
}

// unseal puts the password back. A tunnel whose secret cannot be read serves nobody: it must not
// reach its origin without.
func (h *Hub) unseal(row *store.Tunnel, t *hubv1.Tunnel) {
	if len(row.Sealed) == 0 || t.GetUpstreamBasicAuth() == nil {
		return
	}
	pw, err := h.sealer.Open("tunnel/"+t.GetId(), row.Sealed)
	if err != nil {
		h.log.Error("a tunnel is switched off: its upstream password cannot be read; set it again, or bring back the secret key that sealed it", "tunnel", t.GetId(), "hostname", t.GetHostname(), "error", err)
		t.Disabled = true
		return
	}
	t.UpstreamBasicAuth.Password = string(pw)
}

// changeable are the fields that an update may name, beside "agent".
var changeable = []string{"label", "hostname", "port", "port_last", "http_ports", "rules", "origins", "access", "carrier_policy", "name",
	"disabled", "response_timeout_seconds", "websocket_off", "upstream_basic_auth", "health_check"}

// UpdateTunnel changes a managed tunnel. What is not named in the mask stays.
func (h *Hub) UpdateTunnel(ctx context.Context, r *hubv1.UpdateTunnelRequest) (*hubv1.TunnelStatus, error) {
	if len(r.GetUpdateMask().GetPaths()) == 0 {
		return nil, invalid("update_mask", "", "name the fields to change: "+strings.Join(changeable, ", ")+" or agent", "names no field")
	}
	for _, p := range r.GetUpdateMask().GetPaths() {
		if p != "agent" && !slices.Contains(changeable, p) {
			return nil, invalid("update_mask", p, "name some of "+strings.Join(changeable, ", ")+" and agent", "is no field that can change")
		}
	}
	return h.changeTunnel(ctx, r.GetLabel(), r.GetVersion(), r.GetDryRun(), func(spec *hubv1.Tunnel) (string, *Problem) {
		merge(spec, r.GetTunnel(), r.GetUpdateMask().GetPaths())
		if slices.Contains(r.GetUpdateMask().GetPaths(), "agent") {
			if r.GetAgent() == "" {
				return "", invalid("agent", "", "name the enrolled agent that serves the tunnel", "is missing")
			}
			return r.GetAgent(), nil
		}
		return "", nil
	})
}

// merge copies the named fields.
func merge(into, from *hubv1.Tunnel, names []string) {
	if from == nil {
		from = &hubv1.Tunnel{}
	}
	if slices.Contains(names, "origins") && !slices.Contains(names, "rules") && proto.Equal(&hubv1.Tunnel{Rules: into.Rules}, &hubv1.Tunnel{Rules: evenRules(len(into.Origins))}) {
		into.Rules = nil // the one rule that was made for the origins is made anew
	}
	src, dst := from.ProtoReflect(), into.ProtoReflect()
	for _, n := range names {
		f := src.Descriptor().Fields().ByName(protoreflect.Name(n))
		if f == nil {
			continue
		}
		if src.Has(f) {
			dst.Set(f, src.Get(f))
		} else {
			dst.Clear(f)
		}
	}
	// The hostname follows the label, and the other way round.
	switch {
	case slices.Contains(names, "hostname"):
		into.Label = ""
	case slices.Contains(names, "label"):
		into.Hostname = ""
	}
	if b, old := from.GetUpstreamBasicAuth(), into.GetUpstreamBasicAuth(); b != nil && old != nil {
		into.UpstreamBasicAuth = proto.CloneOf(b)
	}
}

// changeTunnel changes a managed tunnel by change, which may name another agent.
func (h *Hub) changeTunnel(ctx context.Context, label string, version uint64, dryRun bool, change func(*hubv1.Tunnel) (agent string, p *Problem)) (*hubv1.TunnelStatus, error) {
	found, err := h.findTunnel(label)
	if err != nil {
		return nil, err
	}
	if found.GetSource() != sourceManaged {
		return nil, declaredElsewhere(label)
	}
	actor := ActorFrom(ctx)
	var m *managed
	err = h.write(ctx, func(tx *store.Tx) error {
		row, err := tx.Tunnel(found.GetId())
		if errors.Is(err, store.ErrNotFound) {
			return notFound("tunnel", label, "list them with adit tunnel list")
		}
		if err != nil {
			return err
		}
		old := &hubv1.Tunnel{}
		if err := proto.Unmarshal(row.Spec, old); err != nil {
			return err
		}
		h.unseal(row, old)
		if version != 0 && version != old.GetVersion() {
			return &Problem{Code: reason.VersionConflict, Field: "version", Value: fmt.Sprint(version), Held: fmt.Sprint(old.GetVersion()),
				Text: fmt.Sprintf("the tunnel was changed meanwhile: its version is %d", old.GetVersion()), Remedy: "read it again, and change that"}
		}
		spec := proto.CloneOf(old)
		agent, p := change(spec)
		if p == nil {
			m, p = h.parseManaged(spec)
		}
		if p != nil {
			return p
		}
		for _, t := range []*hubv1.Tunnel{old, m.tunnel} {
			if err := actor.MayWrite(m.nameField(), t.GetHostname()); err != nil {
				return err
			}
		}
		if agent == "" {
			agent = row.Agent
		}
		return h.replaceTunnel(tx, m, agent, old, dryRun)
	})
	if m == nil {
		return nil, err
	}
	return h.wrote(ctx, m, err, dryRun)
}

func declaredElsewhere(label string) *Problem {
	return invalid("label", label, "change it where it is declared: the agent's lists or the cluster's objects", "is a declared tunnel, whose truth is not here")
}

func (h *Hub) replaceTunnel(tx *store.Tx, m *managed, agent string, old *hubv1.Tunnel, dryRun bool) error {
	if err := h.place(tx, m, agent, old); err != nil {
		return err
	}
	if proto.Equal(old, m.tunnel) {
		if dryRun {
			return errDryRun
		}
		return nil
	}
	m.tunnel.Version = old.GetVersion() + 1
	row, err := h.managedRow(m)
	if err != nil {
		return err
	}
	if err := tx.SetManaged(row, m.protocol, m.first, m.last); err != nil {
		return err
	}
	if old.GetHostname() != m.tunnel.GetHostname() {
		if err := h.freed(tx, old, false); err != nil {
			return err
		}
	}
	return h.placed(tx, m, dryRun)
}

// DeleteTunnel deletes a managed tunnel, or a declared one that no live replica declares. Its
// hostname stays with the tenant for 30 days, unless released.
func (h *Hub) DeleteTunnel(ctx context.Context, label string, release bool) error {
	t, err := h.findTunnel(label)
	if err != nil {
		return err
	}
	if err := ActorFrom(ctx).MayWrite("label", t.GetHostname()); err != nil {
		return err
	}
	if t.GetSource() != sourceManaged && t.GetOrphanedAt() == nil {
		return declaredElsewhere(label)
	}
	return h.write(ctx, func(tx *store.Tx) error {
		if err := h.deleteTunnel(tx, t.GetId()); err != nil {
			return err
		}
		if release && t.GetHostname() != "" {
			_, err = tx.Release(t.GetHostname())
		}
		return err
	})
}
