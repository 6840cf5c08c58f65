package hub

import (
	"fmt"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/reason"
)

// agentOf is the credential of the agent that serves a managed tunnel.
func (h *Hub) agentOf(t *hubv1.Tunnel) *hubv1.Credential {
	for _, id := range t.GetTokenIds() {
		if c := h.feed.get("credential/" + id).GetCredential(); c != nil {
			return c
		}
	}
	return nil
}

// describeManaged adds who serves a managed tunnel, and what its owner should know.
func (h *Hub) describeManaged(s *hubv1.TunnelStatus) {
	t := s.GetTunnel()
	if t.GetSource() != sourceManaged {
		return
	}
	s.Agent = h.agentOf(t).GetName()
	s.Warnings = warningsOf(t)
}

func warningsOf(t *hubv1.Tunnel) (out []string) {
	switch {
	case access.Open(t.GetAccess()):
		out = append(out, "anybody who knows the address gets in: the tunnel is public")
	case t.GetKind() != wirev1.Kind_KIND_HTTP && len(t.GetAccess().GetRules()) == 0 && len(t.GetAccess().GetPolicies()) == 0:
		out = append(out, fmt.Sprintf("nobody gets in: the tunnel is protected, and visitors of kind %s cannot sign in; --access public lets everybody in", kindText(t.GetKind())))
	default:
		out = append(out, "nobody gets in yet: this version has no sign-in, so a protected tunnel answers 403")
	}
	for i, o := range t.GetOrigins() {
		if o.GetInsecureSkipVerify() {
			out = append(out, fmt.Sprintf("the certificate of origin %d is not verified", i))
		}
	}
	return out
}

// managedState is why nobody serves a managed tunnel now.
func (h *Hub) managedState(s *hubv1.TunnelStatus) {
	c := h.agentOf(s.GetTunnel())
	name, now := c.GetName(), h.cfg.Now()
	s.State, s.Reason = "offline", string(reason.NoAgent)
	switch {
	case c.GetDisabled():
		s.Reason, s.Detail = string(reason.Disabled), fmt.Sprintf("the agent %q is switched off; adit agents enable switches it on", name)
	case h.presence.replicas(now)[ownerOf(c)] > 0:
		s.State, s.Reason, s.Detail = "pending", string(reason.Pending), fmt.Sprintf("the agent %q runs, but no edge has a session that serves the tunnel yet", name)
	default:
		s.Detail = fmt.Sprintf("the agent %q does not run", name)
	}
}
