package hub

import (
	"database/sql"
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

const (
	maxOrigins = 64
	maxRules   = 256
	maxSpec    = 256 << 10
)

// schemes are the origins that each kind can have.
var schemes = map[wirev1.Kind][]string{
	wirev1.Kind_KIND_HTTP: {"http", "https", "h2c"},
	wirev1.Kind_KIND_TLS:  {"tcp"},
	wirev1.Kind_KIND_TCP:  {"tcp", "tls"},
	wirev1.Kind_KIND_UDP:  {"udp"},
}

// claim is a valid declared entry: the tunnel it asks for.
type claim struct {
	tunnel  *hubv1.Tunnel
	pattern hostname.Pattern // kinds http and tls
	// protocol, first and last are what kinds tcp and udp claim.
	protocol    string
	first, last int
	// clear: the port is a clear HTTP port of the tunnel.
	clear bool
}

// code is the verdict for what another one has.
func (c *claim) code() reason.Code {
	if c.protocol != "" {
		return reason.PortConflict
	}
	return reason.NameConflict
}

// field and value name what is claimed.
func (c *claim) field() (string, string) {
	if c.clear {
		return "http_ports", ports(c.first, c.last)
	}
	if c.protocol != "" {
		return "listen_port", ports(c.first, c.last)
	}
	return "hostname", c.tunnel.Hostname
}

// parseEntry checks what needs no store and completes defaults.
func parseEntry(d *hubv1.DeclaredTunnel) (*claim, *Problem) {
	if proto.Size(d) > maxSpec {
		return nil, invalid("", "", "declare fewer rules", "the entry has more than %d bytes", maxSpec)
	}
	c := &claim{tunnel: &hubv1.Tunnel{
		Kind: d.GetKind(), Name: d.GetName(), Source: "declared", Rules: d.GetRules(), Origins: d.GetOrigins(),
		Access: &hubv1.Access{Mode: d.GetAccess()}, CarrierPolicy: d.GetCarrierPolicy(),
	}}
	t := c.tunnel
	if _, ok := schemes[t.Kind]; !ok {
		return nil, invalid("kind", t.Kind.String(), "use http, tls, tcp or udp", "is no kind of tunnel")
	}
	if len(t.Name) > 255 {
		return nil, invalid("name", t.Name[:64]+"…", "use at most 255 characters", "is too long")
	}
	if p := c.parseAddress(d); p != nil {
		return nil, p
	}
	if p := c.parseHTTPPorts(d); p != nil {
		return nil, p
	}
	if p := c.parseOrigins(d); p != nil {
		return nil, p
	}
	if p := checkRules(t); p != nil {
		return nil, p
	}
	if p := c.parsePolicy(); p != nil {
		return nil, p
	}
	t.Id = hubv1.DeclaredID(t.Kind, t.Hostname, t.Port, t.PortLast)
	return c, nil
}

func (c *claim) parseAddress(d *hubv1.DeclaredTunnel) *Problem {
	t := c.tunnel
	if t.Kind == wirev1.Kind_KIND_HTTP || t.Kind == wirev1.Kind_KIND_TLS {
		if d.GetPort() != 0 || d.GetPortLast() != 0 {
			return invalid("listen_port", ports(int(d.GetPort()), int(d.GetPortLast())), "leave it away", "is not for tunnels with a host name")
		}
		p, err := hostname.Parse(d.GetHostname())
		if err != nil {
			return invalid("hostname", d.GetHostname(), "give a name as a.example.com or *.example.com", "%v", err)
		}
		c.pattern, t.Hostname = p, p.String()
		return nil
	}
	if d.GetHostname() != "" {
		return invalid("hostname", d.GetHostname(), "leave it away, or use kind http or tls", "is not for tunnels with a port")
	}
	c.protocol, c.first, c.last = protocolOf(t.Kind), int(d.GetPort()), int(max(d.GetPort(), d.GetPortLast()))
	value := ports(int(d.GetPort()), int(d.GetPortLast()))
	switch {
	case c.first < 1 || c.last > 65535 || d.GetPortLast() != 0 && d.GetPortLast() < d.GetPort():
		return invalid("listen_port", value, "give a port from 1 to 65535, or a range [first, last]", "is no port or range of ports")
	case c.last > c.first && c.protocol == store.TCP:
		return invalid("listen_port", value, "declare one tunnel for each port", "a tcp tunnel has one port")
	case c.last-c.first >= maxRange:
		return invalid("listen_port_range", value, fmt.Sprintf("use at most %d ports", maxRange), "is too large")
	}
	t.Port = d.GetPort()
	if c.last > c.first {
		t.PortLast = uint32(c.last)
	}
	return nil
}

func (c *claim) parseOrigins(d *hubv1.DeclaredTunnel) *Problem {
	t := c.tunnel
	if len(t.Origins) == 0 {
		if d.GetOrigin() == nil {
			return invalid("origin", "", "give the origin as SCHEME://HOST:PORT", "is missing")
		}
		t.Origins = []*hubv1.Origin{d.GetOrigin()}
	} else if d.GetOrigin() != nil {
		return invalid("origin", d.GetOrigin().GetUrl(), "give one origin, or origins with rules", "is given twice")
	} else if len(t.Origins) > 1 && t.Kind != wirev1.Kind_KIND_HTTP {
		return invalid("origins", strconv.Itoa(len(t.Origins)), "give one origin, or use kind http", "only http tunnels have several origins")
	} else if len(t.Origins) > maxOrigins {
		return invalid("origins", strconv.Itoa(len(t.Origins)), fmt.Sprintf("give at most %d", maxOrigins), "are too many")
	}
	for i, o := range t.Origins {
		field := "origin"
		if d.GetOrigin() == nil {
			field = fmt.Sprintf("origins[%d]", i)
		}
		if p := c.checkOrigin(field, o); p != nil {
			return p
		}
	}
	if len(t.Rules) == 0 {
		t.Rules = []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Origin: 0, Weight: 1}}}}
	} else if t.Kind != wirev1.Kind_KIND_HTTP {
		return invalid("rules", strconv.Itoa(len(t.Rules)), "leave them away, or use kind http", "only http tunnels have rules")
	}
	return nil
}

