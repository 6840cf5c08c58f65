// Package dial opens streams to origins through the replicas of a tunnel's agent: choice of
// replica (least active streams), retry where nothing reached the origin, one error type.
package dial

import (
	"context"
	"net/netip"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
)

// Replica is the part of *link.Replica that dialling needs.
type Replica interface {
	ID() string
	Active() int64
	Open(ctx context.Context, h *wirev1.StreamHeader, policy hubv1.CarrierPolicy, first []byte) (link.Outgoing, error)
	OpenFlow(h *wirev1.StreamHeader, receive func(b []byte)) (link.Flow, error)
}

// Source lists the replicas that serve a tunnel now and take new streams.
type Source interface {
	Replicas(tunnelID string) []Replica
}

// Request is one stream to open.
type Request struct {
	Tunnel *hubv1.Tunnel
	// Origin is an index into Tunnel.Origins.
	Origin uint32
	Class  wirev1.Class
	// ALPN offered to an https origin.
	ALPN []string
	// Visitor and Local are the resolved visitor address and the address it dialled.
	Visitor, Local netip.AddrPort
	ServerName     string
	TraceContext   string
	// First is payload at hand (a ClientHello).
	First []byte
	// Replica pins the choice to a replica id; empty = any.
	Replica string
}

// Dialer opens streams.
type Dialer struct{ src Source }

// New returns a dialer over src.
func New(src Source) *Dialer { return &Dialer{src: src} }

// Conn is a stream with what was agreed about it.
type Conn struct {
	link.Stream
	// ReplicaID is the replica that serves it; ALPN what its https origin chose.
	ReplicaID string
	ALPN      string
}

// Dial opens a stream and waits for the agent's answer, trying other replicas after refusals
// that left the origin untouched. The error is a *reason.Error (no_agent when there is none).
func (d *Dialer) Dial(ctx context.Context, r Request) (*Conn, error) { panic("unbuilt") }

// Start opens a stream without waiting: what is written (up to 64 KiB) is kept until the answer
// and replayed on another replica if the first left the origin untouched; more blocks until the
// answer. Read reports a final refusal as *reason.Error.
func (d *Dialer) Start(ctx context.Context, r Request) (*Conn, error) { panic("unbuilt") }
