package link_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

// flowEcho sends every datagram back.
type flowEcho struct {
	served atomic.Int64
	answer func(f link.Flow, b []byte)
	mu     sync.Mutex
	flows  []link.Flow
}

func (h *flowEcho) ServeStream(ctx context.Context, in link.Incoming) { echo(ctx, in) }

func (h *flowEcho) ServeFlow(f link.Flow, _ *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	h.served.Add(1)
	h.mu.Lock()
	h.flows = append(h.flows, f)
	h.mu.Unlock()
	return func(b []byte) {
		if h.answer != nil {
			h.answer(f, b)
			return
		}
		_ = f.Send(b)
	}, nil
}

// visitor is one flow at the edge.
type visitor struct {
	link.Flow
	got chan []byte
}

func openFlow(t *testing.T, r *link.Replica, number int) *visitor {
	t.Helper()
	v := &visitor{got: make(chan []byte, 5000)}
	h := &wirev1.StreamHeader{TunnelId: "t1", VisitorAddress: fmt.Sprintf("192.0.2.1:%d", number), EdgeAddress: "192.0.2.2:3478"}
	f, err := r.OpenFlow(h, func(b []byte) { v.got <- bytes.Clone(b) })
	if err != nil {
		t.Fatal(err)
	}
	v.Flow = f
	return v
}

// ping sends n bytes until they come back: a datagram may be lost where a session ends.
func (v *visitor) ping(t *testing.T, n int) {
	t.Helper()
	sent := bytes.Repeat([]byte{byte(n)}, n)
	for range 50 {
		if err := v.Send(sent); err != nil {
			t.Fatal(err)
		}
		select {
		case b := <-v.got:
			if bytes.Equal(b, sent) {
				return
			}
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Fatalf("%d bytes do not come back", n)
}

func TestFlowCarriers(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run(carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, nil)
			h := &flowEcho{}
			agent := linktest.NewAgent(t, edge, tok, h, only(carrier))
			r := edge.Replica(t)
			v := openFlow(t, r, 1)
			for _, n := range []int{0, 1, 1200, 1472, 8000, 65507} {
				t.Run(fmt.Sprintf("D10 %d bytes over %s", n, carrier), func(t *testing.T) { v.ping(t, n) })
			}
			if n := h.served.Load(); n != 1 {
				t.Errorf("%d flows at the agent", n)
			}
			others := make([]*visitor, 20)
			for i := range others {
				others[i] = openFlow(t, r, 100+i)
			}
			var wg sync.WaitGroup
			for i, o := range others {
				wg.Go(func() { o.ping(t, 500+i) })
			}
			wg.Wait()
			if r.Active() < 21 || agent.Active() < 21 {
				t.Errorf("%d flows here, %d at the agent, of 21", r.Active(), agent.Active())
			}
			for _, o := range append(others, v) {
				_ = o.Close()
			}
			eventually(t, "flows are not given back", func() bool { return r.Active() == 0 && agent.Active() == 0 })
		})
	}
}

func TestFlowCarrierBurst(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS} {
		t.Run("D07 burst of 500 datagrams over "+carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edgeReg, agentReg := prometheus.NewRegistry(), prometheus.NewRegistry()
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { c.Registry = edgeReg })
			h := &flowEcho{}
			linktest.NewAgent(t, edge, tok, h, func(c *link.ConnectorConfig) { only(carrier)(c); c.Registry = agentReg })
			v := openFlow(t, edge.Replica(t), 1)
			v.ping(t, 1)
			for i := range 500 {
				_ = v.Send(append(make([]byte, 1000), byte(i>>8), byte(i)))
			}
			// All come back, or what is missing is counted: QUIC's receive queue is short and
			// drops silently where a busy machine does not read for some milliseconds.
			seen := map[int]bool{}
			take := func(wait time.Duration) bool {
				select {
				case b := <-v.got:
					if len(b) == 1002 {
						seen[int(b[1000])<<8|int(b[1001])] = true
					}
					return true
				case <-time.After(wait):
					return false
				}
			}
			for len(seen) < 500 && take(500*time.Millisecond) {
			}
			v.ping(t, 2) // Shows what is missing at the end.
			for take(0) {
			}
			_ = v.Close()
			eventually(t, "the burst is not accounted for", func() bool {
				return len(seen)+int(dropped(t, edgeReg, "")+dropped(t, agentReg, "")) >= 500
			})
			if n := dropped(t, edgeReg, "queue_full") + dropped(t, agentReg, "queue_full"); n != 0 {
				t.Errorf("%v did not fit a queue", n)
			}
			if len(seen) < 250 {
				t.Errorf("%d of 500 came back", len(seen))
			}
		})
	}
}

