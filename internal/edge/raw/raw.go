// Package raw carries visitor connections of kinds tls and tcp: bytes between the visitor and a
// stream to the origin, both ways, with ends and aborts kept apart.
package raw

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/limits"
	"github.com/adit-dev/adit/internal/reason"
)

// Config is what a server needs.
type Config struct {
	Dialer *dial.Dialer
	// HalfClosed (5 min) ends a connection of which one direction has ended when nothing moves in
	// the other.
	HalfClosed time.Duration
	// MaxPerTunnel caps connections of one tunnel; 0 = none.
	MaxPerTunnel int
	// Done is called with what became of each connection of a tunnel: ok, or the reason why it
	// failed; nil = nobody asks.
	Done func(tunnelID string, result reason.Code)
	// Connections counts connections by kind and result; nil = not counted.
	Connections *prometheus.CounterVec
	Log         *slog.Logger
}

// Server carries connections.
type Server struct {
	cfg       Config
	perTunnel *limits.Counter[string]

	mu   sync.Mutex
	open map[string]map[*carriage]struct{}
	// sweeper runs while there are connections.
	sweeper *time.Timer
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.HalfClosed <= 0 {
		cfg.HalfClosed = 5 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, perTunnel: limits.NewCounter[string](cfg.MaxPerTunnel), open: map[string]map[*carriage]struct{}{}}
}

// Serve carries c, a visitor of e's tunnel, until both directions ended, and closes it. The end
// of ctx resets it, as does everything that keeps it from the origin.
func (s *Server) Serve(ctx context.Context, c *front.Conn, e *route.Entry) {
	k := &carriage{visitor: c, tunnel: e.Tunnel, idle: s.cfg.HalfClosed}
	begin := time.Now()
	err := s.carry(ctx, k, e)
	result := "ok"
	if err != nil {
		_ = c.Reset()
		result = string(err.Code)
	} else {
		_ = c.Close()
	}
	s.note(ctx, k, result, time.Since(begin), err)
}

// note counts and logs a connection that ended.
func (s *Server) note(ctx context.Context, k *carriage, result string, took time.Duration, err *reason.Error) {
	kind := kindName(k.tunnel.GetKind())
	if s.cfg.Connections != nil {
		s.cfg.Connections.WithLabelValues(kind, result).Inc()
	}
	if s.cfg.Done != nil {
		s.cfg.Done(k.tunnel.GetId(), reason.Code(result))
	}
	if s.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		s.cfg.Log.Debug("connection ended", "kind", kind, "tunnel", k.tunnel.GetId(), "name", k.tunnel.GetName(),
			"visitor", k.visitor.Visitor(), "replica", k.replica, "received", k.in.Load(), "sent", k.out.Load(),
			"duration", took, "reason", result, "err", errOrNil(err))
	}
}

func errOrNil(err *reason.Error) error {
	if err == nil {
		return nil
	}
	return err
}

func kindName(k wirev1.Kind) string {
	if k == wirev1.Kind_KIND_TLS {
		return "tls"
	}
	return "tcp"
}

// carry stays below the copying for as long as that lasts, so what takes stack is done in calls of
// their own: the stack of a silent connection shrinks to what its frames need.
func (s *Server) carry(ctx context.Context, k *carriage, e *route.Entry) *reason.Error {
	if refusal := s.admit(e.Tunnel); refusal != nil {
		return refusal
	}
	defer s.perTunnel.Release(e.Tunnel.GetId())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.cancel = cancel
	s.track(k)
	defer s.forget(k)
	if refusal := s.connect(ctx, k, e); refusal != nil {
		return refusal
	}
	err := k.run(ctx)
	k.replica = k.stream.Replica()
	return err
}

// admit takes a place of t's cap, for who may have one.
func (s *Server) admit(t *hubv1.Tunnel) *reason.Error {
	if !access.Open(t.GetAccess()) {
		return reason.New(reason.AccessDenied, reason.HopEdge, "%s is not public; a tunnel of its kind has no sign-in, so nobody gets in", t.GetName())
	}
	if !s.perTunnel.Acquire(t.GetId()) {
		return reason.New(reason.RateLimited, reason.HopEdge, "%s has %d connections, its cap; raise --max-connections-per-tunnel", t.GetName(), s.cfg.MaxPerTunnel)
	}
	return nil
}

// connect opens the stream of k.
func (s *Server) connect(ctx context.Context, k *carriage, e *route.Entry) *reason.Error {
	origin, refusal := chooseOrigin(e)
	if refusal != nil {
		return refusal
	}
	r := dial.Request{
		Tunnel: e.Tunnel, Origin: origin, Visitor: k.visitor.Visitor(), Local: k.visitor.Local(),
		ServerName: k.visitor.ServerName, First: k.visitor.Take(),
	}
	if len(r.First) == 0 && e.Tunnel.GetKind() == wirev1.Kind_KIND_TCP {
		b := firstBytes.Get().(*[firstSize]byte)
		defer firstBytes.Put(b)
		r.First = b[:k.atHand(b[:])]
	}
	stream, err := s.cfg.Dialer.Start(ctx, r)
	if err != nil {
		return reason.Of(err, reason.HopEdge)
	}
	k.in.Add(int64(len(r.First)))
	k.stream, k.replica = stream, stream.ReplicaID
	return nil
}

// firstSize is how much of what a visitor has sent already goes with the header of its stream.
const firstSize = 4 << 10

var firstBytes = sync.Pool{New: func() any { return new([firstSize]byte) }}

func chooseOrigin(e *route.Entry) (uint32, *reason.Error) {
	rule := e.Rules().First()
	if rule == nil {
		return 0, reason.New(reason.OriginUnresolved, reason.HopEdge, "tunnel %s has no rule; give it an origin", e.Tunnel.GetName()).Safe()
	}
	return rule.Origin(nil)
}

func (s *Server) track(k *carriage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := k.tunnel.GetId()
	if s.open[id] == nil {
		s.open[id] = map[*carriage]struct{}{}
	}
	s.open[id][k] = struct{}{}
	if s.sweeper == nil {
		s.sweeper = time.AfterFunc(sweepEvery, s.sweep)
	}
}

func (s *Server) forget(k *carriage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := k.tunnel.GetId()
	if delete(s.open[id], k); len(s.open[id]) == 0 {
		delete(s.open, id)
	}
}

// CloseTunnel resets the connections of a tunnel that was removed or that admits nobody any more.
func (s *Server) CloseTunnel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.open[id] {
		k.cancel()
	}
}

// Active is the number of connections carried now.
func (s *Server) Active() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ks := range s.open {
		n += len(ks)
	}
	return n
}

// endOf is why a carriage ended before both directions did.
func endOf(ctx context.Context, err error) *reason.Error {
	var e *reason.Error
	switch {
	case errors.As(err, &e):
		return e
	case ctx.Err() != nil:
		return reason.Wrap(context.Cause(ctx), reason.Draining, reason.HopEdge, "the connection was ended here")
	default:
		return reason.Wrap(err, reason.ClientClosed, reason.HopVisitor, "the connection was aborted")
	}
}
