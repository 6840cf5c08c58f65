package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/outbound"
)

// Statuses of a check.
const (
	StatusOK   = "ok"
	StatusWarn = "warn"
	StatusFail = "FAIL"
)

// Check is one thing that was looked at, and what to do if it is not right.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

const checkTimeout = 5 * time.Second

// Missing looks at what a server on the internet needs from the outside: DNS records, and that
// its own name leads to it. Names that cannot be public need neither.
func (s *Server) Missing(ctx context.Context) []Check {
	if s.hub == nil || !config.CanBePublic(s.cfg.Domain) {
		return nil
	}
	out := []Check{CheckDNS(ctx, s.cfg.HubHost)}
	if s.edge != nil {
		out = append(out, CheckWildcardDNS(ctx, s.cfg.Domain))
	}
	if out[0].Status != StatusOK {
		return out
	}
	addr := strings.TrimPrefix(s.state.HubURL, "https://")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, "443")
	}
	pins := [][]byte{s.hub.Key().Hash()}
	return append(out, CheckHub(ctx, addr, pins), CheckUDP(ctx, addr))
}

// CheckDNS looks for addresses of host.
func CheckDNS(ctx context.Context, host string) Check {
	c := Check{Name: "DNS of " + host, Status: StatusOK}
	if _, err := netip.ParseAddr(host); err == nil {
		c.Detail = "is an address"
		return c
	}
	if local := outbound.Loopback(net.JoinHostPort(host, "0")); local != net.JoinHostPort(host, "0") {
		c.Detail = "is this machine"
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		c.Status, c.Detail = StatusFail, "there is no A or AAAA record"
		c.Remedy = fmt.Sprintf("add an A (and AAAA) record for %s with this server's public address", host)
	case err != nil:
		c.Status, c.Detail = StatusFail, "the resolver gives no answer: "+err.Error()
		c.Remedy = "check the resolver of this machine (/etc/resolv.conf)"
	default:
		c.Detail = strings.Join(addrs, ", ")
	}
	return c
}

// CheckWildcardDNS looks for addresses of some name below domain.
func CheckWildcardDNS(ctx context.Context, domain string) Check {
	label := make([]byte, 6)
	_, _ = rand.Read(label)
	c := CheckDNS(ctx, "adit-check-"+hex.EncodeToString(label)+"."+domain)
	c.Name = "DNS of *." + domain
	if c.Status == StatusFail && strings.HasPrefix(c.Remedy, "add ") {
		c.Status = StatusWarn
		c.Remedy = fmt.Sprintf("add an A (and AAAA) record for *.%s with this server's public address, or one for each hostname of a tunnel", domain)
	}
	return c
}

// CheckHub dials addr and asks for the hub's own protocol; the key must be one of pins, if any.
func CheckHub(ctx context.Context, addr string, pins [][]byte) Check {
	return checkTCP(ctx, addr, opening.ALPNHub, "the hub", pins)
}

// CheckEdge dials addr and asks for the protocol of sessions; the key must be the edge's.
func CheckEdge(ctx context.Context, addr string, keyHash []byte) Check {
	return checkTCP(ctx, addr, opening.ALPNSession, "the edge", [][]byte{keyHash})
}

func checkTCP(ctx context.Context, addr, alpn, who string, pins [][]byte) Check {
	c := Check{Name: "TCP to " + addr, Status: StatusOK}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	start := time.Now()
	conn, err := outbound.Dial(ctx, proxyFromEnvironment, addr)
	if err != nil {
		c.Status, c.Detail = StatusFail, err.Error()
		c.Remedy = "is the server running, and does every firewall on the way let TCP to this port through?"
		return c
	}
	defer conn.Close()
	host, _, _ := net.SplitHostPort(addr)
	tc := &tls.Config{
		ServerName: host, MinVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		// The pinned key decides, whatever certificate visitors get to see.
		InsecureSkipVerify: true,
	}
	if len(pins) > 0 {
		tc.VerifyConnection = identity.VerifyPin(func() [][]byte { return pins })
	}
	t := tls.Client(conn, tc)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Status, c.Detail = StatusFail, fmt.Sprintf("something answers, but it is not %s that was meant: %v", who, err)
		c.Remedy = "does another program, or a proxy that ends TLS, have this port? TLS must reach adit untouched"
		return c
	}
	c.Detail = fmt.Sprintf("%s answers in %s", who, time.Since(start).Round(time.Millisecond))
	return c
}

// CheckUDP asks addr for its QUIC versions, which needs no handshake.
func CheckUDP(ctx context.Context, addr string) Check {
	c := Check{Name: "UDP to " + addr, Status: StatusOK}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	start := time.Now()
	if err := probeQUIC(ctx, outbound.Loopback(addr)); err != nil {
		c.Status, c.Detail = StatusWarn, "no QUIC answer: "+err.Error()
		c.Remedy = "let UDP to this port through every firewall; without it agents and browsers use TCP, which works but is slower under loss"
		return c
	}
	c.Detail = fmt.Sprintf("QUIC answers in %s", time.Since(start).Round(time.Millisecond))
	return c
}

// probeQUIC sends a packet of a version that nobody speaks; a QUIC server answers with the
// versions it does speak (RFC 9000, 6.1).
func probeQUIC(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	packet := make([]byte, 1200)
	_, _ = rand.Read(packet)
	packet[0] |= 0xc0
	copy(packet[1:], []byte{0x1a, 0x2a, 0x3a, 0x4a, 8})
	packet[14] = 8
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		if _, err := conn.Write(packet); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		n, err := conn.Read(buf)
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			continue
		}
		if err != nil {
			return err
		}
		// Version 0, and our connection id as the destination.
		if n > 14 && buf[0]&0x80 != 0 && string(buf[1:5]) == "\x00\x00\x00\x00" && buf[5] == 8 && string(buf[6:14]) == string(packet[15:23]) {
			return nil
		}
	}
	return errors.New("timeout")
}
