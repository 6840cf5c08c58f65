package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/reason"
)

// flowPipe is an edge and an agent whose sessions are channels.
type flowPipe struct {
	t     *testing.T
	edge  *edgeFlows
	agent *agentFlows
	wg    sync.WaitGroup

	mu       sync.Mutex
	sessions []*pipeSession
	streams  atomic.Int64
}

// pipeSession is one session between them, with a queue like that of quic-go.
type pipeSession struct {
	p *flowPipe
	// max is the greatest datagram; 0 = a TCP carrier.
	max int
	// lose says which datagrams are lost.
	lose              func(b []byte) bool
	toAgent, toEdge   chan []byte
	ctlAgent, ctlEdge chan *wirev1.Control
	over              chan struct{}
	sent              atomic.Int64
}

// pipeEnd is a session as one side sees it.
type pipeEnd struct {
	*pipeSession
	data chan []byte
	ctl  chan *wirev1.Control
}

func (e pipeEnd) datagrams() bool { return e.max > 0 }

func (e pipeEnd) sendDatagram(b []byte) error {
	if len(b) > e.max {
		return &quic.DatagramTooLargeError{MaxDatagramPayloadSize: int64(e.max)}
	}
	e.sent.Add(1)
	if e.lose != nil && e.lose(b) {
		return nil
	}
	select {
	case e.data <- bytes.Clone(b):
		return nil
	case <-e.over:
		return errors.New("session over")
	}
}

func (e pipeEnd) sendControl(m *wirev1.Control) {
	select {
	case e.ctl <- m:
	case <-e.over:
	}
}

func newFlowPipe(t *testing.T, h Handler) *flowPipe {
	p := &flowPipe{t: t}
	p.edge = newEdgeFlows(p.set(true), p.openStream)
	p.agent = newAgentFlows(p.set(false), h)
	t.Cleanup(func() {
		for len(p.sessions) > 0 {
			p.disconnect(p.sessions[0])
		}
		p.edge.close()
		p.agent.close()
		p.wg.Wait()
		if n := p.edge.queued.Load() + p.agent.queued.Load(); n != 0 {
			t.Errorf("%d bytes still counted as queued", n)
		}
		goleak.VerifyNone(t)
	})
	return p
}

func (p *flowPipe) set(edge bool) *flowSet {
	part := "agent"
	if edge {
		part = "edge"
	}
	return &flowSet{
		log: slog.New(slog.DiscardHandler), goFunc: func(f func()) { p.wg.Go(f) }, flows: make(map[uint32]*flow),
		dropped: DatagramsDropped(nil, part),
		current: func() flowCarrier {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.sessions) == 0 {
				return nil
			}
			return p.sessions[len(p.sessions)-1].end(edge)
		},
	}
}

// There is no short way: what it does is tested with real sockets.
func (pipeEnd) sendNow(head, payload []byte) bool { return false }
func (pipeEnd) flush()                            {}

func (s *pipeSession) end(edge bool) flowCarrier {
	if edge {
		return pipeEnd{s, s.toAgent, s.ctlAgent}
	}
	return pipeEnd{s, s.toEdge, s.ctlEdge}
}

// connect adds a session with datagrams of up to limit bytes.
func (p *flowPipe) connect(limit int) *pipeSession {
	s := &pipeSession{p: p, max: limit, over: make(chan struct{}),
		toAgent: make(chan []byte, 32), toEdge: make(chan []byte, 32),
		ctlAgent: make(chan *wirev1.Control, 64), ctlEdge: make(chan *wirev1.Control, 64)}
	p.mu.Lock()
	p.sessions = append(p.sessions, s)
	p.mu.Unlock()
	run := func(data chan []byte, ctl chan *wirev1.Control, from flowCarrier, datagram func(flowCarrier, []byte) *flow, control func(*wirev1.Control)) {
		p.wg.Go(func() {
			for {
				select {
				case b := <-data:
					if f := datagram(from, b); f != nil {
						f.batchEnd()
					}
				case <-s.over:
					return
				}
			}
		})
		p.wg.Go(func() {
			for {
				select {
				case m := <-ctl:
					control(m)
				case <-s.over:
					return
				}
			}
		})
	}
	run(s.toAgent, s.ctlAgent, s.end(false), p.agent.receiveDatagram, p.agent.control)
	run(s.toEdge, s.ctlEdge, s.end(true), p.edge.receiveDatagram, p.edge.control)
	return s
}

func (p *flowPipe) disconnect(s *pipeSession) {
	p.mu.Lock()
	for i, have := range p.sessions {
		if have == s {
			p.sessions = append(p.sessions[:i:i], p.sessions[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	close(s.over)
}

// pipeStream is a TCP connection as a Stream.
type pipeStream struct {
	NoSocket
	*net.TCPConn
}

func (s pipeStream) ReadLoan(l *buffer.Loan) (int, error) { return buffer.Read(s, l) }

func (s pipeStream) Abort() { _ = s.SetLinger(0); _ = s.TCPConn.Close() }
func (s pipeStream) Answer(context.Context) (*wirev1.StreamAnswer, error) {
	return &wirev1.StreamAnswer{}, nil
}

func (p *flowPipe) openStream(_ context.Context, h *wirev1.StreamHeader) (Outgoing, error) {
	if p.edge.current() == nil {
		return nil, reason.New(reason.NoAgent, reason.HopAgent, "none")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	in, err := l.Accept()
	if err != nil {
		return nil, err
	}
	p.streams.Add(1)
	p.wg.Go(func() {
		defer p.streams.Add(-1)
		p.agent.serve(pipeStream{TCPConn: in.(*net.TCPConn)}, h)
		_ = in.Close()
	})
	return pipeStream{TCPConn: c.(*net.TCPConn)}, nil
}

// echoHandler sends back what it gets.
type echoHandler struct {
	served  atomic.Int64
	refusal *reason.Error
	mu      sync.Mutex
	flows   []Flow
	headers []*wirev1.StreamHeader
	answer  func(f Flow, b []byte)
}

func (e *echoHandler) ServeStream(context.Context, Incoming) {}

func (e *echoHandler) ServeFlow(f Flow, h *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	e.served.Add(1)
	if e.refusal != nil {
		return nil, e.refusal
	}
	e.mu.Lock()
	e.flows, e.headers = append(e.flows, f), append(e.headers, h)
	e.mu.Unlock()
	return func(b []byte) {
		if e.answer != nil {
			e.answer(f, b)
			return
		}
		_ = f.Send(b)
	}, nil
}

func testHeader(visitor int) *wirev1.StreamHeader {
	return &wirev1.StreamHeader{TunnelId: "t1", VisitorAddress: fmt.Sprintf("192.0.2.1:%d", visitor), EdgeAddress: "192.0.2.9:3478"}
}

// collect gives a receiver and a channel of what it got.
func collect() (func([]byte), chan []byte) {
	got := make(chan []byte, 4096)
	return func(b []byte) { got <- bytes.Clone(b) }, got
}

func next(t *testing.T, got chan []byte) []byte {
	t.Helper()
	select {
	case b := <-got:
		return b
	case <-time.After(10 * time.Second):
		t.Fatal("no datagram came back")
		return nil
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func drops(s *flowSet, why string) float64 {
	return testutil.ToFloat64(s.dropped.WithLabelValues(why))
}

func open(t *testing.T, p *flowPipe, visitor int) (*flow, chan []byte) {
	t.Helper()
	receive, got := collect()
	f, err := p.edge.openFlow(testHeader(visitor), receive)
	if err != nil {
		t.Fatal(err)
	}
	return f.(*flow), got
}

func payload(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}
