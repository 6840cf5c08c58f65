// Package origin dials the services that an agent exposes: target guard, both address families,
// TLS, PROXY header, errors that say which attempt failed and why.
package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// Schemes of origins.
const (
	SchemeHTTP  = "http"
	SchemeHTTPS = "https"
	SchemeH2C   = "h2c"
	SchemeTCP   = "tcp"
	SchemeTLS   = "tls"
	SchemeUDP   = "udp"
)

var defaultPorts = map[string]uint16{SchemeHTTP: 80, SchemeH2C: 80, SchemeHTTPS: 443, SchemeTCP: 0, SchemeTLS: 0, SchemeUDP: 0}

// Config says what may be dialled and how.
type Config struct {
	// Allow and Deny are target patterns: an address, a network, a host name or *.name, each with
	// an optional :port or :first-last. With Allow set, all else is refused.
	Allow, Deny []string
	// AllowForward are the targets that forwards may have, beside what Allow and Deny say; none =
	// there are no forwards.
	AllowForward []string
	// Timeout bounds a dial with its TLS handshake (5 s). KeepAlive is for idle TCP (30 s).
	Timeout, KeepAlive time.Duration
	// RootsPEM are CA certificates trusted for https and tls origins beside the system's.
	RootsPEM []byte
	// Getenv reads the environment that Kubernetes gives a Pod; nil = os.Getenv.
	Getenv func(string) string
	// Cluster and Node tell more of the cluster than the environment does; nil = nobody does. Node
	// is about the addresses of the agent's own node.
	Cluster Cluster
	Node    func(netip.Addr) bool
	// Lookup resolves names; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]net.IPAddr, error)
	// Log hears of every dial at debug level; nil = nobody.
	Log *slog.Logger
}

// Spec is one origin, ready to be dialled.
type Spec struct {
	// Scheme is one of the Scheme constants.
	Scheme string
	Host   string
	// Port is 0 for a UDP range, whose datagrams go to the port the visitor used.
	Port uint16
	// ServerName is sent and verified where TLS is spoken; empty = Host.
	ServerName         string
	InsecureSkipVerify bool
	// Proxy is the PROXY protocol version: 0 (none), 1 or 2.
	Proxy byte
	// Roots are what TLS verifies the origin with instead of the agent's own; nil = those.
	Roots *x509.CertPool
	// sessions are TLS sessions that were verified with Roots.
	sessions tls.ClientSessionCache
	// Declared is true for origins of the agent's own configuration: they may be on loopback in
	// Kubernetes too (sidecars).
	Declared bool
	// Forward is true for the target of a forward: AllowForward must name it.
	Forward bool
}

