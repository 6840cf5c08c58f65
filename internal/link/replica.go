package link

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// replicaKey tells replicas apart: a replica id counts only together with the node key and the
// token that were proven with it.
type replicaKey struct{ node, replica, token string }

// Replica is one running agent process as this edge sees it, over all its sessions and lanes.
type Replica struct {
	acceptor *Acceptor
	key      replicaKey
	hostName string
	software string
	pair     *pair
	lanes    *lanePool
	raw      *rawPool

	nextStream atomic.Uint64
	stop       context.CancelFunc
	// openings bounds what a replica costs that opens one session after the other.
	openings *rate.Limiter

	// events orders Joined and Left.
	events sync.Mutex

	// Guarded by acceptor.mu.
	lastSession time.Time // when the last session ended; zero while one is up
	silent      bool      // it ended because nothing was heard
	gone        bool
}

func newReplica(a *Acceptor, key replicaKey, o *wirev1.Opening) *Replica {
	r := &Replica{acceptor: a, key: key, hostName: printable(o.HostName), software: printable(o.Software),
		openings: rate.NewLimiter(a.timing.openings, a.timing.openingBurst)}
	r.pair = newPair(r, a.cfg.Log.With("replica", r.ID(), "host", r.hostName), a.timing, a.metrics)
	r.lanes = newLanePool(r, a.cfg.MaxLanes, a.timing.laneShrink)
	r.raw = newRawPool(r)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.pair.goFunc(func() { r.tend(ctx) })
	return r
}

// printable bounds what a peer calls itself: it goes into logs and status.
func printable(name string) string {
	if len(name) > 255 {
		name = name[:255]
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)
}

// ID is the replica id in hex.
func (r *Replica) ID() string { return hex.EncodeToString([]byte(r.key.replica)) }

// TokenID is the token id in hex.
func (r *Replica) TokenID() string { return hex.EncodeToString([]byte(r.key.token)) }

// HostName is what the agent calls its host.
func (r *Replica) HostName() string { return r.hostName }

// Software is the agent's version.
func (r *Replica) Software() string { return r.software }

// Active is the number of streams and flows open now.
func (r *Replica) Active() int64 { return r.pair.active.Load() + r.pair.flows.count() }

// Available reports whether new streams may be opened: a session that does not drain.
func (r *Replica) Available() bool {
	s := r.pair.current()
	return s != nil && !s.draining()
}

// Suspect reports whether the agent may be gone: it was asked for a sign of life and has not given
// one yet. New streams are better opened elsewhere.
func (r *Replica) Suspect() bool {
	s := r.pair.current()
	return s != nil && s.suspect()
}

// Sessions is the state of its sessions.
func (r *Replica) Sessions() []SessionInfo {
	_, n, _ := r.lanes.counts()
	return r.pair.infos(n)
}

// Probe asks the replica's sessions for a sign of life within 3 s and closes those that give
// none.
func (r *Replica) Probe() { r.pair.probe(nil) }

// hasQUIC reports whether a QUIC session takes streams.
func (r *Replica) hasQUIC() bool {
	s := r.pair.current()
	return s != nil && s.qc != nil
}

// Open opens a stream for h (StreamId is set here), carried as policy says, and sends first
// (payload at hand, may be empty) with the header. It does not wait for the answer. An error is
// a *reason.Error, Untouched when nothing was handed to the kernel.
func (r *Replica) Open(ctx context.Context, h *wirev1.StreamHeader, policy hubv1.CarrierPolicy, first []byte) (Outgoing, error) {
	if err := ctx.Err(); err != nil {
		return nil, r.openError(err, "cancelled before a stream was opened").Safe()
	}
	h.StreamId = r.nextStream.Add(1)
	b, err := wire.AppendHeader(make([]byte, 0, 512+len(first)), h)
	if err != nil {
		return nil, reason.Wrap(err, reason.Internal, reason.HopEdge, "stream header").Safe()
	}
	if policy == hubv1.CarrierPolicy_CARRIER_POLICY_RAW {
		if out, err := r.openRaw(ctx, h, first); out != nil || err != nil {
			return out, err
		}
	}
	b = append(b, first...)
	s := r.pair.current()
	idle, _, possible := r.lanes.counts()
	o := offer{idle: idle, lanes: possible}
	if s != nil {
		o.quic, o.tcp = s.qc != nil, s.qc == nil
	}
	switch choose(policy, h.Kind, h.Class, o) {
	case rideNone:
		return nil, reason.New(reason.NoAgent, reason.HopEdge, "no session with the agent on %s; is it running and can it reach this server?", r.hostName).Safe()
	case rideLane, rideQUICAndAsk:
		if out, err := r.openLanes(ctx, h, b); out != nil || err != nil {
			return out, err
		}
		if o.quic {
			return r.openQUIC(ctx, s, h, b)
		}
	case rideQUIC:
		return r.openQUIC(ctx, s, h, b)
	case rideWait:
	}
	return r.openWaiting(ctx, h, b)
}

// openLanes tries idle lanes; nil, nil when there is none that lives.
func (r *Replica) openLanes(ctx context.Context, h *wirev1.StreamHeader, b []byte) (Outgoing, error) {
	for {
		l := r.lanes.take()
		if l == nil {
			return nil, nil
		}
		out, again, err := r.openOn(ctx, l, h, b)
		if !again {
			return out, err
		}
	}
}

