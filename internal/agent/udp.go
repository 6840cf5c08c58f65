package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// defaultUDPIdle is how long a flow lives without datagrams.
	defaultUDPIdle = 120 * time.Second
	// maxUDPFlows bounds the sockets of all flows of an agent, beside a quarter of the descriptors
	// it may have.
	maxUDPFlows = 16384
	// udpPending and udpPendingBytes bound what waits for the origin to be dialled.
	udpPending      = 1024
	udpPendingBytes = 1 << 20
	// udpRedialFirst and udpRedialLongest pace dials of an origin that cannot be reached.
	udpRedialFirst   = time.Second
	udpRedialLongest = 30 * time.Second
	// udpBusy is how long a drain waits for a flow after its last datagram.
	udpBusy = 500 * time.Millisecond
	// udpSweepEvery is how often ended and idle flows are looked for.
	udpSweepEvery = 500 * time.Millisecond
)

// Reasons for which the agent drops datagrams, beside those of package link.
const (
	dropOriginRefused     = "origin_refused"     // the origin's host answered "port unreachable"
	dropOriginUnreachable = "origin_unreachable" // the origin is not dialled (yet), and the queue is full
	dropWriteFailed       = "write_failed"
	dropSocketFull        = "socket_full" // the kernel's queue of the origin socket was full
)

// udpTarget is where the datagrams of a flow go.
type udpTarget struct {
	spec *origin.Spec
	// port is used where spec has none: a range, same port at the origin.
	port uint16
	// idle ends a flow without datagrams.
	idle time.Duration
}

// udpDialer is the part of *origin.Dialer that flows need.
type udpDialer interface {
	DialUDP(ctx context.Context, s *origin.Spec, port uint16) (*net.UDPConn, error)
}

// flowServer carries UDP flows to origins: a connected socket each, so that an origin sees every
// visitor as an address of its own.
type flowServer struct {
	target func(h *wirev1.StreamHeader) (udpTarget, *reason.Error)
	dialer udpDialer
	m      *metrics
	log    *slog.Logger
	now    func() time.Time
	limit  int
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	flows    map[*udpFlow]struct{}
	sweeping bool
	closed   bool
}

func newFlowServer(target func(h *wirev1.StreamHeader) (udpTarget, *reason.Error), dialer udpDialer, m *metrics, log *slog.Logger) *flowServer {
	// What has passed since the start, whatever steps the system's clock makes.
	began := time.Now()
	now := func() time.Time { return began.Add(time.Since(began)) }
	s := &flowServer{target: target, dialer: dialer, m: m, log: log, now: now, limit: maxUDPFlows, flows: make(map[*udpFlow]struct{})}
	if n := descriptorLimit(); n > 0 {
		s.limit = min(maxUDPFlows, n/4)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// ServeFlow implements link.Handler. The origin is dialled beside it: a slow name server holds up
// its own flow only.
func (s *flowServer) ServeFlow(f link.Flow, h *wirev1.StreamHeader) (receive func(b []byte), refusal *reason.Error) {
	t, e := s.target(h)
	if e != nil {
		s.m.refused(e)
		s.log.Debug("flow refused", "tunnel", h.GetTunnelId(), "reason", e.Code, "detail", e.Detail)
		return nil, e
	}
	if t.idle <= 0 {
		t.idle = defaultUDPIdle
	}
	head, e := udpProxyHeader(t.spec, h)
	if e != nil {
		s.m.refused(e)
		return nil, e
	}
	u := &udpFlow{s: s, flow: f, target: t, head: head}
	u.ctx, u.cancel = context.WithCancel(s.ctx)
	u.used.Store(s.now().UnixNano())
	f.AfterBatch(u.flush)
	if e := s.add(u); e != nil {
		u.cancel()
		s.m.refused(e)
		return nil, e
	}
	return u.receive, nil
}

// add starts u, and the sweeper if there is none.
func (s *flowServer) add(u *udpFlow) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return reason.New(reason.AgentDraining, reason.HopAgent, "this agent is about to end").Safe()
	case len(s.flows) >= s.limit:
		return reason.New(reason.RateLimited, reason.HopAgent,
			"this agent carries %d udp flows, its limit; raise its descriptor limit, shorten idle_timeout_secs or add a replica", len(s.flows)).Safe()
	}
	s.flows[u] = struct{}{}
	s.m.streams.Inc()
	s.wg.Go(u.run)
	if !s.sweeping {
		s.sweeping = true
		s.wg.Go(s.sweeper)
	}
	return nil
}

// sweeper runs while there are flows.
func (s *flowServer) sweeper() {
	tick := time.NewTicker(udpSweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		s.sweep()
		s.mu.Lock()
		if len(s.flows) == 0 {
			s.sweeping = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// sweep ends flows that are idle or that the edge has ended.
func (s *flowServer) sweep() {
	now := s.now().UnixNano()
	s.mu.Lock()
	var over []*udpFlow
	for u := range s.flows {
		select {
		case <-u.flow.Done():
			over = append(over, u)
		default:
			if now-u.used.Load() >= int64(u.target.idle) {
				over = append(over, u)
			}
		}
	}
	s.mu.Unlock()
	for _, u := range over {
		u.end()
	}
}

func (s *flowServer) remove(u *udpFlow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.flows[u]; ok {
		delete(s.flows, u)
		s.m.streams.Dec()
	}
}

// active is the number of flows.
func (s *flowServer) active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flows)
}

// busy is the number of flows that were used a moment ago: a question may be without its answer.
func (s *flowServer) busy() int64 {
	since := s.now().Add(-udpBusy).UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(0)
	for u := range s.flows {
		if u.used.Load() > since {
			n++
		}
	}
	return n
}

// close ends all flows and waits.
func (s *flowServer) close() {
	s.mu.Lock()
	s.closed = true
	all := make([]*udpFlow, 0, len(s.flows))
	for u := range s.flows {
		all = append(all, u)
	}
	s.mu.Unlock()
	for _, u := range all {
		u.end()
	}
	s.cancel()
	s.wg.Wait()
}

// udpProxyHeader is what goes in front of the first datagram to an origin that wants PROXY
// headers.
func udpProxyHeader(spec *origin.Spec, h *wirev1.StreamHeader) ([]byte, *reason.Error) {
	switch spec.Proxy {
	case 0:
		return nil, nil
	case 1:
		return nil, reason.New(reason.Invalid, reason.HopAgent,
			"proxy_protocol v1 of %s cannot describe udp; use v2 or none", spec).Safe()
	}
	from, err := netip.ParseAddrPort(h.GetVisitorAddress())
	to, err2 := netip.ParseAddrPort(h.GetEdgeAddress())
	if err = errors.Join(err, err2); err != nil {
		return nil, reason.Wrap(err, reason.Internal, reason.HopAgent, "the flow's addresses do not parse").Safe()
	}
	src, dst := from.Addr().Unmap().WithZone(""), to.Addr().Unmap().WithZone("")
	p := &proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UDPv4}
	if !src.Is4() || !dst.Is4() {
		p.TransportProtocol = proxyproto.UDPv6
		src, dst = netip.AddrFrom16(src.As16()), netip.AddrFrom16(dst.As16())
	}
	p.SourceAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, from.Port()))
	p.DestinationAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, to.Port()))
	b, err := p.Format()
	if err != nil {
		return nil, reason.Wrap(err, reason.Internal, reason.HopAgent, "the PROXY header cannot be made").Safe()
	}
	return b, nil
}
