package link

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// flows is the flowTable of a pair: edgeFlows or agentFlows beneath.
type flows struct {
	*flowSet
	edge  *edgeFlows
	agent *agentFlows
}

// newFlows makes the flow table of p.
func newFlows(p *pair) flowTable {
	set := &flowSet{
		log: p.log, goFunc: p.goFunc, flows: make(map[uint32]*flow), dropped: p.metrics.dropped,
		current: func() flowCarrier {
			if s := p.current(); s != nil {
				return sessionCarrier{s}
			}
			return nil
		},
	}
	if handler := p.owner.handler(); handler != nil {
		return &flows{flowSet: set, agent: newAgentFlows(set, handler)}
	}
	open := func(ctx context.Context, h *wirev1.StreamHeader) (Outgoing, error) {
		return p.owner.(*Replica).Open(ctx, h, flowPolicy, nil)
	}
	return &flows{flowSet: set, edge: newEdgeFlows(set, open)}
}

func (t *flows) datagram(s *session, b []byte) {
	if f := t.receiveDatagram(sessionCarrier{s}, b); f != nil {
		f.batchEnd()
	}
}

func (t *flows) sealed(s *session, b []byte) *flow { return t.receiveDatagram(sessionCarrier{s}, b) }

func (t *flows) control(s *session, m *wirev1.Control) {
	if t.edge != nil {
		t.edge.control(m)
	} else {
		t.agent.control(m)
	}
}

func (t *flows) stream(st Stream, h *wirev1.StreamHeader) {
	if t.agent != nil {
		t.agent.serve(st, h)
	}
}

// sessionCarrier lends a session to flows. Waiting for QUIC's short queue is what fills the
// queues of flows, so datagrams go to it directly.
type sessionCarrier struct{ *session }

func (c sessionCarrier) sendDatagram(b []byte) error {
	c.pace.wait()
	return c.qc.SendDatagram(b)
}

func (c sessionCarrier) sendNow(head, payload []byte) bool {
	return c.sealed != nil && c.sealed.sendNow(head, payload)
}

func (c sessionCarrier) flush() {
	if c.sealed != nil {
		c.sealed.flush()
	}
}

func (c sessionCarrier) datagrams() bool               { return c.takesDatagrams }
func (c sessionCarrier) sendControl(m *wirev1.Control) { c.send(m) }

// edgeFlows is the edge's side: it numbers flows and opens their streams.
type edgeFlows struct {
	*flowSet
	open func(ctx context.Context, h *wirev1.StreamHeader) (Outgoing, error)
	// next is the number of the next flow. It starts anywhere, so that an edge that was restarted
	// does not take up numbers that the agent still has in use, and 32 bits are not used up in 10
	// minutes.
	next uint32
}

func newEdgeFlows(set *flowSet, open func(ctx context.Context, h *wirev1.StreamHeader) (Outgoing, error)) *edgeFlows {
	var b [4]byte
	_, _ = rand.Read(b[:])
	s := &edgeFlows{flowSet: set, open: open, next: binary.BigEndian.Uint32(b[:])}
	set.find, set.stream = s.findFlow, s.openStream
	return s
}

// OpenFlow opens a flow; receive gets the datagrams that come back (one goroutine at a time; b
// is valid during the call only). The flow survives the replica's sessions: while there is none
// its datagrams are dropped.
func (r *Replica) OpenFlow(h *wirev1.StreamHeader, receive func(b []byte)) (Flow, error) {
	return r.pair.flows.(*flows).edge.openFlow(h, receive)
}

func (s *edgeFlows) openFlow(h *wirev1.StreamHeader, receive func(b []byte)) (Flow, error) {
	if s.current() == nil {
		return nil, reason.New(reason.NoAgent, reason.HopAgent, "the agent has no session with this edge").Safe()
	}
	h = proto.CloneOf(h)
	h.Kind = wirev1.Kind_KIND_UDP
	h.Flow = s.number()
	announce, err := proto.Marshal(h)
	if err == nil && len(announce) > wire.MaxHeader {
		err = fmt.Errorf("flow header of %d bytes, limit %d: %w", len(announce), wire.MaxHeader, wire.ErrTooLarge)
	}
	if err != nil {
		return nil, reason.Wrap(err, reason.Internal, reason.HopEdge, "the flow cannot be announced").Safe()
	}
	f := s.newFlow(h.Flow, h)
	f.announce, f.receive = announce, receive
	if !s.add(f) {
		return nil, reason.New(reason.NoAgent, reason.HopAgent, "the agent has left").Safe()
	}
	return f, nil
}