// openWaiting waits for the next free lane.
func (r *Replica) openWaiting(ctx context.Context, h *wirev1.StreamHeader, b []byte) (Outgoing, error) {
	wait, cancel := context.WithTimeout(ctx, r.pair.timing.laneWait)
	defer cancel()
	for {
		l := r.lanes.wait(wait)
		if l == nil {
			if err := ctx.Err(); err != nil {
				return nil, r.openError(err, "cancelled while waiting for a lane").Safe()
			}
			return nil, reason.New(reason.NoAgent, reason.HopEdge, "no free lane from the agent on %s within %v; it may have reached --max-lanes or lost its connection", r.hostName, r.pair.timing.laneWait).Safe()
		}
		out, again, err := r.openOn(ctx, l, h, b)
		if !again {
			return out, err
		}
	}
}

// openOn starts a stream on l. again: the lane was dead and nothing left this host.
func (r *Replica) openOn(ctx context.Context, l *lane, h *wirev1.StreamHeader, b []byte) (out Outgoing, again bool, err error) {
	st := newLaneStream(r.pair, l, r.lanes.free)
	if !st.register(h.StreamId) {
		st.kill(ErrLost)
		return nil, false, r.openError(ErrLost, "the edge closes").Safe()
	}
	mark := l.mark()
	stop := context.AfterFunc(ctx, func() { _ = st.SetWriteDeadline(time.Unix(1, 0)) })
	_, err = st.Write(b)
	if !stop() {
		if err == nil {
			st.Abort()
		}
		return nil, false, r.openError(ctx.Err(), "cancelled while the stream was opened")
	}
	if err != nil {
		st.kill(ErrLost)
		if l.untouched(mark) {
			return nil, true, nil
		}
		return nil, false, r.openError(err, "the lane broke")
	}
	return r.outgoing(st, h), false, nil
}

func (r *Replica) openQUIC(ctx context.Context, s *session, h *wirev1.StreamHeader, b []byte) (Outgoing, error) {
	st, err := s.openStream()
	if err != nil {
		return nil, r.openError(err, "no stream on the session").Safe()
	}
	stop := context.AfterFunc(ctx, func() { _ = st.SetWriteDeadline(time.Unix(1, 0)) })
	n, err := st.Write(b)
	if !stop() {
		st.Abort()
		return nil, r.openError(ctx.Err(), "cancelled while the stream was opened")
	}
	if err != nil {
		st.Abort()
		e := r.openError(err, "the session broke")
		e.Untouched = n == 0
		return nil, e
	}
	return r.outgoing(st, h), nil
}

// outgoing wraps a stream that was opened. An answer that is late has the agent asked for a
// sign of life; the stream itself waits on.
func (r *Replica) outgoing(st rawStream, h *wirev1.StreamHeader) Outgoing {
	return newOutgoing(st, r.pair.timing.answer, r.Probe, func() {})
}

func (r *Replica) openError(err error, what string) *reason.Error {
	code := reason.NoAgent
	if errors.Is(err, context.Canceled) {
		code = reason.ClientClosed
	}
	return reason.Wrap(err, code, reason.HopEdge, "agent on %s: %s", r.hostName, what)
}

// tend looks after lanes, drained sessions and the replica's own end.
func (r *Replica) tend(ctx context.Context) {
	t := time.NewTicker(r.pair.timing.tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			r.lanes.tend(now)
			r.raw.tend(now)
			r.closeReplaced(now)
			if r.acceptor.expired(r, now) {
				go r.close(errors.New("the replica left"))
				return
			}
		}
	}
}

// closeReplaced ends sessions that a better one replaced, with their last stream. The edge does
// it, since only the edge opens streams.
func (r *Replica) closeReplaced(now time.Time) {
	for _, s := range r.pair.all() {
		if s.replaced.Load() && (s.streams.Load() == 0 || now.Sub(s.since) > r.pair.timing.drainMax) {
			s.close(errReplaced)
		}
	}
}

var errReplaced = fmt.Errorf("%s: a better session took over", reason.Superseded)

// close ends all sessions and lanes and waits.
func (r *Replica) close(err error) {
	r.stop()
	r.lanes.close()
	r.raw.close()
	r.pair.close(err)
}

// control implements owner.
func (r *Replica) control(s *session, m *wirev1.Control) {
	switch f := m.GetMessage().(type) {
	case *wirev1.Control_Serve:
		verdicts := r.acceptor.cfg.Serve(r, f.Serve.TunnelIds)
		s.send(&wirev1.Control{Message: &wirev1.Control_Served{Served: &wirev1.Served{Sequence: f.Serve.Sequence, Tunnels: verdicts}}})
	case *wirev1.Control_Drain:
		if on := r.acceptor.cfg.Drains; on != nil && !r.Available() {
			on(r)
		}
	case *wirev1.Control_RawAnswer:
		r.rawAnswered(f.RawAnswer)
	case *wirev1.Control_Health:
		if r.acceptor.cfg.Health != nil {
			r.acceptor.cfg.Health(r, f.Health.Tunnels)
		}
	case *wirev1.Control_LaneLimit:
		r.lanes.setLimit(int(min(f.LaneLimit.Lanes, lanesAlone)))
	}
}

// incoming implements owner: only the edge opens streams.
func (r *Replica) incoming(s *session, st rawStream) { st.Abort() }

func (r *Replica) handler() Handler { return nil }

// ended implements owner.
func (r *Replica) ended(s *session) { r.acceptor.sessionEnded(r, s) }
