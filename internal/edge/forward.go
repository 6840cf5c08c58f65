package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// maxForwards bounds the forwarded connections of this edge.
	maxForwards = 1024
	// forwarderWait is what the hub's word of a new forwarder may take to get here.
	forwarderWait = 5 * time.Second
	// forwardTo, before the id of an agent, asks the registry for its replicas.
	forwardTo = "forward:"
)

// forwards carries connections of people to targets behind agents. Who may is the hub's word: a
// ticket that it signed, while the feed has the forwarder that the ticket names.
type forwards struct {
	edge *Edge
	tls  *tls.Config

	mu      sync.Mutex
	running map[*carried]struct{}
	// changed is closed when the forwarders of the view did.
	changed chan struct{}
	closed  bool
	wg      sync.WaitGroup
}

// carried is one connection.
type carried struct {
	ticket *hubv1.ForwardTicket
	end    context.CancelFunc
}

func newForwards(e *Edge) *forwards {
	f := &forwards{edge: e, running: map[*carried]struct{}{}, changed: make(chan struct{}), tls: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{e.cfg.Key.Certificate()}, NextProtos: []string{forward.ALPN},
		SessionTicketsDisabled: true,
	}}
	return f
}

// serve takes a connection after its handshake and returns when it carries, or was refused.
func (f *forwards) serve(ctx context.Context, c *tls.Conn) {
	text, err := forward.Accept(c)
	if err != nil {
		f.edge.cfg.Log.Debug("a forward without an opening", "remote", c.RemoteAddr(), "err", err)
		_ = c.Close()
		return
	}
	k, ctx, refusal := f.admit(ctx, text)
	if refusal != nil {
		f.refuse(c, refusal)
		return
	}
	up, err := f.dial(ctx, c, k.ticket)
	if err != nil {
		f.leave(k)
		f.refuse(c, reason.Of(err, reason.HopEdge))
		return
	}
	down, err := forward.Reply(c, nil)
	if err != nil {
		f.leave(k)
		up.Abort()
		_ = c.Close()
		return
	}
	f.edge.cfg.Log.Info("forward opened", "forwarder", k.ticket.GetForwarder(), "agent", k.ticket.GetAgent(), "target", k.ticket.GetTarget(), "remote", c.RemoteAddr())
	go func() {
		defer f.leave(k)
		forward.Carry(ctx, down, up)
	}()
}

func (f *forwards) refuse(c *tls.Conn, e *reason.Error) {
	f.edge.cfg.Log.Info("forward refused", "remote", c.RemoteAddr(), "reason", e.Code, "detail", e.Detail)
	_, _ = forward.Reply(c, e)
	_ = c.Close()
}

// admit checks a ticket and counts the connection until leave. The context ends when the forwarder
// is no more.
func (f *forwards) admit(ctx context.Context, text string) (*carried, context.Context, *reason.Error) {
	no := func(code reason.Code, format string, args ...any) (*carried, context.Context, *reason.Error) {
		return nil, nil, reason.New(code, reason.HopEdge, format, args...).Safe()
	}
	e := f.edge
	t, err := forward.Verify(e.view.Load().settings.GetSigningKeys(), text, e.cfg.Now())
	switch {
	case errors.Is(err, forward.ErrExpired):
		return no(reason.TokenExpired, "the ticket of the forward has expired; open the forward again")
	case err != nil:
		return no(reason.AccessDenied, "the ticket of the forward is not one of this edge's hub")
	case e.draining.Load():
		return no(reason.Draining, "this edge shuts down; connect to another one")
	case e.tooOld() != nil:
		return nil, nil, e.tooOld()
	}
	if !f.known(ctx, t) {
		return no(reason.AccessDenied, "who opened the forward may not forward to this agent any more")
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &carried{ticket: t, end: cancel}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.running) >= maxForwards {
		cancel()
		return no(reason.RateLimited, "this edge carries %d forwarded connections already; close some", len(f.running))
	}
	f.running[k] = struct{}{}
	f.wg.Add(1)
	return k, ctx, nil
}

func (f *forwards) leave(k *carried) {
	k.end()
	f.mu.Lock()
	delete(f.running, k)
	f.mu.Unlock()
	f.wg.Done()
}

// known waits until the view has the forwarder of a ticket: the hub's word of a new one may be on
// its way.
func (f *forwards) known(ctx context.Context, t *hubv1.ForwardTicket) bool {
	limit := time.NewTimer(forwarderWait)
	defer limit.Stop()
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if v := f.edge.view.Load(); v.forwarders[t.GetForwarder()] != nil {
			return v.mayForward(t)
		}
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return false
		case <-changed:
		}
	}
}

// mayForward tells whether the hub still stands by a ticket.
func (v *view) mayForward(t *hubv1.ForwardTicket) bool {
	w := v.forwarders[t.GetForwarder()]
	return w != nil && w.GetAgent() == t.GetAgent()
}

// recheck ends the connections of forwarders that are no more.
func (f *forwards) recheck() {
	v := f.edge.view.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
	for k := range f.running {
		if !v.mayForward(k.ticket) {
			k.end()
		}
	}
}

// close ends all connections and waits for them.
func (f *forwards) close() {
	f.mu.Lock()
	f.closed = true
	for k := range f.running {
		k.end()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// dial opens a stream to the target, at a replica of the agent.
func (f *forwards) dial(ctx context.Context, c net.Conn, t *hubv1.ForwardTicket) (*dial.Conn, error) {
	r := dial.Request{
		Tunnel: &hubv1.Tunnel{
			Id: forwardTo + t.GetAgent(), Name: "the agent", Kind: wirev1.Kind_KIND_TCP, Origins: []*hubv1.Origin{{Url: "tcp://" + t.GetTarget()}},
		},
		Class: wirev1.Class_CLASS_INTERACTIVE, Forward: t.GetTarget(),
	}
	if ap, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		r.Visitor = ap
	}
	return f.edge.dialer.Dial(ctx, r)
}

// replicasOfAgent lists the replicas with a session under any token of an agent.
func (g *registry) replicasOfAgent(agent string) (out []dial.Replica) {
	v := g.edge.view.Load()
	g.mu.RLock()
	defer g.mu.RUnlock()
	for r, m := range g.members {
		if v.owner(r.TokenID()) == agent && r.Available() {
			out = append(out, m.replica)
		}
	}
	return slices.Clip(out)
}
