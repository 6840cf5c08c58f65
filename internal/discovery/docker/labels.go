package docker

import (
	"fmt"

	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/adit-dev/adit/internal/discovery"
)

// prefix of the labels that are for Adit; hlePrefix of those that it understands besides.
const (
	prefix    = "adit.dev/"
	hlePrefix = "hle.world/"
)

// maxLabel bounds the value of a label that is passed on, in bytes, and maxLabels their number.
const (
	maxLabel  = 256
	maxLabels = 32
)

// labels are those of one container.
type labels struct{ all map[string]string }

func labelsOf(all map[string]string) labels { return labels{all} }

func (l labels) get(name string) string { return strings.TrimSpace(l.all[prefix+name]) }

// denied: whoever made the container does not want it offered.
func (l labels) denied() bool {
	return l.get("expose") == "denied" || strings.TrimSpace(l.all[hlePrefix+"expose"]) == "denied"
}

// port is the one that the labels name, with its protocol; 0 = none or not a port.
func (l labels) port() (uint16, string) {
	n, _ := strconv.ParseUint(l.get("port"), 10, 16)
	if l.get("kind") == "udp" {
		return uint16(n), "udp"
	}
	return uint16(n), "tcp"
}

// scheme is what the labels say that the port speaks; empty = nothing.
func (l labels) scheme() string {
	switch s := l.get("protocol"); s {
	case "http", "https", "tcp":
		return s
	}
	return ""
}

// label is what the service is to be called.
func (l labels) label(name string) string {
	if s := discovery.Label(l.get("label")); s != "" {
		return s
	}
	return discovery.Label(name)
}

// kept are the labels that the hub is told: ours and those of compose.
func (l labels) kept() map[string]string {
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(l.all)) {
		ours := strings.HasPrefix(k, prefix) || strings.HasPrefix(k, hlePrefix) || strings.HasPrefix(k, "hle.") ||
			k == "com.docker.compose.project" || k == "com.docker.compose.service"
		if v := l.all[k]; ours && len(k) <= maxLabel && len(v) <= maxLabel && len(out) < maxLabels {
			out[k] = v
		}
	}
	return out
}

// entryFields are the labels that become fields of the entry as they are.
var entryFields = map[string]string{
	"access": "access", "carrier-policy": "carrier_policy", "proxy-protocol": "proxy_protocol", "host-header": "host_header",
	"origin-server-name": "origin_server_name", "name": "name",
}

// declaring are the labels that say something of a tunnel, besides entryFields.
var declaring = []string{"hostname", "kind", "listen-port", "port", "protocol", "label", "expose", "insecure-skip-verify"}

// declaration is the tunnel that the labels declare for this port; nil = none.
func (l labels) declaration(c *candidate, origin string) *discovery.Declaration {
	host, kind, public := l.get("hostname"), l.get("kind"), l.get("listen-port")
	if host == "" && public == "" {
		return nil
	}
	fail := func(format string, args ...any) *discovery.Declaration {
		return &discovery.Declaration{Problem: fmt.Sprintf("container %q: ", nameOf(c.c)) + fmt.Sprintf(format, args...)}
	}
	for k := range l.all {
		name, ours := strings.CutPrefix(k, prefix)
		if _, ok := entryFields[name]; ours && !ok && !slices.Contains(declaring, name) {
			return fail("label %q is not known; labels are %s", k, strings.Join(known(), ", "))
		}
	}
	// Only where the edge speaks HTTP does the origin say how.
	_, at, _ := strings.Cut(origin, "://")
	d := &discovery.Declaration{Entry: map[string]any{"origin": at}}
	wants := "tcp"
	switch {
	case kind == "udp" && host == "":
		d.List, wants = "udp_services", "udp"
	case kind == "tcp" && host == "":
		d.List = "tcp_services"
	case (kind == "" || kind == "http") && public == "":
		d.List, d.Entry["hostname"], d.Entry["tls_mode"], d.Entry["origin"] = "services", host, "terminate", origin
	case kind == "tls" && public == "":
		d.List, d.Entry["hostname"], d.Entry["tls_mode"] = "services", host, "passthrough"
	default:
		return fail("labels %skind %q, %shostname %q and %slisten-port %q do not go together; use hostname with kind http or tls, or listen-port with kind tcp or udp", prefix, kind, prefix, host, prefix, public)
	}
	problem, mine := l.isPort(c, wants)
	switch {
	case problem != "":
		return fail("%s", problem)
	case !mine:
		return nil
	case origin == "":
		return fail("it has no address; connect it to a network, or publish the port")
	}
	if d.List == "services" {
		if l.get("insecure-skip-verify") != "" {
			d.Entry["insecure_skip_verify"] = l.get("insecure-skip-verify") == "true"
		}
	} else {
		n, err := strconv.Atoi(public)
		if err != nil {
			return fail("label %slisten-port %q is not a port", prefix, public)
		}
		d.Entry["listen_port"], d.Entry["name"] = n, nameOf(c.c)
	}
	for label, field := range entryFields {
		if v := l.get(label); v != "" {
			d.Entry[field] = v
		}
	}
	return d
}

// isPort tells whether the labels mean this port of the container.
func (l labels) isPort(c *candidate, protocol string) (problem string, mine bool) {
	text := l.get("port")
	if n, _ := l.port(); text != "" && n == 0 {
		return fmt.Sprintf("label %sport %q is not a port", prefix, text), false
	} else if n != 0 {
		return "", c.port == n && c.protocol == protocol
	}
	var of []string
	for _, at := range portsOf(c.c, l) {
		if at.Type == protocol {
			of = append(of, strconv.Itoa(int(at.PrivatePort)))
		}
	}
	if len(of) > 1 {
		return fmt.Sprintf("it has ports %s; say which one with the label %sport", strings.Join(of, ", "), prefix), false
	}
	return "", c.protocol == protocol
}

// known are all labels that mean something here.
func known() []string {
	out := slices.Concat(declaring, slices.Collect(maps.Keys(entryFields)))
	slices.Sort(out)
	for i, name := range out {
		out[i] = prefix + name
	}
	return out
}
