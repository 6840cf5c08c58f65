package link

import (
	"context"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/opening"
)

// Carrier names.
const (
	CarrierQUIC = "quic"
	CarrierTLS  = "tls"
	CarrierWS   = "ws"
)

// ConnectorConfig is the agent's side of the link to one edge.
type ConnectorConfig struct {
	Dialler *opening.Dialler
	// Edge is where to dial and which key to expect.
	Edge *wirev1.EdgeAddress
	// HubHost makes the SNI <edge-id>.edge.<hub-host>.
	HubHost string
	// Carriers in order of preference; empty = quic, tls, ws.
	Carriers []string
	// Proxy is used by tls and ws; nil = none (the caller reads HTTPS_PROXY).
	Proxy   func(target *url.URL) (*url.URL, error)
	Handler Handler
	// MaxLanes caps lanes; 0 = as the edge asks, never above a quarter of the descriptor limit.
	MaxLanes int
	// OnEdges is called with the edge list an edge answered.
	OnEdges func([]*wirev1.EdgeAddress)
	// OnServed is called with verdicts about Serve.
	OnServed func([]*wirev1.TunnelVerdict)
	// OnState is called after every change of Sessions or LastError.
	OnState func()
	Log     *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
}

// Connector keeps a session with one edge alive: dials the carriers with a head start for the
// better ones, reconnects for ever with full jitter, moves to a better carrier by make before
// break.
type Connector struct {
	cfg ConnectorConfig
}

// NewConnector returns a connector that Run makes work.
func NewConnector(cfg ConnectorConfig) *Connector { return &Connector{cfg: cfg} }

// Run connects and reconnects until ctx ends, then closes everything and waits.
func (c *Connector) Run(ctx context.Context) { panic("unbuilt") }

// Serve sets the full set of tunnel ids this replica serves; sent now and with every session.
func (c *Connector) Serve(tunnelIDs []string) { panic("unbuilt") }

// Drain announces that this replica ends. Running streams go on; Run's context ends them.
func (c *Connector) Drain() { panic("unbuilt") }

// Active is the number of streams and flows running now.
func (c *Connector) Active() int64 { panic("unbuilt") }

// Sessions is the state of its sessions; empty when none is up.
func (c *Connector) Sessions() []SessionInfo { panic("unbuilt") }

// LastError is why the last dial failed (a *reason.Error where the peer said), nil after success.
func (c *Connector) LastError() (error, time.Time) { panic("unbuilt") }
