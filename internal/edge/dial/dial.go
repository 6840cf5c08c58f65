// Package dial opens streams to origins through the replicas of a tunnel's agent: choice of
// replica (least active streams), retry where nothing reached the origin, one error type.
package dial

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// Keep is how much of what was sent is kept for a replay until the agent's answer.
const Keep = 64 << 10

const (
	// defaultWithin is how long the connection to an origin may take.
	defaultWithin = 5 * time.Second
	// onTheWay is what an answer may take beside that. The agent has a limit of its own, and where
	// both are the same its refusal says more than our silence.
	onTheWay = 2 * time.Second
)

// Replica is the part of *link.Replica that dialling needs.
type Replica interface {
	ID() string
	Active() int64
	// Suspect replicas may be gone; they are asked last.
	Suspect() bool
	Open(ctx context.Context, h *wirev1.StreamHeader, policy hubv1.CarrierPolicy, first []byte) (link.Outgoing, error)
	OpenFlow(h *wirev1.StreamHeader, receive func(b []byte)) (link.Flow, error)
}

// Source lists the replicas that serve a tunnel now and take new streams.
type Source interface {
	Replicas(tunnelID string) []Replica
}

// Awaiter is a Source that knows of replicas on their way.
type Awaiter interface {
	// Await waits until a replica serves a tunnel that nobody serves now, and reports whether one
	// does. Where none is expected it does not wait.
	Await(ctx context.Context, t *hubv1.Tunnel) bool
}

// Await is that of the source.
func (d *Dialer) Await(ctx context.Context, t *hubv1.Tunnel) bool {
	w, ok := d.src.(Awaiter)
	return ok && w.Await(ctx, t)
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
	// Replica pins the choice to a replica id; empty = any. Prefer tries a replica first, then
	// the others.
	Replica, Prefer string
	// Forward is the host:port that the agent is asked to dial instead of a tunnel's origin.
	Forward string
}

func (r *Request) header() *wirev1.StreamHeader {
	h := &wirev1.StreamHeader{
		TunnelId: r.Tunnel.GetId(), Origin: r.Origin, Kind: r.Tunnel.GetKind(), Class: r.Class,
		Alpn: r.ALPN, ServerName: r.ServerName, TraceContext: r.TraceContext,
	}
	if r.Forward != "" {
		h.TunnelId, h.ForwardTarget = "", r.Forward
	}
	// An address that is not an IP (a visitor on a unix socket) stays empty.
	if r.Visitor.IsValid() {
		h.VisitorAddress = r.Visitor.String()
	}
	if r.Local.IsValid() {
		h.EdgeAddress = r.Local.String()
	}
	return h
}

// replayable reports whether what failed with err may be tried on another replica after sent
// bytes were given to the first.
func (r *Request) replayable(err *reason.Error, sent int) bool {
	if err.Untouched || sent == 0 {
		return true
	}
	// A ClientHello alone changes nothing at the origin.
	return r.Tunnel.GetKind() == wirev1.Kind_KIND_TLS && sent == len(r.First)
}

// Dialer opens streams.
type Dialer struct {
	src    Source
	within time.Duration
}

// New returns a dialer over src.
func New(src Source) *Dialer { return &Dialer{src: src, within: defaultWithin} }

// Within sets how long the connection to an origin may take; 0 keeps 5 s. It returns d.
func (d *Dialer) Within(limit time.Duration) *Dialer {
	if limit > 0 {
		d.within = limit
	}
	return d
}

// Conn is a stream with what was agreed about it.
type Conn struct {
	link.Stream
	// ReplicaID is the replica that serves it (after Start: the first that took it); ALPN what
	// its https origin chose (after Dial only).
	ReplicaID string
	ALPN      string
}

// Replica is the id of the replica that carries the stream now: after Start a replay may have
// moved it.
func (c *Conn) Replica() string {
	if p, ok := c.Stream.(*pending); ok {
		return p.replicaID()
	}
	return c.ReplicaID
}

// Order returns the replicas that serve a tunnel: those that may be gone last, the least loaded
// first, and equals in random order. A nil load means active streams.
func (d *Dialer) Order(tunnelID string, load func(Replica) int64) []Replica {
	if load == nil {
		load = Replica.Active
	}
	type loaded struct {
		Replica
		suspect int
		load    int64
	}
	rs := d.src.Replicas(tunnelID)
	ls := make([]loaded, len(rs))
	for i, r := range rs {
		ls[i] = loaded{Replica: r, load: load(r)}
		if r.Suspect() {
			ls[i].suspect = 1
		}
	}
	rand.Shuffle(len(ls), func(i, j int) { ls[i], ls[j] = ls[j], ls[i] })
	slices.SortStableFunc(ls, func(a, b loaded) int {
		return cmp.Or(cmp.Compare(a.suspect, b.suspect), cmp.Compare(a.load, b.load))
	})
	out := make([]Replica, len(ls))
	for i, l := range ls {
		out[i] = l.Replica
	}
	return out
}

