package hublink

import (
	"net"
	"net/netip"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
)

// roleKinds are the token kinds with which each role may open a connection.
var roleKinds = map[wirev1.Role][]string{
	wirev1.Role_ROLE_AGENT:    {string(identity.KindInvite), string(identity.KindAgent)},
	wirev1.Role_ROLE_EDGE:     {string(identity.KindEdge)},
	wirev1.Role_ROLE_OPERATOR: {string(identity.KindKey)},
}

func wrongKindRemedy(r wirev1.Role) string {
	switch r {
	case wirev1.Role_ROLE_AGENT:
		return "an agent needs an adit_invite_ or adit_agent_ token"
	case wirev1.Role_ROLE_EDGE:
		return "an edge needs an adit_edge_ token (adit edge invite)"
	case wirev1.Role_ROLE_OPERATOR:
		return "the operator needs an adit_key_ token"
	default:
		return "the role is not known to this hub"
	}
}

// From reports whether the credential may be used from remote.
func From(cred *hubv1.Credential, remote net.Addr) bool {
	if len(cred.GetFrom()) == 0 {
		return true
	}
	ap, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return false
	}
	a := ap.Addr().Unmap().WithZone("")
	for _, f := range cred.GetFrom() {
		if p, err := netip.ParsePrefix(f); err == nil && p.Contains(a) {
			return true
		}
	}
	return false
}
