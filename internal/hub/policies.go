package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// GetAccess returns the access of a tunnel, with the sentence that says who gets in.
func (h *Hub) GetAccess(ctx context.Context, label string) (*hubv1.GetAccessResponse, error) {
	t, err := h.findTunnel(label)
	if err != nil {
		return nil, err
	}
	s, err := h.summary(ctx, t)
	return &hubv1.GetAccessResponse{Access: t.GetAccess(), Version: t.GetVersion(), Summary: s}, err
}

// summary says who gets into t.
func (h *Hub) summary(ctx context.Context, t *hubv1.Tunnel) (string, error) {
	policies := map[string]*hubv1.Access{}
	if len(t.GetAccess().GetPolicies()) > 0 {
		err := h.store.Read(ctx, func(tx *store.Tx) error {
			for _, n := range t.GetAccess().GetPolicies() {
				p, err := tx.Policy(n)
				if errors.Is(err, store.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				a := &hubv1.Access{}
				if err := proto.Unmarshal(p.Spec, a); err != nil {
					return err
				}
				policies[n] = a
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return access.Summary(t.GetKind(), t.GetAccess(), policies), nil
}

// SetAccess replaces the access of a managed tunnel.
func (h *Hub) SetAccess(ctx context.Context, r *hubv1.SetAccessRequest) (*hubv1.SetAccessResponse, error) {
	return h.changeAccess(ctx, r.GetLabel(), r.GetVersion(), func(*hubv1.Access) (*hubv1.Access, *Problem) {
		if r.GetAccess() == nil {
			return nil, invalid("access", "", "give mode, rules or policies", "is missing")
		}
		return proto.CloneOf(r.GetAccess()), nil
	})
}

// AddAccessRule adds a rule. A public tunnel becomes a protected one: from now on something is
// demanded.
func (h *Hub) AddAccessRule(ctx context.Context, r *hubv1.AddAccessRuleRequest) (*hubv1.SetAccessResponse, error) {
	return h.changeAccess(ctx, r.GetLabel(), 0, func(a *hubv1.Access) (*hubv1.Access, *Problem) {
		if r.GetRule() == nil {
			return nil, invalid("rule", "", "give email, domain, group, from or public", "is missing")
		}
		if access.Open(a) {
			a.Mode = hubv1.Access_MODE_PROTECTED
		}
		a.Rules = append(a.Rules, proto.CloneOf(r.GetRule()))
		return a, nil
	})
}

// RemoveAccessRule removes a rule by its id. Without a rule left the tunnel stays protected.
func (h *Hub) RemoveAccessRule(ctx context.Context, label, id string) (*hubv1.SetAccessResponse, error) {
	return h.changeAccess(ctx, label, 0, func(a *hubv1.Access) (*hubv1.Access, *Problem) {
		n := len(a.Rules)
		a.Rules = slices.DeleteFunc(a.Rules, func(r *hubv1.AccessRule) bool { return r.GetId() == id })
		if len(a.Rules) == n {
			return nil, &Problem{Code: reason.NotFound, Field: "rule_id", Value: id, Text: "there is no such rule", Remedy: "adit access list shows the ids"}
		}
		return a, nil
	})
}

func (h *Hub) changeAccess(ctx context.Context, label string, version uint64, change func(*hubv1.Access) (*hubv1.Access, *Problem)) (*hubv1.SetAccessResponse, error) {
	s, err := h.changeTunnel(ctx, label, version, false, func(t *hubv1.Tunnel) (string, *Problem) {
		a, p := change(t.GetAccess())
		if p == nil {
			t.Access = a
		}
		return "", p
	})
	if err != nil {
		return nil, err
	}
	t := s.GetTunnel()
	text, err := h.summary(ctx, t)
	return &hubv1.SetAccessResponse{Access: t.GetAccess(), Version: t.GetVersion(), Summary: text, Warnings: warningsOf(t)}, err
}

// ListPolicies returns one page of policies by name.
func (h *Hub) ListPolicies(ctx context.Context, size uint32, page string) ([]*hubv1.Policy, string, error) {
	at, n, err := pageOf(size, page, 1)
	if err != nil {
		return nil, "", err
	}
	var rows []*store.Policy
	var uses []store.PolicyUse
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if rows, err = tx.Policies(at[0], n+1); err != nil {
			return err
		}
		uses, err = tx.PolicyUses("")
		return err
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > n {
		rows = rows[:n]
		next = pageToken(rows[n-1].Name)
	}
	out := make([]*hubv1.Policy, len(rows))
	for i, r := range rows {
		if out[i], err = h.policy(r, uses); err != nil {
			return nil, "", err
		}
	}
	return out, next, nil
}

// policy is a stored policy with what uses it.
func (h *Hub) policy(r *store.Policy, uses []store.PolicyUse) (*hubv1.Policy, error) {
	p := &hubv1.Policy{Name: r.Name, Access: &hubv1.Access{}, Version: uint64(r.Version), UpdatedAt: stamp(r.UpdatedAt)}
	if err := proto.Unmarshal(r.Spec, p.Access); err != nil {
		return nil, fmt.Errorf("policy %s: %w", r.Name, err)
	}
	for _, u := range uses {
		if u.Policy == r.Name {
			p.UsedBy = append(p.UsedBy, name(h.feed.get("tunnel/"+u.TunnelID).GetTunnel()))
		}
	}
	slices.Sort(p.UsedBy)
	p.Summary = access.Summary(wirev1.Kind_KIND_UNSPECIFIED, p.Access, nil)
	return p, nil
}

func noPolicy(name string) *Problem {
	return notFound("policy", name, "list them with adit policy list")
}

// GetPolicy returns a policy by name.
func (h *Hub) GetPolicy(ctx context.Context, name string) (*hubv1.Policy, error) {
	var row *store.Policy
	var uses []store.PolicyUse
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if row, err = tx.Policy(name); err != nil {
			return err
		}
		uses, err = tx.PolicyUses(name)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, noPolicy(name)
	}
	if err != nil {
		return nil, err
	}
	return h.policy(row, uses)
}

// SetPolicy makes or replaces a policy. With a version it replaces that one only.
func (h *Hub) SetPolicy(ctx context.Context, p *hubv1.Policy) (*hubv1.Policy, error) {
	// Tunnels of any name may use it.
	if err := ActorFrom(ctx).MayWrite("name", ""); err != nil {
		return nil, err
	}
	if f := access.CheckName("policy.name", p.GetName()); f != nil {
		return nil, ofFault(f)
	}
	if p.GetAccess().GetMode() == hubv1.Access_MODE_PUBLIC {
		return nil, invalid("policy.access.mode", "public", "use protected with a rule that says public", "a policy demands something")
	}
	if len(p.GetAccess().GetPolicies()) > 0 {
		return nil, invalid("policy.access.policies", p.GetAccess().GetPolicies()[0], "leave them away: a tunnel may name several policies", "a policy names no policies")
	}
	a, f := access.Canonical(wirev1.Kind_KIND_UNSPECIFIED, p.GetAccess())
	if f != nil {
		f.Field = "policy." + f.Field
		return nil, ofFault(f)
	}
	if len(a.GetRules()) == 0 {
		return nil, invalid("policy.access.rules", "", "give at least one rule", "the policy says nothing")
	}
	raw, err := proto.Marshal(a)
	if err != nil {
		return nil, err
	}
	err = h.write(ctx, func(tx *store.Tx) error {
		old, err := tx.Policy(p.GetName())
		if errors.Is(err, store.ErrNotFound) {
			old, err = &store.Policy{}, nil
		}
		if err != nil {
			return err
		}
		if v := p.GetVersion(); v != 0 && v != uint64(old.Version) {
			return &Problem{Code: reason.VersionConflict, Field: "policy.version", Value: fmt.Sprint(v), Held: fmt.Sprint(old.Version),
				Text: fmt.Sprintf("the policy was changed meanwhile: its version is %d", old.Version), Remedy: "read it again, and change that"}
		}
		return tx.SetPolicy(&store.Policy{Name: p.GetName(), Spec: raw, Version: old.Version + 1, UpdatedAt: tx.Now.UnixMilli()})
	})
	if err != nil {
		return nil, err
	}
	return h.GetPolicy(ctx, p.GetName())
}

// DeletePolicy removes a policy that no tunnel uses.
func (h *Hub) DeletePolicy(ctx context.Context, policy string) error {
	// Tunnels of any name may use it.
	if err := ActorFrom(ctx).MayWrite("name", ""); err != nil {
		return err
	}
	return h.write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Policy(policy); errors.Is(err, store.ErrNotFound) {
			return noPolicy(policy)
		} else if err != nil {
			return err
		}
		uses, err := tx.PolicyUses(policy)
		if err != nil {
			return err
		}
		if len(uses) > 0 {
			t, err := tx.Tunnel(uses[0].TunnelID)
			if err != nil {
				return err
			}
			return &Problem{Code: reason.InUse, Field: "name", Value: policy, Held: t.ID, Text: fmt.Sprintf("is used by %d tunnels, %s among them", len(uses), t.Name),
				Remedy: "take it from those tunnels first: adit access replace"}
		}
		return tx.DeletePolicy(policy)
	})
}