func (c *claim) checkOrigin(field string, o *hubv1.Origin) *Problem {
	u, err := url.Parse(o.GetUrl())
	allowed := schemes[c.tunnel.Kind]
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		return invalid(field, o.GetUrl(), "give it as "+allowed[0]+"://HOST:PORT", "is no origin")
	}
	if !slices.Contains(allowed, u.Scheme) {
		return invalid(field, o.GetUrl(), "use "+strings.Join(allowed, ", "), "the scheme %q does not fit the kind of the tunnel", u.Scheme)
	}
	host, port, err := net.SplitHostPort(u.Host)
	n, perr := strconv.Atoi(port)
	sameport := c.protocol == store.UDP && c.last > c.first && n == 0
	if err != nil || host == "" || perr != nil || n < 0 || n > 65535 || n == 0 && !sameport {
		return invalid(field, o.GetUrl(), "give it as "+u.Scheme+"://HOST:PORT", "has no host or no port")
	}
	switch pp := o.GetProxyProtocol(); {
	case !slices.Contains([]string{"", "none", "v1", "v2"}, pp):
		return invalid(field+".proxy_protocol", pp, "use none, v1 or v2", "is no version of the PROXY protocol")
	case c.protocol == store.UDP && pp == "v1":
		return invalid(field+".proxy_protocol", pp, "use none or v2", "is not possible with udp")
	}
	if s := o.GetIdleTimeoutSeconds(); s > 86400 || s > 0 && c.protocol != store.UDP {
		return invalid(field+".idle_timeout_seconds", fmt.Sprint(s), "use 1 to 86400, with kind udp only", "is not possible here")
	}
	return nil
}

func (c *claim) parsePolicy() *Problem {
	t := c.tunnel
	switch t.Access.Mode {
	case hubv1.Access_MODE_UNSPECIFIED:
		t.Access.Mode = hubv1.Access_MODE_PUBLIC
		if t.Kind == wirev1.Kind_KIND_HTTP {
			t.Access.Mode = hubv1.Access_MODE_PROTECTED
		}
	case hubv1.Access_MODE_PROTECTED, hubv1.Access_MODE_PUBLIC:
	default:
		return invalid("access", t.Access.Mode.String(), "use public or protected, or update the hub", "this hub does not know the access")
	}
	switch t.CarrierPolicy {
	case hubv1.CarrierPolicy_CARRIER_POLICY_UNSPECIFIED:
		t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_AUTO
	case hubv1.CarrierPolicy_CARRIER_POLICY_AUTO, hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY, hubv1.CarrierPolicy_CARRIER_POLICY_THROUGHPUT:
	case hubv1.CarrierPolicy_CARRIER_POLICY_RAW:
		if t.Kind != wirev1.Kind_KIND_TLS {
			return invalid("carrier_policy", "raw", "use auto, latency or throughput", "raw lanes carry passthrough only")
		}
	default:
		return invalid("carrier_policy", t.CarrierPolicy.String(), "use auto, latency or throughput", "this hub does not know the policy")
	}
	return nil
}

// row is the claim as a new row for tenant.
func (c *claim) row(tenant string, now int64) *store.Tunnel {
	return &store.Tunnel{
		ID: c.tunnel.Id, Tenant: tenant, Kind: int32(c.tunnel.Kind), Name: c.tunnel.Name, Source: c.tunnel.Source,
		Hostname: sql.NullString{String: c.tunnel.Hostname, Valid: c.tunnel.Hostname != ""}, CreatedAt: now,
	}
}
