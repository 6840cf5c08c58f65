package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

const (
	// dialTime bounds one try to connect, dials how many run at once.
	dialTime = 400 * time.Millisecond
	dials    = 20
)

// Where an address comes from, as the label of a service says.
const (
	published     = "published_port"
	containerIP   = "container_ip"
	containerName = "container_name"
)

// candidate is a port of a container with the addresses that may lead to it, the best first.
type candidate struct {
	c         *container
	labels    labels
	port      uint16
	protocol  string
	addresses []address
}

type address struct{ host, port, source string }

func (a address) String() string { return net.JoinHostPort(a.host, a.port) }

// key stands for a candidate as long as nothing of where it is changes.
func (c *candidate) key() string {
	return fmt.Sprint(c.c.ID, " ", c.port, "/", c.protocol, " ", c.addresses)
}

// reached is a port that answered.
type reached struct {
	address address
	scheme  string
}

// candidates are the ports of containers that are not left out, in a fixed order.
func (p *Provider) candidates(list []container) []candidate {
	self := slices.IndexFunc(list, func(c container) bool { return p.cfg.Self != "" && strings.HasPrefix(c.ID, p.cfg.Self) })
	// In a container loopback is its own, and the names of other containers mean something.
	inside := self >= 0 && list[self].HostConfig.NetworkMode != "host"
	var out []candidate
	for i := range list {
		c := &list[i]
		l := labelsOf(c.Labels)
		if c.State != "running" || l.denied() || i == self {
			continue
		}
		for _, at := range portsOf(c, l) {
			if p.skip[at.PrivatePort] {
				continue
			}
			out = append(out, candidate{c, l, at.PrivatePort, at.Type, addresses(c, at, inside)})
		}
	}
	return out
}

// portsOf are the TCP and UDP ports of a container, each once, the published form of it first, and
// the one that its labels name even if its image tells nothing of it.
func portsOf(c *container, l labels) []port {
	var all []port
	for _, at := range c.Ports {
		if at.PrivatePort != 0 && (at.Type == "tcp" || at.Type == "udp") {
			all = append(all, at)
		}
	}
	if n, protocol := l.port(); n != 0 {
		all = append(all, port{PrivatePort: n, Type: protocol})
	}
	rank := func(at port) int {
		switch {
		case at.PublicPort == 0:
			return 2
		case strings.Contains(at.IP, ":"):
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b port) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.PrivatePort, b.PrivatePort), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.IP, b.IP))
	})
	return slices.CompactFunc(all, func(a, b port) bool { return a.Type == b.Type && a.PrivatePort == b.PrivatePort })
}

// addresses are those that may lead to a port. On the host a published port stays the same when
// the container is made anew, and so does a name between containers; an address of a container
// does not.
func addresses(c *container, at port, inside bool) []address {
	private := strconv.Itoa(int(at.PrivatePort))
	if c.HostConfig.NetworkMode == "host" && !inside {
		return []address{{"127.0.0.1", private, published}}
	}
	var public, inner, names []address
	if at.PublicPort != 0 {
		if host := dialled(at.IP); !inside || !isLoopback(host) {
			public = []address{{host, strconv.Itoa(int(at.PublicPort)), published}}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.NetworkSettings.Networks)) {
		n := c.NetworkSettings.Networks[name]
		for _, ip := range []string{n.IPAddress, n.GlobalIPv6Address} {
			if ip != "" {
				inner = append(inner, address{ip, private, containerIP})
			}
		}
		// Docker's own DNS knows no names on the network called bridge.
		if name != "bridge" && names == nil {
			names = []address{{nameOf(c), private, containerName}}
		}
	}
	if inside {
		return slices.Concat(names, inner, public)
	}
	return slices.Concat(public, inner)
}

// dialled is the address for a published port's own.
func dialled(ip string) string {
	a, err := netip.ParseAddr(ip)
	switch {
	case err != nil || a == netip.IPv4Unspecified():
		return "127.0.0.1"
	case a == netip.IPv6Unspecified():
		return "::1"
	}
	return ip
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// forget has the ports of a container tried anew.
func (p *Provider) forget(id string) {
	for key := range p.reached {
		if id != "" && strings.HasPrefix(key, id) {
			delete(p.reached, key)
		}
	}
}

// find tries what has not answered yet and makes services of all.
func (p *Provider) find(ctx context.Context, list []candidate) []found {
	var mu sync.Mutex
	var wg sync.WaitGroup
	turn := make(chan struct{}, dials)
	now := map[string]reached{}
	for i := range list {
		c := &list[i]
		key := c.key()
		if r, ok := p.reached[key]; ok {
			now[key] = r
			continue
		}
		if c.protocol == "udp" || len(c.addresses) == 0 {
			continue // nothing tells whether a UDP port is listened at
		}
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			if r, ok := c.try(ctx); ok {
				mu.Lock()
				defer mu.Unlock()
				now[key] = r
			}
		})
	}
	wg.Wait()
	p.reached, p.waiting = now, false
	out := make([]found, 0, len(list))
	for i := range list {
		c := &list[i]
		r, ok := now[c.key()]
		p.waiting = p.waiting || !ok && c.protocol == "tcp"
		s := c.service(r, ok)
		out = append(out, found{s, c.labels.declaration(c, s.GetOrigin())})
	}
	return out
}

// try connects to the addresses in their order and asks the first that answers what it speaks.
func (c *candidate) try(ctx context.Context) (reached, bool) {
	for _, at := range c.addresses {
		d := net.Dialer{Timeout: dialTime}
		conn, err := d.DialContext(ctx, "tcp", at.String())
		if err != nil {
			continue
		}
		peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		_ = conn.Close()
		scheme := c.labels.scheme()
		if scheme == "" {
			scheme, _ = discovery.SchemeOf(c.port, "")
		}
		if scheme == "" {
			scheme = discovery.Sniff(ctx, peer)
		}
		return reached{at, scheme}, true
	}
	return reached{}, false
}

// service is what the hub is told of a port.
func (c *candidate) service(r reached, ok bool) *hubv1.DiscoveredService {
	project, name := c.c.Labels["com.docker.compose.project"], c.c.Labels["com.docker.compose.service"]
	if name == "" {
		name = nameOf(c.c)
	}
	s := &hubv1.DiscoveredService{
		Id:       fmt.Sprintf("%s/%s/%s/%d/%s", Name, project, nameOf(c.c), c.port, c.protocol),
		Provider: Name, Namespace: project, Name: name, Port: uint32(c.port), Labels: c.labels.kept(),
		Readiness: "not_ready", SuggestedLabel: c.labels.label(name),
	}
	switch {
	case c.protocol == "udp":
		s.Readiness = "unknown"
	case ok && !strings.Contains(c.c.Status, "unhealthy"):
		s.Readiness, s.ReadyEndpoints = "ready", 1
	}
	at, scheme := r.address, r.scheme
	if !ok && len(c.addresses) > 0 {
		at = c.addresses[0]
	}
	known, app := discovery.SchemeOf(c.port, "")
	if scheme == "" {
		scheme = cmp.Or(c.labels.scheme(), known, "tcp")
	}
	s.AppProtocol = app
	switch {
	case c.protocol == "udp":
		s.Kind, scheme, s.AppProtocol = wirev1.Kind_KIND_UDP, "udp", ""
	case scheme == "http" || scheme == "https":
		s.Kind = wirev1.Kind_KIND_HTTP
	default:
		s.Kind = wirev1.Kind_KIND_TCP
	}
	if at.host != "" {
		s.Origin = scheme + "://" + at.String()
		s.Labels[prefix+"address-source"] = at.source
	}
	return s
}
