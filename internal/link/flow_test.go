package link

import (
	"bytes"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

func TestFlowSizes(t *testing.T) {
	for name, limit := range map[string]int{"quic": 1163, "tcp": 0} {
		t.Run(name, func(t *testing.T) {
			h := &echoHandler{}
			p := newFlowPipe(t, h)
			p.connect(limit)
			f, got := open(t, p, 1)
			for _, n := range []int{0, 1, 1150, 1200, 1472, 4000, 4600, 8000, wire.MaxPayload, 5} {
				if err := f.Send(payload(n)); err != nil {
					t.Fatal(err)
				}
				if b := next(t, got); !bytes.Equal(b, payload(n)) {
					t.Fatalf("%d bytes came back as %d", n, len(b))
				}
			}
			if err := f.Send(make([]byte, wire.MaxPayload+1)); err != nil || drops(p.edge.flowSet, dropTooLarge) != 1 {
				t.Errorf("a datagram over the limit: %v, counted %v", err, drops(p.edge.flowSet, dropTooLarge))
			}
			if h.served.Load() != 1 {
				t.Errorf("%d flows at the agent", h.served.Load())
			}
		})
	}
}

func TestFlowLargeReply(t *testing.T) {
	h := &echoHandler{answer: func(f Flow, b []byte) { _ = f.Send(payload(wire.MaxPayload)) }}
	p := newFlowPipe(t, h)
	p.connect(1163)
	f, got := open(t, p, 1)
	_ = f.Send([]byte("small"))
	if b := next(t, got); len(b) != wire.MaxPayload {
		t.Errorf("%d bytes", len(b))
	}
}

func TestFlowBurst(t *testing.T) {
	for name, limit := range map[string]int{"quic": 1163, "tcp": 0} {
		t.Run("D07 burst of 500 datagrams over "+name, func(t *testing.T) {
			p := newFlowPipe(t, &echoHandler{})
			p.connect(limit)
			f, got := open(t, p, 1)
			for i := range 500 {
				_ = f.Send(append(payload(1100), byte(i>>8), byte(i)))
			}
			for i := range 500 {
				b := next(t, got)
				if n := int(b[1100])<<8 | int(b[1101]); n != i {
					t.Fatalf("datagram %d came as number %d", n, i)
				}
			}
		})
	}
	t.Run("D07 every drop is counted by reason", func(t *testing.T) {
		var arrived atomic.Int64
		p := newFlowPipe(t, &echoHandler{answer: func(Flow, []byte) { arrived.Add(1) }})
		s := p.connect(1163)
		held := make(chan struct{})
		s.lose = func([]byte) bool { <-held; return false } // The carrier is stuck.
		f, _ := open(t, p, 1)
		for range 3000 {
			_ = f.Send([]byte("x"))
		}
		dropped := int64(drops(p.edge.flowSet, dropQueueFull))
		if dropped < 3000-flowQueueLen-1 || dropped > 3000-flowQueueLen {
			t.Errorf("%d dropped", dropped)
		}
		close(held)
		eventually(t, "the others arrived", func() bool { return arrived.Load() == 3000-dropped })
	})
	t.Run("bytes of a flow are bounded", func(t *testing.T) {
		held := make(chan struct{})
		p := newFlowPipe(t, &echoHandler{answer: func(Flow, []byte) { <-held }})
		p.connect(1163)
		f, _ := open(t, p, 1)
		for range 800 { // More than the queue and the buffers of TCP hold.
			_ = f.Send(make([]byte, wire.MaxPayload))
		}
		if n := p.edge.queued.Load(); n > flowQueueBytes {
			t.Errorf("%d bytes queued", n)
		}
		if drops(p.edge.flowSet, dropQueueFull) == 0 {
			t.Error("nothing dropped")
		}
		_ = f.Close()
		close(held)
	})
}

func TestFlowLossIsCounted(t *testing.T) {
	p := newFlowPipe(t, &echoHandler{answer: func(Flow, []byte) {}})
	s := p.connect(1163)
	n := 0
	s.lose = func(b []byte) bool { n++; return n%10 == 5 }
	f, _ := open(t, p, 1)
	for range 1000 {
		_ = f.Send([]byte("x"))
		eventually(t, "queue empty", func() bool { return p.edge.queued.Load() == 0 })
	}
	eventually(t, "all sent", func() bool { return s.sent.Load() == 1000 })
	_ = f.Close()
	eventually(t, "the agent's flow ended", func() bool { return p.agent.count() == 0 })
	if lost := drops(p.agent.flowSet, dropLost); lost != 100 {
		t.Errorf("%v counted as lost, 100 were", lost)
	}
}

func TestFlowHeaderUntilAcknowledged(t *testing.T) {
	p := newFlowPipe(t, &echoHandler{})
	s := p.connect(1163)
	var opens, datas atomic.Int64
	s.lose = func(b []byte) bool {
		if d, _ := wire.ParseDatagram(b); d.Type == wire.DatagramOpen {
			opens.Add(1)
		} else {
			datas.Add(1)
		}
		return false
	}
	f, got := open(t, p, 1)
	_ = f.Send([]byte("1"))
	next(t, got)
	eventually(t, "acknowledged", f.acked.Load)
	before := opens.Load()
	_ = f.Send([]byte("2"))
	next(t, got)
	if opens.Load() != before || before < 1 {
		t.Errorf("%d headers before the acknowledgement, %d after it", before, opens.Load()-before)
	}
	t.Run("a flow that the agent lost is announced again", func(t *testing.T) {
		p.agent.lookup(f.id.Load()).end(nil)
		_ = f.Send([]byte("lost"))
		eventually(t, "the agent asked", func() bool { return !f.acked.Load() })
		if drops(p.agent.flowSet, dropFlowUnknown) != 1 {
			t.Errorf("%v counted", drops(p.agent.flowSet, dropFlowUnknown))
		}
		_ = f.Send([]byte("3"))
		if b := next(t, got); string(b) != "3" {
			t.Errorf("%q", b)
		}
	})
}

func TestFlowSurvivesSessions(t *testing.T) {
	h := &echoHandler{}
	p := newFlowPipe(t, h)
	ping := func(f *flow, got chan []byte, n int) {
		t.Helper()
		_ = f.Send(payload(n))
		if b := next(t, got); len(b) != n {
			t.Fatalf("%d bytes", len(b))
		}
	}
	first := p.connect(1163)
	f, got := open(t, p, 1)
	ping(f, got, 10)
	ping(f, got, 8000)
	second := p.connect(0) // Make before break, to a carrier without datagrams.
	ping(f, got, 11)
	p.disconnect(first)
	ping(f, got, 12)
	third := p.connect(1163) // And back: the stream is given back.
	ping(f, got, 13)
	p.disconnect(second)
	ping(f, got, 14)
	eventually(t, "stream ended", func() bool { return p.streams.Load() == 0 })
	ping(f, got, 9000)
	fourth := p.connect(1163) // A stream does not stay on a session that was replaced.
	ping(f, got, 16)
	eventually(t, "stream ended", func() bool { return p.streams.Load() == 0 })
	p.disconnect(third)
	p.disconnect(fourth) // None for a while.
	_ = f.Send([]byte("nobody"))
	eventually(t, "counted", func() bool { return drops(p.edge.flowSet, dropNoSession) == 1 })
	p.connect(1163)
	ping(f, got, 15)
	if h.served.Load() != 1 {
		t.Errorf("the agent made %d flows", h.served.Load())
	}
}

func TestFlowEdgeRestart(t *testing.T) {
	h := &echoHandler{}
	p := newFlowPipe(t, h)
	p.connect(1163)
	f, got := open(t, p, 1)
	_ = f.Send([]byte("a"))
	next(t, got)

	// A new edge process: it numbers anew and knows nothing.
	p.disconnect(p.sessions[0])
	old := p.edge
	p.edge = newEdgeFlows(p.set(true), p.openStream)
	p.edge.next = f.id.Load() + 99
	p.connect(1163)
	f2, got2 := open(t, p, 1)
	_ = f2.Send([]byte("b"))
	if b := next(t, got2); string(b) != "b" {
		t.Errorf("%q", b)
	}
	if n := h.served.Load(); n != 1 {
		t.Errorf("D08 restarted edge: the agent made %d flows of one visitor's", n)
	}
	if p.agent.count() != 1 {
		t.Errorf("%d flows at the agent", p.agent.count())
	}
	// The number of another visitor's flow is taken over, its datagrams do not mix. What the agent
	// said of the number has arrived: a restarted edge has a session of its own for it.
	eventually(t, "flow acknowledged", f2.acked.Load)
	p.edge.next = f2.id.Load() - 1
	p.edge.mu.Lock()
	delete(p.edge.flows, f2.id.Load())
	p.edge.mu.Unlock()
	f3, got3 := open(t, p, 2)
	_ = f3.Send([]byte("c"))
	if b := next(t, got3); string(b) != "c" || f3.id.Load() != f2.id.Load() {
		t.Errorf("%q on flow %d", b, f3.id.Load())
	}
	if n := h.served.Load(); n != 2 {
		t.Errorf("%d flows served", n)
	}
	f2.end(nil)
	old.close()
}

func TestFlowEnds(t *testing.T) {
	for name, limit := range map[string]int{"quic": 1163, "tcp": 0} {
		t.Run("closed by the edge over "+name, func(t *testing.T) {
			h := &echoHandler{}
			p := newFlowPipe(t, h)
			p.connect(limit)
			f, got := open(t, p, 1)
			_ = f.Send([]byte("x"))
			next(t, got)
			_ = f.Close()
			<-f.Done()
			select {
			case <-h.flows[0].Done():
			case <-time.After(30 * time.Second):
				t.Error("the agent's side goes on")
			}
			if err := f.Send(nil); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Send after Close: %v", err)
			}
			eventually(t, "streams ended", func() bool { return p.streams.Load() == 0 })
		})
		t.Run("closed by the agent over "+name, func(t *testing.T) {
			h := &echoHandler{}
			p := newFlowPipe(t, h)
			p.connect(limit)
			f, got := open(t, p, 1)
			_ = f.Send([]byte("x"))
			next(t, got)
			_ = h.flows[0].Close()
			select {
			case <-f.Done():
			case <-time.After(30 * time.Second):
				t.Error("the edge's side goes on")
			}
			if f.Refusal() != nil {
				t.Error("an end is no refusal")
			}
			eventually(t, "streams ended", func() bool { return p.streams.Load() == 0 })
		})
	}
	t.Run("closed from its own receiver", func(t *testing.T) {
		h := &echoHandler{answer: func(f Flow, _ []byte) { _ = f.Close() }}
		p := newFlowPipe(t, h)
		p.connect(1163)
		f, _ := open(t, p, 1)
		_ = f.Send([]byte("x"))
		<-f.Done()
	})
	t.Run("refused", func(t *testing.T) {
		h := &echoHandler{refusal: reason.New(reason.OriginDenied, reason.HopAgent, "no such target")}
		p := newFlowPipe(t, h)
		p.connect(1163)
		f, _ := open(t, p, 1)
		for range 20 {
			_ = f.Send([]byte("x"))
		}
		<-f.Done()
		if e := f.Refusal(); e == nil || e.Code != reason.OriginDenied || e.Detail != "no such target" {
			t.Errorf("refusal %v", e)
		}
		if n := h.served.Load(); n != 1 {
			t.Errorf("the handler was asked %d times", n)
		}
	})
	t.Run("the replica leaves", func(t *testing.T) {
		p := newFlowPipe(t, &echoHandler{})
		p.connect(1163)
		f, _ := open(t, p, 1)
		p.edge.close()
		<-f.Done()
		if _, err := p.edge.openFlow(testHeader(2), func([]byte) {}); !reason.Is(err, reason.NoAgent) {
			t.Errorf("a flow after that: %v", err)
		}
	})
	t.Run("no session", func(t *testing.T) {
		p := newFlowPipe(t, &echoHandler{})
		if _, err := p.edge.openFlow(testHeader(2), func([]byte) {}); !reason.Is(err, reason.NoAgent) {
			t.Errorf("%v", err)
		}
	})
}

