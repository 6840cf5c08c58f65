package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// deleteTunnel removes a tunnel; its hostname stays with the tenant for a while. What replicas
// declared for it no longer holds anything up.
func (h *Hub) deleteTunnel(tx *store.Tx, id string) error {
	t, err := tx.Tunnel(id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	spec := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, spec); err != nil {
		return err
	}
	if err := h.freed(tx, spec, false); err != nil {
		return err
	}
	if err := tx.ReleaseDeclarations(id); err != nil {
		return err
	}
	tx.Gone("tunnel/" + id)
	return tx.DeleteTunnel(id)
}

// dropDeclarer takes a replica from a tunnel that others still declare; its token may no longer
// serve it unless another replica of the token declares it.
func (h *Hub) dropDeclarer(tx *store.Tx, id string, k replicaKey) error {
	decls, err := tx.Declarations(id)
	if err != nil {
		return err
	}
	for _, d := range decls {
		if d.TokenID == k.token && d.ReplicaID != k.replica {
			return nil
		}
	}
	return h.dropServer(tx, id, k.token)
}

// dropServer removes a token from those that may serve a tunnel.
func (h *Hub) dropServer(tx *store.Tx, id, token string) error {
	t, err := tx.Tunnel(id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	spec := &hubv1.Tunnel{}
	if err := proto.Unmarshal(t.Spec, spec); err != nil {
		return err
	}
	n := len(spec.TokenIds)
	if spec.TokenIds = slices.DeleteFunc(spec.TokenIds, func(s string) bool { return s == token }); len(spec.TokenIds) == n {
		return nil
	}
	if t.Spec, err = proto.Marshal(spec); err != nil {
		return err
	}
	tx.Changed("tunnel/" + id)
	return tx.SetTunnel(t)
}

// dropToken takes all that a token's replicas declared: tunnels that nobody else declares go.
func (h *Hub) dropToken(tx *store.Tx, token string) error {
	mine, err := tx.DeclarationsBy(token, "")
	if err != nil {
		return err
	}
	if err := tx.DeleteReplicasOf(token); err != nil {
		return err
	}
	done := map[string]bool{"": true}
	for _, m := range mine {
		if done[m.TunnelID] {
			continue
		}
		done[m.TunnelID] = true
		left, err := tx.Declarations(m.TunnelID)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			err = h.deleteTunnel(tx, m.TunnelID)
		} else {
			err = h.dropServer(tx, m.TunnelID, token)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// front is where visitors find the edges.
type front struct{ host, port string }

// url is the public address of a tunnel.
func (f front) url(t *hubv1.Tunnel) string {
	switch t.GetKind() {
	case wirev1.Kind_KIND_TCP, wirev1.Kind_KIND_UDP:
		return protocolOf(t.GetKind()) + "://" + net.JoinHostPort(f.host, ports(int(t.GetPort()), int(t.GetPortLast())))
	default:
		if f.port == "" || f.port == "443" {
			return "https://" + t.GetHostname()
		}
		return "https://" + net.JoinHostPort(t.GetHostname(), f.port)
	}
}

// front is the hub's own host if it is an edge too, else the first edge that joined. It looks
// through the whole feed: ask once for many tunnels.
func (h *Hub) front() front {
	if !h.localEdge.Load() {
		for _, e := range h.feed.edges() {
			for _, a := range e.GetAddress().GetAddresses() {
				if host, port, err := net.SplitHostPort(a); err == nil {
					return front{host, port}
				}
			}
		}
	}
	f := front{host: h.cfg.HubHost}
	if u, err := url.Parse(h.cfg.URL); err == nil {
		f.port = u.Port()
	}
	return f
}

func kindText(k wirev1.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}

func accessText(t *hubv1.Tunnel) string {
	return strings.ToLower(strings.TrimPrefix(t.GetAccess().GetMode().String(), "MODE_"))
}

func grantText(t *store.Token) string {
	var s []string
	for _, g := range t.Grants {
		if g.Protocol == store.Host {
			s = append(s, g.Pattern)
		} else {
			s = append(s, g.Protocol+" "+ports(g.First, g.Last))
		}
		if len(s) == 8 {
			return strings.Join(s, ", ") + ", …"
		}
	}
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

// place is what tunnels are sorted and paged by: the public address, then the id.
func place(t *hubv1.Tunnel) string {
	if t.GetHostname() != "" {
		return t.GetHostname() + "\x01" + t.GetId()
	}
	return fmt.Sprintf("%s:%05d\x01%s", protocolOf(t.GetKind()), t.GetPort(), t.GetId())
}

// ListTunnels returns one page of tunnels whose address, name or tenant contains filter.
func (h *Hub) ListTunnels(ctx context.Context, size uint32, page, filter string) ([]*hubv1.TunnelStatus, string, error) {
	all := h.feed.list()
	if filter = strings.ToLower(filter); filter != "" {
		var found []placed
		for _, p := range all {
			if strings.Contains(p.text, filter) {
				found = append(found, p)
			}
		}
		all = found
	}
	all, next, err := cut(all, func(p placed) string { return p.at }, size, page)
	if err != nil {
		return nil, "", err
	}
	ts := make([]*hubv1.Tunnel, len(all))
	for i, p := range all {
		ts[i] = p.t
	}
	out, err := h.statuses(ctx, ts)
	return out, next, err
}

// GetTunnel finds a tunnel by id, label, hostname, tcp:PORT or udp:PORT.
func (h *Hub) GetTunnel(ctx context.Context, label string) (*hubv1.TunnelStatus, error) {
	t, err := h.findTunnel(label)
	if err != nil {
		return nil, err
	}
	s, err := h.statuses(ctx, []*hubv1.Tunnel{t})
	if err != nil {
		return nil, err
	}
	return s[0], nil
}

func (h *Hub) findTunnel(label string) (*hubv1.Tunnel, error) {
	if r := h.feed.get("tunnel/" + label); r != nil {
		return r.GetTunnel(), nil
	}
	match := func(t *hubv1.Tunnel) bool { return t.GetName() == label }
	if protocol, port, ok := strings.Cut(label, ":"); ok && (protocol == store.TCP || protocol == store.UDP) {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return nil, invalid("label", label, "give tcp:PORT or udp:PORT", "has no port")
		}
		match = func(t *hubv1.Tunnel) bool {
			return protocolOf(t.GetKind()) == protocol && int(t.GetPort()) <= n && n <= int(max(t.GetPort(), t.GetPortLast()))
		}
	} else if p, err := hostname.Parse(label); err == nil {
		match = func(t *hubv1.Tunnel) bool { return t.GetHostname() == p.String() }
	} else if p, err := hostname.Parse(label + "." + h.cfg.Domain); err == nil {
		match = func(t *hubv1.Tunnel) bool { return t.GetName() == label || t.GetHostname() == p.String() }
	}
	var found []*hubv1.Tunnel
	for _, t := range h.feed.tunnels() {
		if match(t) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound("tunnel", label, "list them with adit tunnel list")
	case 1:
		return found[0], nil
	default:
		return nil, invalid("label", label, "give the host name, tcp:PORT, udp:PORT or id", "is the name of %d tunnels", len(found))
	}
}

// statuses adds to tunnels what replicas and edges say of them.
func (h *Hub) statuses(ctx context.Context, ts []*hubv1.Tunnel) ([]*hubv1.TunnelStatus, error) {
	ids := make([]string, len(ts))
	for i, t := range ts {
		ids[i] = t.GetId()
	}
	var decls []store.Declaration
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		decls, err = tx.DeclarationsFor(ids)
		return err
	}); err != nil {
		return nil, err
	}
	now := h.cfg.Now()
	alive := h.presence.alive(now)
	serving, declared := map[string]int{}, map[string]bool{}
	for _, ids := range alive {
		for id := range ids {
			serving[id]++
		}
	}
	conflicts := map[string][]*hubv1.Verdict{}
	for _, d := range decls {
		if _, ok := alive[keyOfDeclaration(d)]; !ok {
			continue
		}
		if d.TunnelID != "" {
			declared[d.TunnelID] = true
			continue
		}
		v, e := &hubv1.Verdict{}, &hubv1.DeclaredTunnel{}
		if proto.Unmarshal(d.Verdict, v) != nil || proto.Unmarshal(d.Entry, e) != nil {
			continue
		}
		if a := addressKey(e); a != "" && (v.GetCode() == string(reason.NameConflict) || v.GetCode() == string(reason.PortConflict)) {
			conflicts[a] = append(conflicts[a], v)
		}
	}
	out, at := make([]*hubv1.TunnelStatus, len(ts)), h.front()
	for i, t := range ts {
		s := &hubv1.TunnelStatus{Tunnel: withoutPassword(t), Url: at.url(t), Replicas: uint32(serving[t.GetId()])}
		s.Conflicts = conflicts[t.GetHostname()]
		if t.GetHostname() == "" {
			s.Conflicts = conflicts[protocolOf(t.GetKind())+":"+strconv.Itoa(int(t.GetPort()))]
		}
		h.describeManaged(s)
		h.state(s, declared[t.GetId()])
		out[i] = s
	}
	return out, nil
}

func addressKey(e *hubv1.DeclaredTunnel) string {
	if p := protocolOf(e.GetKind()); p != store.Host {
		return p + ":" + strconv.Itoa(int(e.GetPort()))
	}
	p, err := hostname.Parse(e.GetHostname())
	if err != nil {
		return ""
	}
	return p.String()
}

func (h *Hub) state(s *hubv1.TunnelStatus, declared bool) {
	id := s.GetTunnel().GetId()
	if s.GetTunnel().GetDisabled() {
		s.State, s.Reason, s.Detail = "offline", string(reason.Disabled), "it is switched off"
		return
	}
	p := h.presence.portProblem(id, h.cfg.Now())
	if p != nil && p.fatal() {
		s.State, s.Reason, s.Detail = "problem", string(reason.PortUnavailable), p.String()
		return
	}
	if r := h.agentProblem(id); r != nil {
		s.State, s.Reason, s.Detail = "problem", r.GetReason(), r.GetDetail()
		return
	}
	if p := h.certificateProblem(s.GetTunnel()); p != "" {
		s.State, s.Reason, s.Detail = "problem", string(reason.Pending), "there is no certificate yet: "+p
		return
	}
	switch {
	case s.Replicas > 0:
		s.State = "online"
		if p != nil {
			s.Detail = p.served() + "; " + p.String()
		}
	case s.GetTunnel().GetSource() == sourceManaged:
		h.managedState(s)
	case declared:
		s.State, s.Reason, s.Detail = "pending", string(reason.Pending), "declared, but no edge has a session that serves it yet"
	default:
		s.State, s.Reason, s.Detail = "offline", string(reason.NoAgent), "no live replica declares it"
	}
}

// certificateProblem is why visitors of a tunnel whose TLS ends at the edge get no certificate.
func (h *Hub) certificateProblem(t *hubv1.Tunnel) string {
	if t.GetKind() != wirev1.Kind_KIND_HTTP {
		return ""
	}
	// No certificate reaches deeper than one label.
	c := h.feed.get("certificate/" + strings.Replace(t.GetHostname(), "**.", "*.", 1)).GetCertificate()
	switch {
	case len(c.GetChainPem()) > 0:
		return ""
	case c == nil && h.issuer != nil:
		return "it is being made"
	}
	return c.GetProblem()
}

// agentProblem is what a replica says is wrong with a tunnel, if all that report on it do.
func (h *Hub) agentProblem(id string) (problem *hubv1.TunnelReport) {
	now := h.cfg.Now()
	h.presence.look(func(_ map[string]*edgePresence, agents map[replicaKey]*agentPresence) {
		for _, a := range agents {
			if a.watches == 0 && now.Sub(a.heard) > edgeSilence {
				continue
			}
			for _, r := range a.tunnels {
				if r.GetTunnelId() != id {
					continue
				}
				if r.GetState() != "problem" {
					problem = nil
					return
				}
				problem = r
			}
		}
	})
	return problem
}