// number takes the next number that no live flow has.
func (s *edgeFlows) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		s.next++
		if _, taken := s.flows[s.next]; !taken && s.next != 0 {
			return s.next
		}
	}
}

func (s *edgeFlows) findFlow(c flowCarrier, d *wire.Datagram) *flow {
	f := s.lookup(d.Flow)
	if f == nil {
		s.tell(c, d.Flow, endOf(d.Flow, nil))
	}
	return f
}

// openStream returns the flow's stream, which it opens if need be.
func (s *edgeFlows) openStream(f *flow) (Stream, error) {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	if st := f.carriedBy(); st != nil {
		return st, nil
	}
	c := s.current()
	ctx, cancel := context.WithTimeout(f.ctx, flowStreamWait)
	defer cancel()
	st, err := s.open(ctx, proto.CloneOf(f.header))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoStream, err)
	}
	if !f.setStream(st, c) {
		st.Abort()
		return nil, errNoStream
	}
	s.goFunc(func() { f.readStream(st) })
	return st, nil
}

// control handles what the agent says of flows.
func (s *edgeFlows) control(m *wirev1.Control) {
	switch m := m.Message.(type) {
	case *wirev1.Control_FlowAck:
		if f := s.lookup(m.FlowAck.Flow); f != nil {
			f.acked.Store(true)
		}
	case *wirev1.Control_FlowUnknown:
		if f := s.lookup(m.FlowUnknown.Flow); f != nil {
			f.acked.Store(false)
			f.forgetSequence()
		}
	case *wirev1.Control_FlowEnd:
		if f := s.lookup(m.FlowEnd.Flow); f != nil {
			var refusal *reason.Error
			if r := m.FlowEnd.Refusal; r != nil {
				refusal = reason.FromRefusal(r)
			}
			f.end(refusal)
		}
	case *wirev1.Control_FlowStream:
		if f := s.lookup(m.FlowStream.Flow); f != nil {
			s.goFunc(func() {
				if _, err := s.openStream(f); err != nil {
					s.log.Debug("no stream for a large datagram", "tunnel", f.header.TunnelId, "error", err)
				}
			})
		}
	}
}

// agentFlows is the agent's side: it makes flows from headers.
type agentFlows struct {
	*flowSet
	handler Handler
	refused recently

	// openMu makes one flow of a burst of headers that arrives on several carriers.
	openMu sync.Mutex
	// byVisitor finds a flow again whose edge numbered it anew, e.g. after a restart.
	byVisitor map[visitorKey]*flow
	acks      map[uint32]ack
}

// visitorKey is what makes two headers speak of the same flow.
type visitorKey struct {
	tunnel        string
	origin        uint32
	visitor, edge string
}

func keyOf(h *wirev1.StreamHeader) visitorKey {
	return visitorKey{h.TunnelId, h.Origin, h.VisitorAddress, h.EdgeAddress}
}

type ack struct {
	c  flowCarrier
	at time.Time
}

func newAgentFlows(set *flowSet, handler Handler) *agentFlows {
	s := &agentFlows{flowSet: set, handler: handler, byVisitor: make(map[visitorKey]*flow), acks: make(map[uint32]ack)}
	set.find, set.stream = s.findFlow, s.awaitStream
	set.ended = func(f *flow) {
		if key := keyOf(f.header); s.byVisitor[key] == f {
			delete(s.byVisitor, key)
		}
		delete(s.acks, f.id.Load())
	}
	return s
}

func (s *agentFlows) findFlow(c flowCarrier, d *wire.Datagram) *flow {
	f := s.lookup(d.Flow)
	if d.Type == wire.DatagramData {
		if f == nil {
			s.tell(c, d.Flow, &wirev1.Control{Message: &wirev1.Control_FlowUnknown{FlowUnknown: &wirev1.FlowUnknown{Flow: d.Flow}}})
		}
		return f
	}
	// The header repeats on every datagram for a while, and is decoded each time: an edge that was
	// restarted may have given the number to another visitor.
	h := &wirev1.StreamHeader{}
	if err := proto.Unmarshal(d.Header, h); err != nil {
		s.log.Debug("flow header does not parse", "error", err)
		return nil
	}
	if f == nil || keyOf(h) != keyOf(f.header) {
		if f = s.open(c, d.Flow, h); f == nil {
			return nil
		}
	}
	s.acknowledge(c, f)
	return f
}

