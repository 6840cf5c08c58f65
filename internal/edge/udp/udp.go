// Package udp is the public side of udp tunnels: a socket per public port, a flow per visitor
// address, replies from the very address the visitor used.
package udp

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
)

// Defaults of Config.
const (
	DefaultIdle         = 120 * time.Second
	DefaultMaxFlows     = 4096
	DefaultMaxPerSource = 64
)

// Config is what all udp tunnels of an edge share.
type Config struct {
	// Source lists the replicas that serve a tunnel now.
	Source dial.Source
	// Address to listen on for tunnels that name none; the zero value is the wildcard.
	Address netip.Addr
	// MaxFlows caps flows per public port, MaxPerSource those of one visitor address (IPv4 /32,
	// IPv6 /64) per public port. 0 = the defaults.
	MaxFlows, MaxPerSource int
	Log                    *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
	// Now is the clock of idle times; nil = time.Now.
	Now func() time.Time
}

// Server holds the public sockets of all udp tunnels of an edge. Their lifetime is the tunnel's:
// from Set to Remove or Close.
type Server struct{ cfg Config }

// New returns a server without tunnels.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Set serves t from now on: new ports are bound, ports it no longer has are closed, everything
// else (bound sockets, running flows) stays as it is. When a port cannot be bound the error is a
// *reason.Error with port_unavailable, the tunnel's new ports are released and what it served
// before goes on.
func (s *Server) Set(t *hubv1.Tunnel) error { panic("unbuilt") }

// Remove closes the tunnel's ports and flows.
func (s *Server) Remove(tunnelID string) { panic("unbuilt") }

// ReplicasChanged moves flows off replicas that left. Call it after Joined, Left and Serve;
// without it a flow moves with its visitor's next datagram.
func (s *Server) ReplicasChanged() { panic("unbuilt") }

// Flows is the number of flows now.
func (s *Server) Flows() int { panic("unbuilt") }

// Close closes all ports and flows and waits for their goroutines.
func (s *Server) Close() error { panic("unbuilt") }