// Parse reads an origin in its canonical form, scheme://host:port.
func Parse(o *hubv1.Origin) (*Spec, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("origin %q: %s", o.GetUrl(), fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(o.GetUrl())
	if err != nil {
		return nil, bad("is not scheme://host:port")
	}
	s := &Spec{Scheme: u.Scheme, Host: u.Hostname(), ServerName: o.GetServerName(), InsecureSkipVerify: o.GetInsecureSkipVerify()}
	def, known := defaultPorts[u.Scheme]
	switch {
	case !known:
		return nil, bad("scheme %q is not known; use http, https, h2c, tcp, tls or udp", u.Scheme)
	case s.Host == "":
		return nil, bad("has no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return nil, bad("is more than scheme://host:port")
	}
	s.Port = def
	if p := u.Port(); p != "" {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil || v == 0 && s.Scheme != SchemeUDP {
			return nil, bad("port %q is not a number from 1 to 65535", p)
		}
		s.Port = uint16(v)
	}
	if s.Port == 0 && s.Scheme != SchemeUDP {
		return nil, bad("has no port")
	}
	if len(o.GetCaPem()) > 0 {
		s.Roots, s.sessions = x509.NewCertPool(), tls.NewLRUClientSessionCache(16)
		if !s.Roots.AppendCertsFromPEM(o.GetCaPem()) {
			return nil, bad("its CA holds no PEM certificate")
		}
	}
	switch o.GetProxyProtocol() {
	case "", "none":
	case "v1":
		s.Proxy = 1
	case "v2":
		s.Proxy = 2
	default:
		return nil, bad("proxy_protocol %q is not known; use none, v1 or v2", o.GetProxyProtocol())
	}
	return s, nil
}

// TLS reports whether the agent speaks TLS to this origin.
func (s *Spec) TLS() bool { return s.Scheme == SchemeHTTPS || s.Scheme == SchemeTLS }

// String is the origin as people write it: that of a range of ports names none.
func (s *Spec) String() string {
	return s.Scheme + "://" + strings.TrimSuffix(hostPort(s), ":0")
}

// Dialer dials origins. It is safe for concurrent use.
type Dialer struct {
	cfg      Config
	guard    *guard
	roots    *x509.CertPool
	sessions tls.ClientSessionCache
}

// New checks the patterns and certificates of cfg and returns a dialler.
func New(cfg Config) (*Dialer, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.KeepAlive <= 0 {
		cfg.KeepAlive = 30 * time.Second
	}
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Lookup == nil {
		cfg.Lookup = net.DefaultResolver.LookupIPAddr
	}
	g, err := newGuard(cfg)
	if err != nil {
		return nil, err
	}
	d := &Dialer{cfg: cfg, guard: g, sessions: tls.NewLRUClientSessionCache(256)}
	if len(cfg.RootsPEM) > 0 {
		// A machine without a system store still trusts what it was told to.
		if d.roots, err = x509.SystemCertPool(); err != nil {
			d.roots = x509.NewCertPool()
		}
		if !d.roots.AppendCertsFromPEM(cfg.RootsPEM) {
			return nil, errors.New("the CA file for origins holds no PEM certificate; give it a file with BEGIN CERTIFICATE blocks")
		}
	}
	return d, nil
}

// Conn is a connection to an origin.
type Conn struct {
	net.Conn
	// ALPN is what the origin chose, if TLS was spoken with an offer.
	ALPN string
	raw  *headedConn
}

// CloseWrite ends this side's bytes.
func (c *Conn) CloseWrite() error {
	if t, ok := c.Conn.(*tls.Conn); ok {
		return t.CloseWrite()
	}
	return c.raw.CloseWrite()
}

// Abort closes with a reset, so that the origin can tell it from an end.
func (c *Conn) Abort() {
	_ = c.raw.tcp.SetLinger(0)
	_ = c.raw.tcp.Close()
}

// Socket is the TCP connection for copying within the kernel, after what waits to be sent first;
// nil where the origin speaks TLS.
func (c *Conn) Socket() *net.TCPConn {
	if _, ok := c.Conn.(*headedConn); !ok || c.raw.flush() != nil {
		return nil
	}
	return c.raw.tcp
}

// WriteFailed tells c that a write to Socket failed.
func (c *Conn) WriteFailed(err error) { c.raw.noteFailure(err) }

// Dial connects to a TCP or TLS origin for the stream of h, whose addresses fill the PROXY header
// and whose ALPN is offered. The error is a *reason.Error; nothing of the visitor's has reached
// the origin then.
func (d *Dialer) Dial(ctx context.Context, s *Spec, h *wirev1.StreamHeader) (*Conn, error) {
	head, err := proxyHeader(s.Proxy, h)
	if err != nil {
		return nil, reason.Wrap(err, reason.Internal, reason.HopAgent, "PROXY header").Safe()
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	start := time.Now()
	tcp, rerr := d.dialTCP(ctx, s)
	if rerr != nil {
		d.cfg.Log.Debug("origin not reached", "origin", s, "took", time.Since(start), "reason", rerr.Code, "detail", rerr.Detail)
		return nil, clientGone(caller, rerr)
	}
	if d.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		d.cfg.Log.Debug("origin connected", "origin", s, "address", tcp.RemoteAddr(), "took", time.Since(start))
	}
	raw := &headedConn{tcp: tcp, head: head}
	c := &Conn{Conn: raw, raw: raw}
	if s.TLS() {
		t, rerr := d.handshake(ctx, s, raw, h.GetAlpn())
		if rerr != nil {
			_ = tcp.Close()
			return nil, clientGone(caller, rerr)
		}
		c.Conn, c.ALPN = t, t.ConnectionState().NegotiatedProtocol
		return c, nil
	}
	if k := h.GetKind(); k != wirev1.Kind_KIND_TLS && k != wirev1.Kind_KIND_HTTP {
		// The server may speak first, and it waits for the header. Where the visitor's side always
		// speaks first, the header goes with its first bytes.
		if err := raw.flush(); err != nil {
			_ = tcp.Close()
			return nil, reason.Wrap(err, reason.OriginRefused, reason.HopOrigin, "%s closed the connection before the PROXY header", s).Safe()
		}
	}
	return c, nil
}

// DialUDP connects a socket to a UDP origin; port is used where the spec has none (a range). The
// error is a *reason.Error.
func (d *Dialer) DialUDP(ctx context.Context, s *Spec, port uint16) (*net.UDPConn, error) {
	target := *s
	if target.Port == 0 {
		target.Port = port
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	addrs, rerr := d.resolve(ctx, &target)
	if rerr != nil {
		return nil, rerr
	}
	// A UDP connect sends nothing, so the first address that has a route is taken; of localhost
	// that is IPv4.
	var tried attempts
	for _, a := range addrs {
		if e := d.guard.check(&target, a.Addr()); e != nil {
			tried.add(a, e)
			continue
		}
		c, err := (&net.Dialer{Control: d.guard.control(&target)}).DialContext(ctx, "udp", a.String())
		if err != nil {
			tried.add(a, err)
			continue
		}
		return c.(*net.UDPConn), nil
	}
	return nil, tried.error(&target)
}

// clientGone replaces e where the caller gave up: then nobody waits for the reason.
func clientGone(ctx context.Context, e *reason.Error) *reason.Error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return reason.Wrap(ctx.Err(), reason.ClientClosed, reason.HopAgent, "the stream ended while its origin was dialled").Safe()
	}
	return e
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