// open returns the flow id, made from h if it is new; nil when it is refused.
func (s *agentFlows) open(c flowCarrier, id uint32, h *wirev1.StreamHeader) *flow {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	key := keyOf(h)
	have := s.lookup(id)
	if have != nil && keyOf(have.header) == key {
		return have
	}
	if have != nil {
		have.end(nil) // An edge that was restarted numbers anew.
	}
	if f := s.adopt(key, id); f != nil {
		return f
	}
	if s.refused.has(id) {
		return nil
	}
	f := s.newFlow(id, h)
	receive, refusal := s.handler.ServeFlow(f, h)
	if refusal != nil {
		f.cancel()
		if s.refused.add(id) && c != nil {
			c.sendControl(endOf(id, refusal))
		}
		return nil
	}
	f.receive = receive
	if !s.add(f) {
		f.cancel()
		return nil
	}
	s.mu.Lock()
	s.byVisitor[key] = f
	s.mu.Unlock()
	return f
}

// adopt gives the visitor's flow the number id: its origin socket goes on.
func (s *agentFlows) adopt(key visitorKey, id uint32) *flow {
	s.mu.Lock()
	f := s.byVisitor[key]
	if f == nil {
		s.mu.Unlock()
		return nil
	}
	delete(s.flows, f.id.Load())
	delete(s.acks, f.id.Load())
	f.id.Store(id)
	s.flows[id] = f
	s.mu.Unlock()
	f.forgetSequence()
	f.mu.Lock()
	st := f.carried
	f.carried = nil
	f.mu.Unlock()
	f.endStream(st)
	return f
}

// acknowledge tells the edge that headers are not needed any more, again when they go on.
func (s *agentFlows) acknowledge(c flowCarrier, f *flow) {
	if c == nil {
		return
	}
	id := f.id.Load()
	now := time.Now()
	s.mu.Lock()
	last := s.acks[id]
	again := last.c != c || now.Sub(last.at) > recentlyFor
	if again && s.flows[id] == f {
		s.acks[id] = ack{c, now}
	}
	s.mu.Unlock()
	if again {
		c.sendControl(&wirev1.Control{Message: &wirev1.Control_FlowAck{FlowAck: &wirev1.FlowAck{Flow: id}}})
	}
}

// serve takes a stream of datagrams until it ends.
func (s *agentFlows) serve(st Stream, h *wirev1.StreamHeader) {
	c := s.current()
	if h.Flow == 0 {
		st.Abort()
		return
	}
	f := s.open(c, h.Flow, h)
	if f == nil || !f.setStream(st, nil) {
		st.Abort()
		return
	}
	s.acknowledge(c, f)
	f.readStream(st)
}

// control handles what the edge says of flows.
func (s *agentFlows) control(m *wirev1.Control) {
	if end := m.GetFlowEnd(); end != nil {
		if f := s.lookup(end.Flow); f != nil {
			f.end(nil)
		}
	}
}

// awaitStream returns the flow's stream, which it asks the edge for if need be.
func (s *agentFlows) awaitStream(f *flow) (Stream, error) {
	timeout := time.NewTimer(flowStreamWait)
	defer timeout.Stop()
	asked := false
	for {
		if st := f.carriedBy(); st != nil {
			return st, nil
		}
		if c := s.current(); c != nil && !asked {
			asked = true
			c.sendControl(&wirev1.Control{Message: &wirev1.Control_FlowStream{FlowStream: &wirev1.FlowStream{Flow: f.id.Load()}}})
		}
		select {
		case <-f.streamReady:
		case <-timeout.C:
			return nil, errNoStream
		case <-f.ctx.Done():
			return nil, errNoStream
		}
	}
}

// flowPolicy carries the streams of flows: at once where there is QUIC, else on a lane.
const flowPolicy = hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY
