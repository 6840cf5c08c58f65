package edge

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/limits"
)

// Config is what an edge needs to know. Listeners on 443 and 80 are bound before it is made, so
// that Address holds real ports.
type Config struct {
	// Key is the edge's identity (<data-dir>/edge.key).
	Key *identity.NodeKey
	// Feed brings what the hub says.
	Feed Feed
	// Address is where agents dial this edge, and only this edge; reported to the hub.
	Address *wirev1.EdgeAddress
	// HubHost is the hub's name; <id>.edge.<hub-host> is this edge's.
	HubHost string
	// OwnNames are further names of this process (the hub host where the hub runs here, host
	// names of Address); they win over tunnels.
	OwnNames []string
	// OwnHTTP serves requests for own names, except sessions; nil answers no_route.
	OwnHTTP http.Handler
	// Certificate is asked when the feed has no certificate for a name that is served, and for
	// acme-tls/1; nil = none. It returns nil, nil for "none".
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Challenge answers ACME HTTP-01 on port 80 and reports whether it did; nil = none.
	Challenge func(http.ResponseWriter, *http.Request) bool
	// HTTPSPort is where port 80 redirects to; 0 = 443.
	HTTPSPort uint16
	// HTTPPort is the port of the plain HTTP listener, where a tunnel may have its host served in
	// clear text as on its other clear HTTP ports; 0 = there is no such listener.
	HTTPPort uint16
	// ServeClear takes a connection to a clear HTTP port of tunnels; nil resets it.
	ServeClear func(c net.Conn, port uint16)
	// ListenHost is the address that raw ports are bound on; empty = all.
	ListenHost string
	// Conns are the caps on visitor connections that front and raw ports share.
	Conns *limits.Conns
	// MaxConnsPerTunnel caps visitor connections of one tunnel; 0 = 8192.
	MaxConnsPerTunnel int
	// ProxyFrom are peers of raw ports that must send a PROXY header.
	ProxyFrom []netip.Prefix
	// TrustedProxies are peers whose X-Forwarded-* is believed.
	TrustedProxies []netip.Prefix
	// HalfClosedTimeout (5 min) ends a connection of which one direction has ended, when nothing
	// moves in the other.
	HalfClosedTimeout time.Duration
	// DialTimeout (5 s) bounds the wait for the agent to connect to an origin; BodyIdleTimeout
	// (60 s) and ResponseHeaderTimeout (60 s) bound HTTP.
	BodyIdleTimeout, DialTimeout, ResponseHeaderTimeout time.Duration
	// SnapshotPath is the sealed copy of the feed on disk; empty = none (the hub is in this
	// process). SecretKey (32 bytes) seals it.
	SnapshotPath string
	SecretKey    []byte
	// MaxSnapshotAge stops taking new sessions when the hub was not heard for so long; 0 = never.
	MaxSnapshotAge time.Duration
	// Software is the version, for status.
	Software string
	// ReportInterval (5 s), ReconnectMin (1 s) and ReconnectMax (10 s) pace the exchange with the
	// hub: edges are few, and what people change waits for them. RetryPort (10 s) tries a busy port again.
	ReportInterval, ReconnectMin, ReconnectMax, RetryPort time.Duration
	// StandbyWait (4 s) is how long the opening of a second process of an enrolment waits for the
	// holder to go: longer than a probe, shorter than the dialler's patience.
	StandbyWait time.Duration
	// Now is the clock; nil = time.Now.
	Now      func() time.Time
	Log      *slog.Logger
	Registry prometheus.Registerer
}

func (c *Config) check() error {
	switch {
	case c.Key == nil:
		return errors.New("edge: no identity key")
	case c.Feed == nil:
		return errors.New("edge: no feed")
	case c.SnapshotPath != "" && len(c.SecretKey) != 32:
		return errors.New("edge: a snapshot on disk needs a secret key of 32 bytes")
	}
	return nil
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.ReportInterval, 5*time.Second)
	def(&c.ReconnectMin, time.Second)
	def(&c.ReconnectMax, 10*time.Second)
	def(&c.RetryPort, 10*time.Second)
	def(&c.StandbyWait, 4*time.Second)
	if c.HTTPSPort == 0 {
		c.HTTPSPort = 443
	}
	if c.MaxConnsPerTunnel <= 0 {
		c.MaxConnsPerTunnel = 8192
	}
	if c.Conns == nil {
		c.Conns = limits.NewConns(0, 0)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Address == nil {
		c.Address = &wirev1.EdgeAddress{Id: c.Key.ID(), KeyHash: c.Key.Hash()}
	}
}
