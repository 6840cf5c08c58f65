package origin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/adit-dev/adit/internal/reason"
)

// metadata are addresses where cloud machines find their credentials. Those within link-local
// networks are refused with these.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS over IPv6
	netip.MustParseAddr("fd20:ce::254"):    true, // Google over IPv6
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure's wire server
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle's older one
}

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	nat64own  = netip.MustParsePrefix("64:ff9b:1::/48") // of a network's own making, RFC 8215
	siit      = netip.MustParsePrefix("::ffff:0:0:0/96")
	teredo    = netip.MustParsePrefix("2001::/32")
	sixToFour = netip.MustParsePrefix("2002::/16")
	compat    = netip.MustParsePrefix("::/96")
	thisNet   = netip.MustParsePrefix("0.0.0.0/8")
	lastV4    = netip.MustParseAddr("255.255.255.255")
)

// Cluster is what is known of the Kubernetes cluster around the agent.
type Cluster interface {
	// APIServer tells whether the API server answers at an address.
	APIServer(at netip.AddrPort) bool
	// APIHost tells whether an address is one of a machine that the API server runs on.
	APIHost(a netip.Addr) bool
	// Selected tells whether an address is one of a Pod behind a Service that may be exposed.
	Selected(at netip.AddrPort) bool
	// Behind are the addresses that connections to at go to, where somebody wrote them by hand.
	Behind(at netip.AddrPort) []netip.AddrPort
}

// guard decides which targets may be dialled. It sees addresses, never spellings: a name counts
// only where a pattern names it, and what it resolves to is checked as well.
type guard struct {
	allow, deny, forward []pattern
	kubernetes           bool
	// special are addresses of the cluster that no origin may have, with what they are.
	special map[netip.Addr]string
	// cluster and node know more of the cluster; nil = nobody does.
	cluster Cluster
	node    func(netip.Addr) bool
}

func newGuard(cfg Config) (*guard, error) {
	g := &guard{special: map[netip.Addr]string{}, cluster: cfg.Cluster, node: cfg.Node}
	for _, l := range []struct {
		name string
		from []string
		to   *[]pattern
	}{{"allow-target", cfg.Allow, &g.allow}, {"deny-target", cfg.Deny, &g.deny}, {"allow-forward", cfg.AllowForward, &g.forward}} {
		for _, text := range l.from {
			p, err := parsePattern(text)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", l.name, text, err)
			}
			*l.to = append(*l.to, p)
		}
	}
	api := cfg.Getenv("KUBERNETES_SERVICE_HOST")
	if api == "" {
		return g, nil
	}
	g.kubernetes = true
	note := func(list, what string) {
		for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
			if a, err := netip.ParseAddr(s); err == nil {
				g.special[a.Unmap().WithZone("")] = what
			}
		}
	}
	// In the host network the Pod's own addresses are the node's.
	if own, err := net.InterfaceAddrs(); err == nil {
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
				note(n.IP.String(), "the agent's own host")
			}
		}
	}
	note(cfg.Getenv("HOST_IP")+","+cfg.Getenv("HOST_IPS"), theNode)
	note(api, theAPI)
	return g, nil
}

// What addresses of the cluster are.
const (
	theAPI  = "the Kubernetes API server"
	theNode = "the node the agent runs on"
	apiNode = "a node that the Kubernetes API server runs on"
)

func denied(s *Spec, format string, args ...any) *reason.Error {
	return reason.New(reason.OriginDenied, reason.HopAgent, "%s must not be dialled: %s", s, fmt.Sprintf(format, args...)).Safe()
}

// checkName is the part that needs no address: it spares a lookup whose answer does not matter.
func (g *guard) checkName(s *Spec) *reason.Error {
	host := strings.TrimSuffix(strings.ToLower(s.Host), ".")
	if g.kubernetes && (host == "kubernetes.default" || strings.HasPrefix(host, "kubernetes.default.")) {
		return denied(s, "it is the Kubernetes API server")
	}
	if s.Forward && len(g.forward) == 0 {
		return denied(s, "this agent permits no forwards; name the targets that it may forward to with --allow-forward")
	}
	for _, p := range g.deny {
		if p.matchesName(host, s.Port) {
			return denied(s, "--deny-target %s forbids it", p.text)
		}
	}
	return nil
}

// check decides about one address that s resolved to.
func (g *guard) check(s *Spec, a netip.Addr) *reason.Error {
	for _, a := range embedded(a) {
		if e := checkKind(s, a); e != nil {
			return e
		}
		if g.kubernetes {
			if e := g.checkCluster(s, a); e != nil {
				return e
			}
		}
		for _, p := range g.deny {
			if p.matchesAddr(a, s.Port) {
				return denied(s, "--deny-target %s forbids %s", p.text, a)
			}
		}
	}
	if len(g.allow) > 0 && !covers(g.allow, s, a) {
		return denied(s, "no --allow-target covers %s port %d; add it there if this is meant", a, s.Port)
	}
	if s.Forward && !covers(g.forward, s, a) {
		return denied(s, "no --allow-forward covers %s port %d; add it there if this is meant", a, s.Port)
	}
	return nil
}

// checkKind refuses addresses that are no host's, or that nobody may dial anywhere.
func checkKind(s *Spec, a netip.Addr) *reason.Error {
	switch {
	case a.IsUnspecified(), thisNet.Contains(a):
		return denied(s, "%s is no address of a host; write 127.0.0.1 or ::1 for this machine", a)
	case a.IsLinkLocalUnicast(), metadata[a]:
		return denied(s, "%s is a link-local or metadata address, which no origin may have", a)
	case a.IsMulticast(), a == lastV4:
		return denied(s, "%s is a group address", a)
	}
	return nil
}