// dropped is what was dropped for a reason, or for all.
func dropped(t *testing.T, reg *prometheus.Registry, why string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); name == "adit_edge_udp_datagrams_dropped_total" || name == "adit_agent_udp_datagrams_dropped_total" {
			for _, m := range f.GetMetric() {
				if why == "" || m.GetLabel()[0].GetValue() == why {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func TestFlowLargeReplies(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, nil)
	h := &flowEcho{answer: func(f link.Flow, _ []byte) { _ = f.Send(make([]byte, 60000)) }}
	linktest.NewAgent(t, edge, tok, h, only(link.CarrierQUIC))
	v := openFlow(t, edge.Replica(t), 1)
	_ = v.Send([]byte("x"))
	select {
	case b := <-v.got:
		if len(b) != 60000 {
			t.Errorf("%d bytes", len(b))
		}
	case <-time.After(10 * time.Second):
		t.Error("no reply")
	}
}

func TestFlowMoves(t *testing.T) {
	t.Run("to a better carrier, and over a path that fell silent", func(t *testing.T) {
		tok := linktest.NewToken(t)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		p := newPath(t, edge.Addr)
		p.noUDP.Store(true)
		h := &flowEcho{}
		agent := linktest.NewAgent(t, edge, tok, h, func(c *link.ConnectorConfig) {
			fastAgent(c)
			c.Edge = &wirev1.EdgeAddress{Id: c.Edge.Id, Addresses: []string{p.addr.String()}, KeyHash: c.Edge.KeyHash}
		})
		r := edge.Replica(t)
		carrier := func() string {
			if s := r.Sessions(); len(s) > 0 {
				return s[len(s)-1].Carrier
			}
			return ""
		}
		if c := carrier(); c == link.CarrierQUIC {
			t.Fatalf("carrier %s although UDP is blocked", c)
		}
		v := openFlow(t, r, 1)
		v.ping(t, 10)
		v.ping(t, 20000)
		p.noUDP.Store(false)
		eventually(t, "no upgrade to quic", func() bool { return carrier() == link.CarrierQUIC })
		v.ping(t, 12)
		v.ping(t, 20001)
		p.silent.Store(true)
		eventually(t, "the sessions live on over a silent path", func() bool { return len(r.Sessions()) == 0 && len(agent.Sessions()) == 0 })
		if err := v.Send([]byte("nobody hears")); err != nil {
			t.Errorf("the flow ended with its session: %v", err)
		}
		p.silent.Store(false)
		eventually(t, "no new session", func() bool { return len(r.Sessions()) > 0 })
		v.ping(t, 14)
		v.ping(t, 20002)
		if n := h.served.Load(); n != 1 {
			t.Errorf("the agent made %d flows", n)
		}
	})
	t.Run("D08 restarted edge: the agent keeps the visitor's flow", func(t *testing.T) {
		tok := linktest.NewToken(t)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		h := &flowEcho{}
		linktest.NewAgent(t, edge, tok, h, fastAgent)
		v := openFlow(t, edge.Replica(t), 1)
		v.ping(t, 10)
		addr := edge.Addr.String()
		edge.Close()
		if <-v.Done(); v.Send(nil) == nil {
			t.Error("a flow of a closed edge takes datagrams")
		}
		again := linktest.NewEdgeAt(t, addr, edge.Key, []*linktest.Token{tok}, fastEdge)
		v = openFlow(t, again.Replica(t), 1)
		v.ping(t, 12)
		if n := h.served.Load(); n != 1 {
			t.Errorf("the agent made %d flows of one visitor's", n)
		}
	})
	t.Run("D08 restarted agent: its flows end and new ones work", func(t *testing.T) {
		tok := linktest.NewToken(t)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		agent := linktest.NewAgent(t, edge, tok, &flowEcho{}, fastAgent)
		v := openFlow(t, edge.Replica(t), 1)
		v.ping(t, 10)
		agent.Stop()
		select {
		case <-v.Done():
		case <-time.After(10 * time.Second):
			t.Error("the flow outlives its replica")
		}
		linktest.NewAgent(t, edge, tok, &flowEcho{}, fastAgent)
		openFlow(t, edge.Replica(t), 1).ping(t, 11)
	})
}

// Datagrams take the short way beside QUIC where there is one, and QUIC where there is none.
func TestFlowSealed(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // Only Linux lets QUIC share its socket.
	}
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, nil)
	p := newPath(t, edge.Addr)
	h := &flowEcho{}
	linktest.NewAgent(t, edge, tok, h, func(c *link.ConnectorConfig) {
		only(link.CarrierQUIC)(c)
		c.Edge = &wirev1.EdgeAddress{Id: c.Edge.Id, Addresses: []string{p.addr.String()}, KeyHash: c.Edge.KeyHash}
	})
	v := openFlow(t, edge.Replica(t), 1)
	// short reports whether a question and its answer both went sealed.
	short := func() bool {
		before := p.sealed.Load()
		v.ping(t, 900)
		return p.sealed.Load() >= before+2
	}
	eventually(t, "datagrams never go sealed", short)
	t.Run("where only QUIC passes, flows go on", func(t *testing.T) {
		p.onlyQUIC.Store(true)
		eventually(t, "nothing arrives", func() bool {
			_ = v.Send([]byte("through"))
			select {
			case b := <-v.got:
				return string(b) == "through"
			case <-time.After(50 * time.Millisecond):
				return false
			}
		})
		p.onlyQUIC.Store(false)
		eventually(t, "the short way is not taken up again", short)
	})
	t.Run("large ones go on in parts", func(t *testing.T) { v.ping(t, 3000) })
	if n := h.served.Load(); n != 1 {
		t.Errorf("%d flows at the agent", n)
	}
}
