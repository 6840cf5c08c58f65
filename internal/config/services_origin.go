package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// originForms says which origins a kind takes: its schemes, the first of them for a bare
// host:port, and the port of a bare host (0 = must be written).
var originForms = map[wirev1.Kind]struct {
	schemes []string
	port    map[string]uint16
	example string
}{
	wirev1.Kind_KIND_TLS:  {[]string{"tcp"}, map[string]uint16{"tcp": 443}, "host:port"},
	wirev1.Kind_KIND_HTTP: {[]string{"http", "https", "h2c"}, map[string]uint16{"http": 80, "https": 443, "h2c": 80}, "http://host:port, https://host:port, h2c://host:port or host:port"},
	wirev1.Kind_KIND_TCP:  {[]string{"tcp", "tls"}, nil, "host:port or tls://host:port"},
	wirev1.Kind_KIND_UDP:  {[]string{"udp"}, nil, "host:port"},
}

// OriginURL returns the canonical form scheme://host:port of an origin as people write it, for a
// tunnel of kind. The port is 0 for bareHost (a UDP range: same port at the origin).
func OriginURL(kind wirev1.Kind, text string, bareHost bool) (string, error) {
	forms := originForms[kind]
	scheme, rest, hasScheme := strings.Cut(text, "://")
	if !hasScheme {
		scheme, rest = forms.schemes[0], text
	}
	scheme = strings.ToLower(scheme)
	known := false
	for _, s := range forms.schemes {
		known = known || s == scheme
	}
	if !known {
		if kind == wirev1.Kind_KIND_TLS {
			return "", fmt.Errorf("scheme %q is not possible with passthrough, where the visitor's own TLS reaches the origin; write host:port, or set tls_mode to terminate", clip(scheme))
		}
		return "", fmt.Errorf("scheme %q is not possible here; write %s", clip(scheme), forms.example)
	}
	rest = strings.TrimSuffix(rest, "/")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return "", errors.New("has a path; an origin is a host and a port only")
	}
	if strings.Contains(rest, "@") {
		return "", errors.New("has a user name; an origin is a host and a port only")
	}
	host, port, err := splitOrigin(rest)
	if err != nil {
		return "", err
	}
	switch {
	case bareHost && port != 0:
		return "", fmt.Errorf("has port %d beside listen_port_range, which uses the same port at the origin; leave the port out", port)
	case !bareHost && port == 0:
		if port = forms.port[scheme]; port == 0 {
			return "", fmt.Errorf("has no port; write %s", forms.example)
		}
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// splitOrigin reads host[:port] with IPv6 addresses in brackets; port 0 = not written.
func splitOrigin(s string) (host string, port uint16, err error) {
	host = s
	hasPort := false
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		if strings.Contains(s[:i], ":") && !strings.HasPrefix(s, "[") {
			return "", 0, errors.New("has an IPv6 address without brackets; write it as [::1]:port")
		}
		v, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil || v == 0 {
			return "", 0, fmt.Errorf("port %q is not a number from 1 to 65535", clip(s[i+1:]))
		}
		host, port, hasPort = s[:i], uint16(v), true
	}
	if strings.HasPrefix(host, "[") != strings.HasSuffix(host, "]") {
		return "", 0, errors.New("has a bracket without its pair; write an IPv6 address as [::1]:port")
	}
	if strings.HasPrefix(host, "[") {
		host = host[1 : len(host)-1]
		a, err := netip.ParseAddr(host)
		if err != nil || !a.Is6() {
			return "", 0, fmt.Errorf("%q is not an IPv6 address", clip(host))
		}
		return a.String(), port, nil
	}
	if host == "" {
		if hasPort {
			return "", 0, errors.New("has no host; write host:port")
		}
		return "", 0, errors.New("is empty; write host:port")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), port, nil
	}
	host, err = hostname.Normalize(host)
	return host, port, err
}

// origin reads the origin of t, whose kind and server name are known already. A server name makes
// the agent speak TLS to the origin: towards a passthrough or TCP origin around the bytes it
// carries, towards an HTTP origin as https.
func (e *entry) origin(t *hubv1.DeclaredTunnel, bareHost bool) string {
	text := e.text("origin", required)
	if text == "" {
		return ""
	}
	u, err := OriginURL(t.Kind, text, bareHost)
	if err != nil {
		e.fail("origin", "value %q: %v", clip(text), err)
		return ""
	}
	scheme, rest, _ := strings.Cut(u, "://")
	if t.Origin.ServerName == "" || scheme == "https" || scheme == "tls" {
		return u
	}
	switch {
	case scheme == "tcp":
		return "tls://" + rest
	case !strings.Contains(text, "://"):
		return "https://" + rest
	}
	e.fail("origin_server_name", "is possible only with a TLS origin; write origin as https://%s, or leave it out", rest)
	return u
}
