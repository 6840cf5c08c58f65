// Package link carries streams and flows between one agent replica and one edge.
//
// A session is a control connection plus streams (docs/architecture.md, "Sessions"). The edge's
// half is Acceptor and Replica, the agent's is Connector; Stream and Flow are common.
package link

import (
	"context"
	"net"
	"net/netip"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/reason"
)

// Stream is one visitor connection (or one pooled origin connection) of a session. Half-close,
// reset and abort stay distinct on every carrier.
type Stream interface {
	net.Conn
	buffer.Reader
	// CloseWrite ends this side's bytes; the other side reads EOF after the last of them.
	CloseWrite() error
	// Abort ends both directions at once; the other side's reads and writes fail with
	// ErrAborted. Close after both directions ended cleanly is not an abort; Close before is.
	Abort()
}

// Outgoing is a stream that the edge opened. Read waits for the answer and fails with its
// *reason.Error if the agent refused.
type Outgoing interface {
	Stream
	Splicer
	// Answer waits for the agent's answer. A refusal is a *reason.Error.
	Answer(ctx context.Context) (*wirev1.StreamAnswer, error)
}

// Incoming is a stream that the agent was asked to serve; exactly one of Accept and Refuse must
// be called.
type Incoming interface {
	Header() *wirev1.StreamHeader
	// Accept answers ok (with the ALPN agreed with the origin, if any).
	Accept(alpn string) (Stream, error)
	Refuse(e *reason.Error)
}

// Flow is one visitor's UDP exchange with one tunnel. Datagrams may be lost, never reordered
// into another flow, never truncated. Up to 65,507 bytes each.
type Flow interface {
	// Send sends one datagram and never blocks; a full queue drops it (counted). b is copied.
	Send(b []byte) error
	// Queue is Send for one of several datagrams that are there together: it may wait for Flush.
	Queue(b []byte) error
	Flush()
	// AfterBatch sets what is called after the last of several datagrams that were received
	// together, for a receiver that saves work by it.
	AfterBatch(done func())
	// Close ends the flow on both sides.
	Close() error
	// Done is closed when the flow ended: closed by either side, or its replica left.
	Done() <-chan struct{}
	// Refusal is why the agent refused the flow; nil if it did not, or not yet.
	Refusal() *reason.Error
}

// Handler is what an agent does with streams and flows.
type Handler interface {
	// ServeStream runs in a goroutine of its own; ctx ends with the stream or the session. The
	// stream is closed when it returns.
	ServeStream(ctx context.Context, in Incoming)
	// ServeFlow is called once per new flow, before its first datagram. It returns what receives
	// the datagrams (called from one goroutine at a time; b is valid during the call only), or a
	// refusal.
	ServeFlow(f Flow, h *wirev1.StreamHeader) (receive func(b []byte), refusal *reason.Error)
}

// SessionInfo is the state of one session, for status and metrics.
type SessionInfo struct {
	ID       uint64
	Carrier  string // quic, tls, ws
	Path     string // direct
	Remote   netip.AddrPort
	Since    time.Time
	Draining bool
	RTT      time.Duration
	Lanes    int
	Streams  int
}

// Admission is what the edge's snapshot says about an opening's token.
type Admission struct {
	// Credential may be nil: unknown token.
	Credential *hubv1.Credential
	// Refusal, if set, refuses although the proof is good (source network, replica limit, …).
	Refusal *reason.Error
}
