// Package origin dials the services that an agent exposes: target guard, both address families,
// TLS, PROXY header, errors that say which attempt failed and why.
package origin

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Config says what may be dialled and how.
type Config struct {
	// Allow and Deny are target patterns: an address, a network, a host name or *.name, each with
	// an optional :port or :first-last. With Allow set, all else is refused.
	Allow, Deny []string
	// Timeout bounds a dial with its TLS handshake (5 s). KeepAlive is for idle TCP (30 s).
	Timeout, KeepAlive time.Duration
	// Roots are trusted for https and tls origins beside the system's; nil = system only.
	Roots *x509.CertPool
	// Getenv reads the environment that Kubernetes gives a Pod; nil = os.Getenv.
	Getenv func(string) string
	// Lookup resolves names; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]net.IPAddr, error)
	Log    *slog.Logger
}

// Spec is one origin, ready to be dialled.
type Spec struct {
	// Scheme is http, https, h2c, tcp, tls or udp.
	Scheme string
	Host   string
	// Port is 0 for a UDP range, whose datagrams go to the port the visitor used.
	Port uint16
	// ServerName is sent and verified where TLS is spoken.
	ServerName         string
	InsecureSkipVerify bool
	// Proxy is the PROXY protocol version: 0 (none), 1 or 2.
	Proxy byte
	// Declared is true for origins of the agent's own configuration: they may be on loopback in
	// Kubernetes too (sidecars).
	Declared bool
}

// Parse reads an origin in its canonical form, scheme://host:port.
func Parse(o *hubv1.Origin) (*Spec, error) { panic("unbuilt") }

// Dialer dials origins.
type Dialer struct{ cfg Config }

// New checks the patterns and returns a dialler.
func New(cfg Config) (*Dialer, error) { return &Dialer{cfg: cfg}, nil }

// Conn is a connection to an origin.
type Conn struct {
	net.Conn
	// ALPN is what the origin chose, if TLS was spoken with an offer.
	ALPN string
}

// CloseWrite ends this side's bytes.
func (c *Conn) CloseWrite() error { panic("unbuilt") }

// Abort closes with a reset.
func (c *Conn) Abort() { panic("unbuilt") }

// Dial connects to a TCP or TLS origin for the stream of h, whose addresses fill the PROXY header
// and whose ALPN is offered. The error is a *reason.Error.
func (d *Dialer) Dial(ctx context.Context, s *Spec, h *wirev1.StreamHeader) (*Conn, error) {
	panic("unbuilt")
}

// DialUDP connects a socket to a UDP origin; port is used where the spec has none (a range). The
// error is a *reason.Error.
func (d *Dialer) DialUDP(ctx context.Context, s *Spec, port uint16) (*net.UDPConn, error) {
	panic("unbuilt")
}
