package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// handler serves what edges open: it dials the declared origin and carries bytes. It belongs to
// the agent, not to a session or a token, so streams outlive changes of either.
type handler struct {
	table   atomic.Pointer[table]
	dialer  *origin.Dialer
	flows   *flowServer
	m       *metrics
	log     *slog.Logger
	running atomic.Int64
	sweep   sweeper
	// onConnection hears of every stream and flow; nil = nobody.
	onConnection func(Connection)

	// onHealth is called when an origin failed, or worked again.
	onHealth func()

	mu     sync.Mutex
	warned map[string]time.Time
	// ill holds the last failure to reach an origin by tunnel id, until one is reached.
	ill map[string]*reason.Error
}

func newHandler(d *origin.Dialer, m *metrics, log *slog.Logger) *handler {
	h := &handler{dialer: d, m: m, log: log, warned: map[string]time.Time{}, ill: map[string]*reason.Error{}, onHealth: func() {}}
	h.flows = newFlowServer(h.udpTarget, d, m, log)
	return h
}

// ServeStream implements link.Handler.
func (h *handler) ServeStream(ctx context.Context, in link.Incoming) {
	h.running.Add(1)
	h.m.streams.Inc()
	defer func() {
		h.running.Add(-1)
		h.m.streams.Dec()
	}()
	hd, start := in.Header(), time.Now()
	if hd.GetForwardTarget() != "" {
		h.forward(ctx, in)
		return
	}
	s, spec, e := h.table.Load().find(hd)
	if e != nil {
		h.refuse(in, s, e)
		return
	}
	c, err := h.dialer.Dial(ctx, spec, hd)
	if err != nil {
		e := reason.Of(err, reason.HopAgent)
		h.setHealth(s.id, e)
		h.refuse(in, s, e)
		return
	}
	h.setHealth(s.id, nil)
	t := newTap(h.onConnection, hd, s, spec, time.Since(start))
	defer t.close()
	st, err := in.Accept(c.ALPN)
	if err != nil {
		c.Abort()
		return
	}
	h.sweep.carry(ctx, st, c, h.m, t)
}

// ServeFlow implements link.Handler.
func (h *handler) ServeFlow(f link.Flow, hd *wirev1.StreamHeader) (func(b []byte), *reason.Error) {
	start := time.Now()
	receive, e := h.flows.ServeFlow(f, hd)
	if h.onConnection != nil {
		s, spec, _ := h.table.Load().find(hd)
		h.onConnection(newConnection(hd, s, spec, time.Since(start), e))
	}
	return receive, e
}

// udpTarget checks the header of a flow. Of a range the port is the one the visitor connected to.
func (h *handler) udpTarget(hd *wirev1.StreamHeader) (udpTarget, *reason.Error) {
	s, spec, e := h.table.Load().find(hd)
	if e != nil {
		return udpTarget{}, e
	}
	t := udpTarget{spec: spec, port: spec.Port, idle: s.idle()}
	if spec.Port == 0 {
		edge, err := netip.ParseAddrPort(hd.GetEdgeAddress())
		if p := uint32(edge.Port()); err != nil || p < s.declared.GetPort() || p > s.declared.GetPortLast() {
			return udpTarget{}, reason.New(reason.OriginDenied, reason.HopAgent, "port %d is not in the range of %s", edge.Port(), s.declared.GetName()).Safe()
		}
		t.port = edge.Port()
	}
	return t, nil
}

func (h *handler) refuse(in link.Incoming, s *service, e *reason.Error) {
	in.Refuse(e)
	h.m.refused(e)
	if h.onConnection != nil {
		h.onConnection(newConnection(in.Header(), s, nil, 0, e))
	}
	if e.Code == reason.ClientClosed {
		return
	}
	if s != nil && h.mayWarn(s.id+string(e.Code)) {
		h.log.Warn("a visitor could not be served", "service", s.declared.GetName(), "reason", e.Code, "detail", e.Refusal().GetDetail())
		return
	}
	h.log.Debug("stream refused", "tunnel", in.Header().GetTunnelId(), "reason", e.Code, "detail", e.Detail)
}

// setHealth notes how the last dial of a service's origin went.
func (h *handler) setHealth(id string, e *reason.Error) {
	if e != nil && e.Code == reason.ClientClosed {
		return
	}
	h.mu.Lock()
	old := h.ill[id]
	if e == nil {
		delete(h.ill, id)
	} else {
		h.ill[id] = e
	}
	h.mu.Unlock()
	if (e == nil) != (old == nil) || e != nil && e.Code != old.Code {
		h.onHealth()
	}
}

// health is the last failure to reach the origin of a service, nil if it was reached or not tried.
func (h *handler) health(id string) *reason.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ill[id]
}

// mayWarn keeps a failing service from filling the log: one line in ten seconds each.
func (h *handler) mayWarn(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Sub(h.warned[key]) < 10*time.Second {
		return false
	}
	if len(h.warned) > 4096 {
		clear(h.warned)
	}
	h.warned[key] = now
	return true
}
