package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// AcceptorConfig is the edge's side of sessions.
type AcceptorConfig struct {
	// Key is the edge's identity.
	Key *identity.NodeKey
	// Admit looks up the token of an opening that comes from remote. The acceptor checks the
	// proof itself.
	Admit func(o *wirev1.Opening, remote netip.AddrPort) Admission
	// Edges is the list given to agents in replies.
	Edges func() []*wirev1.EdgeAddress
	// Serve is called when a replica names the full set of tunnels it serves now; it answers one
	// verdict per id.
	Serve func(r *Replica, tunnelIDs []string) []*wirev1.TunnelVerdict
	// Joined is called with a replica's first session, Left after its last one ended.
	Joined, Left func(r *Replica)
	// MaxLanes caps lanes per replica; 0 = 4096 without QUIC, 256 beside it.
	MaxLanes int
	Log      *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
}

// Acceptor takes the sessions and lanes of agents at one edge.
type Acceptor struct {
	cfg AcceptorConfig
}

// NewAcceptor returns an acceptor; connections are handed to it by the front.
func NewAcceptor(cfg AcceptorConfig) *Acceptor { return &Acceptor{cfg: cfg} }

// TLSConfig is for ALPN adit/1, TCP and QUIC alike: the identity certificate, client
// certificate required, ticket keys of its own.
func (a *Acceptor) TLSConfig() *tls.Config { panic("unbuilt") }

// ServeTLS takes a TCP connection after its handshake: a session or a lane. It returns when the
// connection has been handed over or refused.
func (a *Acceptor) ServeTLS(ctx context.Context, c *tls.Conn) { panic("unbuilt") }

// ServeQUIC takes a QUIC connection under adit/1 and returns when it ends.
func (a *Acceptor) ServeQUIC(ctx context.Context, c *quic.Conn) { panic("unbuilt") }

// ServeHTTP takes GET /.adit/session (WebSocket, subprotocol adit.1): a session or a lane.
func (a *Acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("unbuilt") }

// Recheck asks Admit again for every session's token (after revocations arrived) and closes
// those no longer admitted.
func (a *Acceptor) Recheck(admitted func(tokenID string) *reason.Error) { panic("unbuilt") }

// Replicas returns all live replicas.
func (a *Acceptor) Replicas() []*Replica { panic("unbuilt") }

// BroadcastEdges tells every agent the changed edge list.
func (a *Acceptor) BroadcastEdges(edges []*wirev1.EdgeAddress) { panic("unbuilt") }

// Drain announces that this edge ends: agents open their next sessions elsewhere, running
// streams go on.
func (a *Acceptor) Drain() { panic("unbuilt") }

// Close ends all sessions and waits for their goroutines.
func (a *Acceptor) Close() error { panic("unbuilt") }

// Replica is one running agent process as this edge sees it, over all its sessions and lanes.
type Replica struct{}

// ID is the replica id in hex.
func (r *Replica) ID() string { panic("unbuilt") }

// TokenID is the token id in hex.
func (r *Replica) TokenID() string { panic("unbuilt") }

// HostName is what the agent calls its host. Software is its version.
func (r *Replica) HostName() string { panic("unbuilt") }

// Software is the agent's version.
func (r *Replica) Software() string { panic("unbuilt") }

// Active is the number of streams and flows open now.
func (r *Replica) Active() int64 { panic("unbuilt") }

// Available reports whether new streams may be opened: a session that does not drain.
func (r *Replica) Available() bool { panic("unbuilt") }

// Sessions is the state of its sessions.
func (r *Replica) Sessions() []SessionInfo { panic("unbuilt") }

// Probe asks the replica's sessions for a sign of life within 3 s and closes those that give
// none.
func (r *Replica) Probe() { panic("unbuilt") }

// Open opens a stream for h (StreamId is set here), carried as policy says, and sends first
// (payload at hand, may be empty) with the header. It does not wait for the answer. An error is
// a *reason.Error, Untouched when nothing was handed to the kernel.
func (r *Replica) Open(ctx context.Context, h *wirev1.StreamHeader, policy hubv1.CarrierPolicy, first []byte) (Outgoing, error) {
	panic("unbuilt")
}

// OpenFlow opens a flow; receive gets the datagrams that come back (one goroutine at a time; b
// is valid during the call only).
func (r *Replica) OpenFlow(h *wirev1.StreamHeader, receive func(b []byte)) (Flow, error) {
	panic("unbuilt")
}