// checkCluster refuses the API server, nodes and loopback, also behind a Service whose endpoints
// were written by hand. Pods of Services may share the addresses of a node.
func (g *guard) checkCluster(s *Spec, a netip.Addr) *reason.Error {
	if a.IsLoopback() && !s.Declared {
		return denied(s, "%s is loopback, which in Kubernetes only declared origins (sidecars) may use", a)
	}
	at := netip.AddrPortFrom(a, s.Port)
	if what := g.isSpecial(at); what != "" {
		return denied(s, "%s is %s", a, what)
	}
	if g.cluster == nil {
		return nil
	}
	for _, b := range g.cluster.Behind(at) {
		for _, b := range embedded(b.Addr()) {
			if e := checkKind(s, b); e != nil {
				return e
			}
			if b.IsLoopback() {
				return denied(s, "the Service at %s leads to %s, which is loopback", a, b)
			}
		}
		if what := g.isSpecial(b); what != "" {
			return denied(s, "the Service at %s leads to %s, which is %s", a, b.Addr(), what)
		}
	}
	return nil
}

// isSpecial tells what an address of the cluster is that no origin may have; empty = none of those.
func (g *guard) isSpecial(at netip.AddrPort) string {
	what := g.special[at.Addr()]
	if what == "" && g.node != nil && g.node(at.Addr()) {
		what = theNode
	}
	if g.cluster == nil {
		return what
	}
	switch {
	case g.cluster.APIServer(at):
		return theAPI
	case what == "" && g.cluster.APIHost(at.Addr()):
		what = apiNode
	}
	if what != "" && what != theAPI && g.cluster.Selected(at) {
		return ""
	}
	return what
}

// covers tells whether a pattern names s, or the address it resolved to.
func covers(list []pattern, s *Spec, a netip.Addr) bool {
	host := strings.TrimSuffix(strings.ToLower(s.Host), ".")
	return slices.ContainsFunc(list, func(p pattern) bool {
		return p.matchesName(host, s.Port) || p.matchesAddr(a.Unmap().WithZone(""), s.Port)
	})
}

// control repeats the check on the address that the socket really connects to.
func (g *guard) control(s *Spec) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return denied(s, "%q is not an address", address)
		}
		if e := g.check(s, ap.Addr()); e != nil {
			return e
		}
		return nil
	}
}

// embedded returns a without zone, and the IPv4 address within it for the spellings that routers
// and kernels translate.
func embedded(a netip.Addr) []netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return []netip.Addr{a}
	}
	b := a.As16()
	switch {
	case nat64.Contains(a), nat64own.Contains(a), siit.Contains(a), compat.Contains(a) && !a.IsLoopback() && !a.IsUnspecified():
		return []netip.Addr{a, netip.AddrFrom4([4]byte(b[12:16]))}
	case teredo.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	case sixToFour.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte(b[2:6]))}
	}
	return []netip.Addr{a}
}

// pattern is one --allow-target or --deny-target.
type pattern struct {
	text        string
	prefix      netip.Prefix // valid for addresses and networks
	name        string       // lower case; with suffix a name below it
	suffix      bool
	first, last uint16 // 0 = any port
}

func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	target := strings.TrimSpace(text)
	// A colon starts the ports, except within an IPv6 address that is not in brackets.
	if i := strings.LastIndexByte(target, ':'); i >= 0 && (strings.Count(target, ":") == 1 || strings.Contains(target[:i], "]")) {
		first, last, isRange := strings.Cut(target[i+1:], "-")
		f, err1 := strconv.ParseUint(first, 10, 16)
		l, err2 := f, error(nil)
		if isRange {
			l, err2 = strconv.ParseUint(last, 10, 16)
		}
		if err1 != nil || err2 != nil || f == 0 || l < f {
			return p, fmt.Errorf("%q is not a port or a range first-last", target[i+1:])
		}
		p.first, p.last, target = uint16(f), uint16(l), target[:i]
	}
	target = strings.NewReplacer("[", "", "]", "").Replace(target)
	if pre, err := netip.ParsePrefix(target); err == nil {
		if pre.Addr().Is4In6() {
			return p, fmt.Errorf("write the network as IPv4")
		}
		p.prefix = pre.Masked()
		return p, nil
	}
	if a, err := netip.ParseAddr(target); err == nil {
		a = a.Unmap().WithZone("")
		p.prefix = netip.PrefixFrom(a, a.BitLen())
		return p, nil
	}
	p.name = strings.TrimSuffix(strings.ToLower(target), ".")
	if rest, ok := strings.CutPrefix(p.name, "*."); ok {
		p.name, p.suffix = rest, true
	}
	if p.name == "" || strings.ContainsAny(p.name, "*/: ") {
		return p, fmt.Errorf("is not an address, a network, a host name or *.name, with an optional :port or :first-last")
	}
	return p, nil
}

func (p pattern) matchesPort(port uint16) bool {
	return p.first == 0 || p.first <= port && port <= p.last
}

func (p pattern) matchesAddr(a netip.Addr, port uint16) bool {
	return p.prefix.IsValid() && p.prefix.Contains(a) && p.matchesPort(port)
}

func (p pattern) matchesName(host string, port uint16) bool {
	if p.name == "" || !p.matchesPort(port) {
		return false
	}
	if p.suffix {
		return strings.HasSuffix(host, "."+p.name)
	}
	return host == p.name
}