// NoAgent is the refusal when no replica serves a tunnel.
func NoAgent(t *hubv1.Tunnel) *reason.Error {
	return reason.New(reason.NoAgent, reason.HopEdge,
		"no agent serves %s now; start it, or see its log for why it cannot connect", name(t)).Safe()
}

func name(t *hubv1.Tunnel) string {
	return cmp.Or(t.GetHostname(), t.GetName(), t.GetId())
}

// candidates are the replicas to try, in order.
func (d *Dialer) candidates(r *Request) ([]Replica, *reason.Error) {
	if int(r.Origin) >= len(r.Tunnel.GetOrigins()) {
		return nil, reason.New(reason.OriginUnresolved, reason.HopEdge,
			"tunnel %s has no origin number %d; correct its rules", name(r.Tunnel), r.Origin).Safe()
	}
	rs := d.Order(r.Tunnel.GetId(), nil)
	if r.Replica != "" {
		rs = slices.DeleteFunc(rs, func(x Replica) bool { return x.ID() != r.Replica })
	}
	if len(rs) == 0 {
		return nil, NoAgent(r.Tunnel)
	}
	if i := slices.IndexFunc(rs, func(x Replica) bool { return x.ID() == r.Prefer }); i > 0 {
		preferred := rs[i]
		copy(rs[1:], rs[:i])
		rs[0] = preferred
	}
	return rs, nil
}

// expect is candidates, after a wait for one that is on its way.
func (d *Dialer) expect(ctx context.Context, r *Request) ([]Replica, *reason.Error) {
	rs, refusal := d.candidates(r)
	if refusal != nil && refusal.Code == reason.NoAgent && r.Replica == "" && d.Await(ctx, r.Tunnel) {
		return d.candidates(r)
	}
	return rs, refusal
}

// Dial opens a stream and waits for the agent's answer, trying other replicas after refusals
// that left the origin untouched. The error is a *reason.Error (no_agent when there is none).
func (d *Dialer) Dial(ctx context.Context, r Request) (*Conn, error) {
	rs, refusal := d.expect(ctx, &r)
	if refusal != nil {
		return nil, refusal
	}
	for _, replica := range rs {
		out, err := replica.Open(ctx, r.header(), r.Tunnel.GetCarrierPolicy(), r.First)
		if err == nil {
			var a *wirev1.StreamAnswer
			if a, err = answer(ctx, out, d.within); err == nil {
				return &Conn{Stream: out, ReplicaID: replica.ID(), ALPN: a.GetAlpn()}, nil
			}
			out.Abort()
		}
		refusal = failure(ctx, err)
		if ctx.Err() != nil || !r.replayable(refusal, len(r.First)) {
			break
		}
		if len(r.First) == 0 {
			refusal.Untouched = true // nothing was sent that could have reached it
		}
	}
	return nil, refusal
}

// answer waits for the agent's answer, for as long as it may take.
func answer(ctx context.Context, out link.Outgoing, within time.Duration) (*wirev1.StreamAnswer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within+onTheWay, errSilent)
	defer cancel()
	a, err := out.Answer(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return nil, reason.Wrap(errSilent, reason.OriginTimeout, reason.HopAgent, "the agent did not answer within %v", within+onTheWay)
	}
	if err != nil {
		return nil, err
	}
	if f := a.GetRefusal(); f != nil {
		return nil, reason.FromRefusal(f)
	}
	return a, nil
}

var errSilent = errors.New("no answer")

// failure is err as a fresh *reason.Error. What carries no reason is the loss of the agent.
func failure(ctx context.Context, err error) *reason.Error {
	var e *reason.Error
	if errors.As(err, &e) {
		c := *e
		return &c
	}
	if ctx.Err() != nil {
		return reason.Wrap(err, reason.ClientClosed, reason.HopVisitor, "the visitor went away while the stream was opened")
	}
	return reason.Wrap(err, reason.NoAgent, reason.HopAgent, "the connection to the agent was lost while the stream was opened; try again")
}