func TestFlowMalformed(t *testing.T) {
	p := newFlowPipe(t, &echoHandler{})
	c := p.connect(1163)
	part, err := (&wire.Datagram{Type: wire.DatagramPart, Flow: 1, Count: 2, Payload: []byte{3, 1, 0, 0, 2}}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	part2, _ := (&wire.Datagram{Type: wire.DatagramPart, Flow: 1, Index: 1, Count: 2}).Append(nil)
	for _, b := range [][]byte{{}, {99}, part, part2} {
		p.agent.receiveDatagram(c.end(false), b)
	}
	if n := drops(p.agent.flowSet, dropMalformed); n != 3 {
		t.Errorf("%v counted", n)
	}
	bad, _ := (&wire.Datagram{Type: wire.DatagramOpen, Flow: 1, Header: []byte{0xff}}).Append(nil)
	p.agent.receiveDatagram(c.end(false), bad)
	if p.agent.count() != 0 {
		t.Error("a flow with a broken header")
	}
}

func TestFlowStreamGarbage(t *testing.T) {
	p := newFlowPipe(t, &echoHandler{})
	p.connect(0)
	f, got := open(t, p, 1)
	_ = f.Send([]byte("x"))
	next(t, got)
	st := f.carriedBy()
	f.writeMu.Lock()
	_, _ = st.Write([]byte{0, 2, 9, 9})
	f.writeMu.Unlock()
	eventually(t, "counted", func() bool { return drops(p.agent.flowSet, dropMalformed) == 1 })
	_ = st.Close() // A lane that dies: the next datagram takes another.
	_ = f.Send([]byte("y"))
	if b := next(t, got); string(b) != "y" {
		t.Errorf("%q", b)
	}
}

func TestSequenceWindow(t *testing.T) {
	for name, c := range map[string]struct {
		marks []int
		lost  int
	}{
		"none":                {[]int{5, 6, 7}, 0},
		"gap":                 {[]int{0, 3}, 2},
		"reordered":           {[]int{0, 2, 1, 3}, 0},
		"late by 63":          {append([]int{0}, append(seq(2, 64), 1, 65)...), 0},
		"wraps":               {[]int{65534, 0, 1}, 1},
		"jump over a window":  {[]int{0, 1000}, 999},
		"gap before the jump": {[]int{0, 2, 1000}, 1 + 997},
		"twice":               {[]int{0, 1, 1, 0, 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var w sequenceWindow
			lost := 0
			for _, n := range c.marks {
				lost += w.mark(uint16(n))
			}
			lost += w.flush()
			if lost != c.lost || w.flush() != 0 {
				t.Errorf("%d lost, want %d", lost, c.lost)
			}
		})
	}
}

func seq(from, to int) []int {
	var all []int
	for i := from; i <= to; i++ {
		all = append(all, i)
	}
	return all
}

func TestPartTableIsBounded(t *testing.T) {
	var table partTable
	for i := range 3 * partsHeld {
		d := wire.Datagram{Type: wire.DatagramPart, Flow: uint32(i), Count: 3, Payload: []byte("x")}
		if table.add(&d) != nil {
			t.Fatal("whole after one of three parts")
		}
	}
	if len(table.m) != partsHeld {
		t.Errorf("%d incomplete datagrams held", len(table.m))
	}
	last := uint32(3*partsHeld - 1)
	table.add(&wire.Datagram{Flow: last, Index: 2, Count: 3, Payload: []byte("z")})
	if b := table.add(&wire.Datagram{Flow: last, Index: 1, Count: 3, Payload: []byte("y")}); string(b) != "xyz" {
		t.Errorf("%q", b)
	}
}

func TestFlowNumbers(t *testing.T) {
	p := newFlowPipe(t, &echoHandler{})
	p.connect(1163)
	p.edge.next = 1<<32 - 3
	seen := map[uint32]bool{}
	for i := range 5 {
		f, _ := open(t, p, i)
		if id := f.id.Load(); seen[id] || id == 0 {
			t.Errorf("number %d", id)
		} else {
			seen[id] = true
		}
	}
}
