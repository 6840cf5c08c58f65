package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// ServiceLists are an agent's three lists as JSON text, from a flag or the environment. An empty
// string means that the list is not set there.
type ServiceLists struct {
	Services string
	TCP      string
	UDP      string
}

// Services is what an agent declares, in the order of its lists. Each entry's Key is its place,
// e.g. "tcp_services[0]", and its Origin is complete, so the agent dials by it as well.
type Services []*hubv1.DeclaredTunnel

// Names of the lists, as keys of the YAML file and in messages.
const (
	listServices = "services"
	listTCP      = "tcp_services"
	listUDP      = "udp_services"
)

const (
	maxListBytes   = 1 << 20
	maxServiceName = 64
	maxPortRange   = 512
	maxHTTPPorts   = 16
	maxIdleSeconds = 3600
	defaultUDPIdle = 120
	maxProblems    = 20
	exampleService = `[{"hostname": "a.example.com", "origin": "127.0.0.1:443"}]`
	exampleTCP     = `[{"name": "ssh", "origin": "127.0.0.1:22", "listen_port": 2222}]`
	exampleUDP     = `[{"name": "turn", "origin": "127.0.0.1:3478", "listen_port": 3478}]`
)

// ParseServices reads the lists. A list in set wins over the same list of file, the content of
// the YAML configuration file (nil = none); other keys of file are ignored here. The error names
// the list, the entry, the field, the value and the remedy of every problem.
func ParseServices(set ServiceLists, file []byte) (Services, error) {
	if len(file) > maxListBytes {
		return nil, fmt.Errorf("configuration file has %d bytes, at most %d are possible", len(file), maxListBytes)
	}
	fromFile, err := fileLists(file)
	if err != nil {
		return nil, err
	}
	p := &serviceParser{}
	for _, l := range []struct {
		name, text, example string
		fields              []string
		read                func(*entry) *hubv1.DeclaredTunnel
	}{
		{listServices, set.Services, exampleService, []string{"name", "hostname", "origin", "tls_mode", "proxy_protocol", "origin_server_name", "access", "carrier_policy", "host_header", "insecure_skip_verify", "http_ports"}, readService},
		{listTCP, set.TCP, exampleTCP, []string{"name", "origin", "listen_port", "proxy_protocol", "origin_server_name", "access", "carrier_policy"}, readTCP},
		{listUDP, set.UDP, exampleUDP, []string{"name", "origin", "listen_port", "listen_port_range", "idle_timeout_secs", "proxy_protocol", "access", "carrier_policy"}, readUDP},
	} {
		node := fromFile[l.name]
		if l.text != "" {
			if node, err = parseJSON(l.text); err != nil {
				p.fail(fmt.Errorf("%s: not a JSON list: %w; write it as %s", l.name, err, l.example))
				continue
			}
		}
		p.list(l.name, l.example, node, l.fields, l.read)
	}
	p.unique()
	if err := errors.Join(p.problems...); err != nil {
		return nil, err
	}
	return p.out, nil
}

// fileLists finds the three lists in the YAML file. Keys may be spelled with - or _.
func fileLists(file []byte) (map[string]*yaml.Node, error) {
	lists := map[string]*yaml.Node{}
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, fmt.Errorf("configuration file is not valid YAML: %w", err)
	}
	if len(doc.Content) == 0 || isNull(doc.Content[0]) {
		return lists, nil
	}
	root := resolve(doc.Content[0])
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("configuration file is %s at its top; write keys such as %q", kindOf(root), listServices+":")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := underscored(root.Content[i].Value)
		switch key {
		case listServices, listTCP, listUDP:
			if lists[key] != nil {
				return nil, fmt.Errorf("configuration file, line %d: %s is there twice; keep one", root.Content[i].Line, key)
			}
			lists[key] = resolve(root.Content[i+1])
		}
	}
	return lists, nil
}

type serviceParser struct {
	out      Services
	problems []error
}

func (p *serviceParser) fail(err error) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, err)
	}
}

// list reads every entry of one list. Entries with problems are left out of the result, which is
// then not used.
func (p *serviceParser) list(name, example string, node *yaml.Node, fields []string, read func(*entry) *hubv1.DeclaredTunnel) {
	if node == nil || isNull(node) {
		return
	}
	if node.Kind != yaml.SequenceNode {
		p.fail(fmt.Errorf("%s is %s, want a list; write it as %s", name, kindOf(node), example))
		return
	}
	for i, n := range node.Content {
		e := newEntry(p, fmt.Sprintf("%s[%d]", name, i), resolve(n), fields)
		if e == nil {
			continue
		}
		t := read(e)
		if e.failed {
			continue
		}
		t.Key = e.key
		p.out = append(p.out, t)
	}
}

