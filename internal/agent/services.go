package agent

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// service is one declared entry, ready to be served. It does not change.
type service struct {
	declared *hubv1.DeclaredTunnel
	id       string
	origins  []*origin.Spec
	// managed is the tunnel whose truth is in the hub, nil for an entry of the agent's own lists;
	// declared says then what it has in common with those.
	managed *hubv1.Tunnel
	// problem is why it cannot be served; nil for entries of the lists, which are checked at start.
	problem *reason.Error
}

// table is everything the agent serves. It does not change: a new list makes a new table, whose
// unchanged entries are those of the old one.
type table struct {
	services []*service
	byID     map[string]*service
}

func newTable(list config.Services, managed []*hubv1.Tunnel, old *table) (*table, error) {
	t := &table{byID: map[string]*service{}}
	for _, d := range list {
		id := hubv1.DeclaredID(d.GetKind(), d.GetHostname(), d.GetPort(), d.GetPortLast())
		s := &service{declared: d, id: id}
		if old != nil {
			if o := old.byID[id]; o != nil && proto.Equal(o.declared, d) {
				s = o
			} else if o != nil && sameButPlace(o.declared, d) {
				s.origins = o.origins
			}
		}
		if s.origins == nil {
			origins := d.GetOrigins()
			if len(origins) == 0 {
				origins = []*hubv1.Origin{d.GetOrigin()}
			}
			for _, o := range origins {
				spec, err := origin.Parse(o)
				if err != nil {
					return nil, fmt.Errorf("%s (%s): %w", d.GetKey(), d.GetName(), err)
				}
				spec.Declared = true
				s.origins = append(s.origins, spec)
			}
		}
		t.services = append(t.services, s)
		t.byID[id] = s
	}
	for _, m := range managed {
		if t.byID[m.GetId()] != nil {
			continue
		}
		s := managedService(m, old)
		t.services = append(t.services, s)
		t.byID[s.id] = s
	}
	return t, nil
}

// sameButPlace reports whether a and b declare the same at different places of the lists.
func sameButPlace(a, b *hubv1.DeclaredTunnel) bool {
	a = proto.Clone(a).(*hubv1.DeclaredTunnel)
	a.Key = b.GetKey()
	return proto.Equal(a, b)
}

// equal reports whether both declare the same.
func (t *table) equal(o *table) bool {
	if o == nil || len(t.services) != len(o.services) {
		return false
	}
	for i, s := range t.services {
		if s != o.services[i] {
			return false
		}
	}
	return true
}

func (t *table) declared() []*hubv1.DeclaredTunnel {
	out := make([]*hubv1.DeclaredTunnel, 0, len(t.services))
	for _, s := range t.services {
		if s.managed == nil {
			out = append(out, s.declared)
		}
	}
	return out
}

// find checks a header against what is served: no edge gets an origin that was not declared for
// the tunnel it names.
func (t *table) find(h *wirev1.StreamHeader) (*service, *origin.Spec, *reason.Error) {
	s := t.byID[h.GetTunnelId()]
	switch {
	case s == nil:
		return nil, nil, reason.New(reason.NoAgent, reason.HopAgent, "this agent does not serve tunnel %s (any more)", h.GetTunnelId()).Safe()
	case s.declared.GetKind() != h.GetKind():
		return nil, nil, reason.New(reason.NoAgent, reason.HopAgent, "this agent serves %s as %s, not as %s", s.declared.GetName(), kindName(s.declared.GetKind()), kindName(h.GetKind())).Safe()
	case int(h.GetOrigin()) >= len(s.origins):
		return nil, nil, reason.New(reason.OriginUnresolved, reason.HopAgent, "%s has no origin number %d", s.declared.GetName(), h.GetOrigin()).Safe()
	case s.origins[h.GetOrigin()] == nil:
		return s, nil, s.problem
	}
	return s, s.origins[h.GetOrigin()], nil
}

func (s *service) idle() time.Duration {
	if d := s.declared.GetOrigin().GetIdleTimeoutSeconds(); d > 0 {
		return time.Duration(d) * time.Second
	}
	return 120 * time.Second
}

func accessName(d *hubv1.DeclaredTunnel) string {
	if d.GetAccess() == hubv1.Access_MODE_PUBLIC {
		return "public"
	}
	return "protected"
}

func kindName(k wirev1.Kind) string {
	switch k {
	case wirev1.Kind_KIND_HTTP:
		return "http"
	case wirev1.Kind_KIND_TLS:
		return "tls"
	case wirev1.Kind_KIND_TCP:
		return "tcp"
	case wirev1.Kind_KIND_UDP:
		return "udp"
	}
	return "unknown"
}
