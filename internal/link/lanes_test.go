package link_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func lanes(r *link.Replica) int {
	n := 0
	for _, s := range r.Sessions() {
		n += s.Lanes
	}
	return n
}

// TestLanesFollowDemand opens streams, lets them end and watches the number of lanes.
func TestLanesFollowDemand(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS} {
		t.Run(carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
			agent := linktest.NewAgent(t, edge, tok, echo, only(carrier))
			r := edge.Replica(t)
			eventually(t, "no lane while idle", func() bool { return lanes(r) == 1 })
			var held []link.Outgoing
			least := 0
			eventually(t, "too few lanes under load", func() bool {
				// Beside QUIC a stream that finds no lane does not wait for it.
				for range 20 {
					st, _ := hold(t, r, throughput)
					held = append(held, st)
				}
				least = max(least, agent.Sessions()[0].Lanes)
				return least > 10
			})
			for _, st := range held {
				_ = st.CloseWrite()
				if _, err := io.ReadAll(st); err != nil {
					t.Fatal(err)
				}
				_ = st.Close()
			}
			eventually(t, "lanes are not retired", func() bool { return lanes(r) == 1 && agent.Sessions()[0].Lanes == 1 })
			roundTrip(t, r, throughput)
		})
	}
}

func TestLaneLimits(t *testing.T) {
	t.Run("an agent with few lanes", func(t *testing.T) {
		tok := linktest.NewToken(t)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
			timing := link.Fast()
			timing.SetLaneWait(300 * time.Millisecond)
			c.SetTiming(timing)
		})
		linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { only(link.CarrierTLS)(c); c.MaxLanes = 3 })
		r := edge.Replica(t)
		var first link.Outgoing
		for range 3 {
			first, _ = hold(t, r, auto)
		}
		_, err := r.Open(ctx10(t), tcpHeader("t"), auto, nil)
		if !reason.Is(err, reason.NoAgent) || !reason.Of(err, "").Untouched {
			t.Fatalf("a fourth stream: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := r.Open(ctx, tcpHeader("t"), auto, nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled while waiting: %v", err)
		}
		// The one that waits gets the lane of the one that ends.
		time.AfterFunc(50*time.Millisecond, func() { first.Abort() })
		roundTrip(t, r, auto)
	})
	t.Run("an edge that allows few", func(t *testing.T) {
		tok := linktest.NewToken(t)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { fastEdge(c); c.MaxLanes = 2 })
		linktest.NewAgent(t, edge, tok, echo, only(link.CarrierQUIC))
		r := edge.Replica(t)
		for range 10 {
			hold(t, r, throughput) // beyond the cap on QUIC, without waiting
		}
		if n := lanes(r); n > 2 {
			t.Fatalf("%d lanes, at most 2 are allowed", n)
		}
	})
}

// TestLaneSentinel cuts idle lanes: their end has the sessions probed, and new ones are dialled.
func TestLaneSentinel(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
		timing := link.Fast()
		timing.SetLiveness(time.Hour, time.Hour, 200*time.Millisecond)
		c.SetTiming(timing)
	})
	p := newPath(t, edge.Addr)
	linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
		through(p, link.CarrierQUIC)(c)
		timing := link.Fast()
		timing.SetLiveness(time.Hour, time.Hour, 200*time.Millisecond)
		c.SetTiming(timing)
	})
	r := edge.Replica(t)
	eventually(t, "no lane", func() bool { return lanes(r) == 1 })
	roundTrip(t, r, throughput)
	old := r.LaneIDs()
	p.Cut()
	eventually(t, "no new lane", func() bool {
		ids := r.LaneIDs()
		return len(ids) == 1 && !slices.Contains(old, ids[0])
	})
	roundTrip(t, r, throughput)
	if len(r.Sessions()) != 1 {
		t.Fatal("a session that answers was closed")
	}
	// Now UDP is dead too: without any ping due, the lane's end alone gives it away.
	eventually(t, "no lane", func() bool { return lanes(r) >= 1 })
	p.noUDP.Store(true)
	p.Cut()
	if left := edge.Left(t); left != r {
		t.Fatal("another replica left")
	}
}

// TestStatelessReset restarts an edge without a word: the agent's next ping is answered by a
// reset, long before silence would tell.
func TestStatelessReset(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
		only(link.CarrierQUIC)(c)
		timing := link.Fast()
		timing.SetLiveness(200*time.Millisecond, time.Hour, time.Hour)
		c.SetTiming(timing)
		c.MaxLanes = 1
	})
	agent.Serve([]string{"t"})
	edge.Replica(t)
	edge.Kill()
	edge = linktest.NewEdgeAt(t, edge.Addr.String(), edge.Key, []*linktest.Token{tok}, fastEdge)
	roundTrip(t, edge.Replica(t), latency)
}