// unique refuses what can exist once only: a host name; a name, a port in its protocol.
func (p *serviceParser) unique() {
	type claim struct {
		kind  wirev1.Kind
		value string
	}
	seen := map[claim]string{}
	once := func(kind wirev1.Kind, field, value, key string) {
		c := claim{kind, field + "=" + value}
		if first, ok := seen[c]; ok {
			p.fail(fmt.Errorf("%s: field %q: %s is used by %s already; each may be used once", key, field, value, first))
			return
		}
		seen[c] = key
	}
	clear := map[uint32]string{}
	for _, t := range p.out {
		for _, port := range t.HttpPorts {
			clear[port] = t.Key
		}
	}
	for i, t := range p.out {
		if key, ok := clear[t.Port]; ok && t.Kind == wirev1.Kind_KIND_TCP {
			p.fail(fmt.Errorf("%s (%s): field %q: port %d is a clear HTTP port of %s already; choose another", t.Key, t.Name, "listen_port", t.Port, key))
		}
		switch t.Kind {
		case wirev1.Kind_KIND_TCP, wirev1.Kind_KIND_UDP:
			once(t.Kind, "name", t.Name, t.Key)
			for _, o := range p.out[:i] {
				if o.Kind == t.Kind && t.Port <= max(o.Port, o.PortLast) && o.Port <= max(t.Port, t.PortLast) {
					p.fail(fmt.Errorf("%s (%s): field %q: port %s is used by %s (%s) already; choose another", t.Key, t.Name, "listen_port", ports(t), o.Key, o.Name))
				}
			}
		default:
			once(0, "hostname", t.Hostname, t.Key)
		}
	}
}

func ports(t *hubv1.DeclaredTunnel) string {
	if t.PortLast != 0 {
		return fmt.Sprintf("%d-%d", t.Port, t.PortLast)
	}
	return fmt.Sprint(t.Port)
}

// readService reads an entry of the list of host names: kind tls (passthrough) or http.
func readService(e *entry) *hubv1.DeclaredTunnel {
	t := &hubv1.DeclaredTunnel{Kind: wirev1.Kind_KIND_TLS, Origin: &hubv1.Origin{}}
	host := e.text("hostname", required)
	if host != "" {
		pat, err := hostname.Parse(host)
		if err != nil {
			e.fail("hostname", "%v", err)
		}
		t.Hostname = pat.String()
	}
	if t.Name = e.name(optional); t.Name == "" {
		t.Name = t.Hostname
	}
	mode := e.tlsMode()
	if mode == "terminate" {
		t.Kind = wirev1.Kind_KIND_HTTP
	}
	t.Origin.ServerName = e.serverName()
	t.Origin.ProxyProtocol = e.oneOf("proxy_protocol", "none", "v1", "v2")
	for _, f := range []string{"host_header", "insecure_skip_verify", "http_ports"} {
		if mode != "terminate" && e.has(f) {
			e.fail(f, "is possible only where the edge speaks HTTP to the origin; set tls_mode to terminate, or leave it out")
		}
	}
	t.Origin.HostHeader = e.text("host_header", optional)
	t.Origin.InsecureSkipVerify = e.boolean("insecure_skip_verify")
	t.HttpPorts = e.portList("http_ports")
	t.Origin.Url = e.origin(t, false)
	e.common(t)
	return t
}

func readTCP(e *entry) *hubv1.DeclaredTunnel {
	t := &hubv1.DeclaredTunnel{Kind: wirev1.Kind_KIND_TCP, Origin: &hubv1.Origin{}}
	t.Name = e.name(required)
	t.Port = e.integer("listen_port", required, 0, 1, 65535)
	t.Origin.ServerName = e.serverName()
	t.Origin.ProxyProtocol = e.oneOf("proxy_protocol", "none", "v1", "v2")
	t.Origin.Url = e.origin(t, false)
	e.common(t)
	return t
}

func readUDP(e *entry) *hubv1.DeclaredTunnel {
	t := &hubv1.DeclaredTunnel{Kind: wirev1.Kind_KIND_UDP, Origin: &hubv1.Origin{}}
	t.Name = e.name(required)
	switch one, many := e.has("listen_port"), e.has("listen_port_range"); {
	case one && many:
		e.fail("listen_port_range", "is there beside listen_port; keep one of them")
	case many:
		t.Port, t.PortLast = e.portRange()
	case one:
		t.Port = e.integer("listen_port", required, 0, 1, 65535)
	default:
		e.fail("listen_port", "is missing; write the public port, or listen_port_range as [first, last]")
	}
	t.Origin.IdleTimeoutSeconds = e.integer("idle_timeout_secs", optional, defaultUDPIdle, 1, maxIdleSeconds)
	// v1 has no way to say UDP; of v2 the first datagram of a flow carries the header.
	t.Origin.ProxyProtocol = e.oneOf("proxy_protocol", "none", "v2")
	t.Origin.Url = e.origin(t, e.has("listen_port_range"))
	if t.PortLast != 0 && t.PortLast == t.Port {
		// A range of one port is that port.
		t.PortLast = 0
		t.Origin.Url = strings.TrimSuffix(t.Origin.Url, ":0") + fmt.Sprintf(":%d", t.Port)
	}
	e.common(t)
	return t
}

// common reads what any entry may carry.
func (e *entry) common(t *hubv1.DeclaredTunnel) {
	def := "public"
	if t.Kind == wirev1.Kind_KIND_HTTP {
		def = "protected"
	}
	switch e.oneOf("access", def, "public", "protected", "none", "sso") {
	case "public", "none":
		t.Access = hubv1.Access_MODE_PUBLIC
	default:
		t.Access = hubv1.Access_MODE_PROTECTED
	}
	switch e.oneOf("carrier_policy", "auto", "latency", "throughput", "raw") {
	case "latency":
		t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY
	case "throughput":
		t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_THROUGHPUT
	case "raw":
		t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_RAW
		if t.Kind != wirev1.Kind_KIND_TLS {
			e.fail("carrier_policy", "value \"raw\" is possible for passthrough only; use auto, latency or throughput")
		}
	default:
		t.CarrierPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_AUTO
	}
}
