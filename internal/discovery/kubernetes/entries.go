package kubernetes

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

// hidden: nothing of such a Service is offered, nor does the target guard trust its endpoints.
func (p *Provider) hidden(k key, s *service) bool {
	return k == apiServer || s.denied ||
		!p.cfg.IncludeSystem && slices.Contains(systemNamespaces, k.namespace) || slices.Contains(p.cfg.ExcludeNamespaces, k.namespace)
}

func (p *Provider) leftOut(k key, s *service) bool {
	return p.hidden(k, s) || s.external || s.headless && !p.cfg.IncludeHeadless
}

// entries are the services that can be exposed: one for each port.
func (p *Provider) entries(k key, s *service, e *endpoints) []*hubv1.DiscoveredService {
	var out []*hubv1.DiscoveredService
	for _, at := range s.ports {
		if at.protocol != "tcp" && at.protocol != "udp" || at.number == 0 ||
			slices.Contains(p.cfg.ExcludePortNames, strings.ToLower(at.name)) || slices.Contains(p.cfg.ExcludePorts, at.number) {
			continue
		}
		out = append(out, p.entry(k, s, e, at))
	}
	return out
}

func (p *Provider) entry(k key, s *service, e *endpoints, at port) *hubv1.DiscoveredService {
	ready, listens := e.of(at)
	d := &hubv1.DiscoveredService{
		Id:       fmt.Sprintf("%s/%s/%s/%d/%s", Name, k.namespace, k.name, at.number, at.protocol),
		Provider: Name, Namespace: k.namespace, Name: k.name, PortName: at.name, Port: uint32(at.number),
		Labels: s.labels, Readiness: "not_ready", ReadyEndpoints: uint32(len(ready)), //nolint:gosec // a count
		SuggestedLabel: cmp.Or(discovery.Label(s.label), discovery.Label(k.name)),
	}
	switch {
	case e == nil:
		d.Readiness = "unknown"
	case len(ready) > 0:
		d.Readiness = "ready"
	}
	var scheme string
	switch scheme, d.AppProtocol = schemeOf(at); scheme {
	case "udp":
		d.Kind = wirev1.Kind_KIND_UDP
	case "tcp":
		d.Kind = wirev1.Kind_KIND_TCP
	default:
		d.Kind = wirev1.Kind_KIND_HTTP
	}
	number := at.number
	if s.headless {
		// Nothing translates the port: the name leads to the Pods themselves.
		number = cmp.Or(at.target, listens, at.number)
	}
	host := fmt.Sprintf("%s.%s.svc.%s", k.name, k.namespace, p.domain)
	d.Origin = scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(number)))
	return d
}

// protocols are names of what is spoken, as appProtocol and names of ports have them, with the
// scheme of an origin.
var protocols = map[string]string{
	"http": "http", "ws": "http", "kubernetes.io/ws": "http", "grpc-web": "http",
	"https": "https", "wss": "https", "kubernetes.io/wss": "https", "tls": "https", "ssl": "https", "websecure": "https", "grpcs": "https",
	"h2c": "h2c", "kubernetes.io/h2c": "h2c", "http2": "h2c", "grpc": "h2c",
	"tcp": "tcp", "ssh": "tcp", "sftp": "tcp", "ftp": "tcp", "telnet": "tcp", "smtp": "tcp", "smtps": "tcp", "submission": "tcp", "imap": "tcp",
	"imaps": "tcp", "pop3": "tcp", "pop3s": "tcp", "dns": "tcp", "domain": "tcp", "ldap": "tcp", "ldaps": "tcp", "mysql": "tcp", "mariadb": "tcp",
	"postgres": "tcp", "postgresql": "tcp", "psql": "tcp", "redis": "tcp", "valkey": "tcp", "mongo": "tcp", "mongodb": "tcp", "mqtt": "tcp",
	"mqtts": "tcp", "amqp": "tcp", "amqps": "tcp", "kafka": "tcp", "nats": "tcp", "memcache": "tcp", "memcached": "tcp", "mssql": "tcp",
	"rdp": "tcp", "vnc": "tcp", "smb": "tcp", "nfs": "tcp", "rtsp": "tcp", "rtmp": "tcp", "irc": "tcp", "minecraft": "tcp", "xmpp": "tcp",
	"etcd": "tcp", "gossip": "tcp", "raft": "tcp", "bolt": "tcp", "cql": "tcp", "turn": "tcp", "stun": "tcp",
}

// schemeOf tells by appProtocol, then by the port's name, then by its number what is spoken there;
// most of what says nothing is HTTP.
func schemeOf(at port) (scheme, app string) {
	if at.protocol == "udp" {
		return "udp", at.app
	}
	if scheme := protocols[strings.ToLower(at.app)]; scheme != "" {
		return scheme, at.app
	}
	name := strings.ToLower(at.name)
	first, _, _ := strings.Cut(name, "-")
	last := name[strings.LastIndexByte(name, '-')+1:]
	for _, word := range []string{name, first, last} {
		if scheme := protocols[word]; scheme != "" {
			return scheme, cmp.Or(at.app, word)
		}
	}
	// In clusters the ports of printers are those of exporters.
	if scheme, app := discovery.SchemeOf(at.number, ""); scheme != "" && app != "jetdirect" {
		return scheme, cmp.Or(at.app, app)
	}
	return "http", at.app
}
