// Package proxy is the HTTP data plane: it takes visitors' requests in HTTP/1.1, HTTP/2 and
// HTTP/3, decides which tunnel and rule they are for and carries them to an origin through a
// stream of one of the tunnel's replicas.
package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/edge/dial"
	_ "github.com/adit-dev/adit/internal/edge/h2connect" // WebSockets over HTTP/2
	"github.com/adit-dev/adit/internal/edge/route"
)

// Config is what a proxy needs. Functions must be safe for concurrent use.
type Config struct {
	// Lookup returns the rules of the tunnel of kind http or tls for a normalized host name on
	// the address the visitor dialled; nil = none.
	Lookup func(local netip.AddrPort, host string) *route.Rules
	// Covers reports whether the certificate served for serverName also covers host. Both are
	// normalized and differ.
	Covers func(serverName, host string) bool
	// Dialer opens streams, Source lists replicas.
	Dialer *dial.Dialer
	// TrustedProxies are peers whose X-Forwarded-* is believed.
	TrustedProxies []netip.Prefix
	// ResponseHeader (60 s) bounds the wait for an answer after the request was sent, BodyIdle
	// (60 s) the wait for the next piece of a body from or to the visitor.
	ResponseHeader time.Duration
	BodyIdle       time.Duration
	// Local serves paths under /.adit/ on tunnels' hosts; nil answers 404.
	Local    http.Handler
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Proxy is an http.Handler for all tunnels of kind http.
type Proxy struct{ cfg Config }

// New returns a proxy.
func New(cfg Config) *Proxy { return &Proxy{cfg: cfg} }

// ServeHTTP serves one request of a visitor.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("unbuilt") }

// CloseTunnel ends the upgraded connections (WebSockets) of a tunnel that was removed, or whose
// access changed, and the idle origin connections kept for it. Plain requests run to their end.
func (p *Proxy) CloseTunnel(tunnelID string) { panic("unbuilt") }

// CloseReplica gives up the idle origin connections through a replica that drains or left.
func (p *Proxy) CloseReplica(replicaID string) { panic("unbuilt") }

// Drain tells upgraded connections that the edge ends (WebSocket close 1001) when ctx ends, then
// closes them. New requests are still served; stopping those is the front's business.
func (p *Proxy) Drain(ctx context.Context) { panic("unbuilt") }

// Close ends everything that is left.
func (p *Proxy) Close() { panic("unbuilt") }
