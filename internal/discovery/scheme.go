package discovery

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// knownPorts are services whose protocol the port tells, with the scheme of an origin and what is
// spoken. They are not asked: some log whoever says nothing they know, and printers print it.
var knownPorts = map[uint16]struct{ scheme, app string }{
	21: {"tcp", "ftp"}, 22: {"tcp", "ssh"}, 25: {"tcp", "smtp"}, 53: {"tcp", "dns"}, 80: {"http", "http"}, 110: {"tcp", "pop3"}, 111: {"tcp", "rpcbind"},
	139: {"tcp", "smb"}, 143: {"tcp", "imap"}, 443: {"https", "https"}, 445: {"tcp", "smb"}, 465: {"tcp", "smtps"}, 587: {"tcp", "smtp"}, 631: {"http", "ipp"},
	993: {"tcp", "imaps"}, 995: {"tcp", "pop3s"}, 1433: {"tcp", "mssql"}, 1883: {"tcp", "mqtt"}, 2049: {"tcp", "nfs"}, 3306: {"tcp", "mysql"},
	3389: {"tcp", "rdp"}, 5432: {"tcp", "postgresql"}, 5672: {"tcp", "amqp"}, 5900: {"tcp", "vnc"}, 6379: {"tcp", "redis"}, 8443: {"https", "https"},
	8883: {"tcp", "mqtts"}, 9100: {"tcp", "jetdirect"}, 9101: {"tcp", "jetdirect"}, 9102: {"tcp", "jetdirect"}, 11211: {"tcp", "memcached"}, 25565: {"tcp", "minecraft"}, 27017: {"tcp", "mongodb"},
}

// knownPrograms tell the protocol at whatever port they listen.
var knownPrograms = map[string]string{
	"sshd": "ssh", "postgres": "postgresql", "mysqld": "mysql", "mariadbd": "mysql", "redis-server": "redis", "valkey-server": "redis",
	"mongod": "mongodb", "mosquitto": "mqtt", "memcached": "memcached", "named": "dns", "dnsmasq": "dns", "smbd": "smb", "rpcbind": "rpcbind",
}

// SchemeOf is what port and program (empty = unknown) tell of a TCP service: the scheme of its origin
// (http, https or tcp) and what is spoken. An empty scheme = nothing is known.
func SchemeOf(port uint16, program string) (scheme, app string) {
	if app := knownPrograms[program]; app != "" {
		return "tcp", app
	}
	if strings.HasPrefix(program, "sshd") {
		return "tcp", "ssh"
	}
	k := knownPorts[port]
	return k.scheme, k.app
}

// sniffTime bounds what a service has to answer.
const sniffTime = 300 * time.Millisecond

// Sniff tells http, https or tcp by what a service answers to the beginning of an HTTP request: a
// TLS server answers it with an alert, or in words that HTTP clients understand.
func Sniff(ctx context.Context, at netip.AddrPort) string {
	d := net.Dialer{Timeout: sniffTime}
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return "tcp"
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(sniffTime))
	if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nUser-Agent: adit-discovery\r\nConnection: close\r\n\r\n"); err != nil {
		return "tcp"
	}
	b := make([]byte, 1024)
	n, _ := io.ReadAtLeast(c, b, 5)
	return spoken(b[:n])
}

// spoken reads the beginning of an answer.
func spoken(b []byte) string {
	text := strings.ToLower(string(b))
	switch {
	case len(b) >= 3 && b[0] == 0x15 && b[1] == 3:
		return "https"
	case strings.HasPrefix(text, "http/1.") && (strings.Contains(text, "to an https server") || strings.Contains(text, "sent to https port") || strings.Contains(text, "speaking plain http to an ssl")):
		return "https"
	case strings.HasPrefix(text, "http/1."):
		return "http"
	}
	return "tcp"
}

// Label makes a name one that would do for a tunnel; empty if nothing of it would.
func Label(name string) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	for strings.Contains(s, "--") {
		s = strings.ReplaceAll(s, "--", "-")
	}
	if len(s) > 63 {
		s = s[:63]
	}
	return strings.Trim(s, "-")
}
