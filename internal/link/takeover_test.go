package link_test

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/need"
)

// deafEdge notices no silence by itself for hours, so that only a successor ends old sessions.
func deafEdge(c *link.AcceptorConfig) {
	timing := link.Fast()
	timing.SetLiveness(time.Minute, time.Hour, time.Second)
	c.SetTiming(timing)
}

// TestTakeover drops all packets of an agent's flows; it dials again with the same identity.
func TestTakeover(t *testing.T) {
	times := 4
	if need.Soak() {
		times = 1000
	}
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run("T01 a silent death over "+carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, deafEdge)
			p := newPath(t, edge.Addr)
			agent := linktest.NewAgent(t, edge, tok, echo, through(p, carrier))
			r := edge.Replica(t)
			roundTrip(t, r, auto)
			goroutines := 0
			for i := range times {
				policy := auto
				if carrier == link.CarrierQUIC {
					policy = latency // lanes outlive sessions
				}
				st, _ := hold(t, r, policy)
				old := r.Sessions()[0].ID
				p.Hush()
				fresh := func() bool {
					s := r.Sessions()
					return len(s) > 0 && s[len(s)-1].ID > old
				}
				eventually(t, "the agent does not come back", fresh)
				start := time.Now()
				// The old session is closed, with its socket and what runs on it.
				eventually(t, "the old session lives on", func() bool { s := r.Sessions(); return len(s) == 1 && s[0].ID > old })
				if carrier == link.CarrierQUIC {
					_ = st.SetReadDeadline(time.Now().Add(5 * time.Second))
					if _, err := st.Read(make([]byte, 1)); errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
						t.Fatalf("a stream of the dead session: %v", err)
					}
				}
				_ = st.Close()
				roundTrip(t, r, auto)
				if d := time.Since(start); d > 2*time.Second {
					t.Errorf("the take-over took %v", d)
				}
				if len(edge.Acceptor.Replicas()) != 1 {
					t.Fatalf("%d replicas of one agent", len(edge.Acceptor.Replicas()))
				}
				if i == 0 {
					goroutines = runtime.NumGoroutine()
				}
			}
			eventually(t, "goroutines grow with each death", func() bool { return runtime.NumGoroutine() <= goroutines+20 })
			agent.Stop()
		})
	}
}

// TestFlapping has agents come and go all the time.
func TestFlapping(t *testing.T) {
	tok := linktest.NewToken(t)
	t.Run("T02 a replica that opens session after session is slowed", func(t *testing.T) {
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
			timing := link.Fast()
			timing.SetOpenings(500*time.Millisecond, 5)
			c.SetTiming(timing)
		})
		agent := linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS))
		r := edge.Replica(t)
		var err error
		opened := 1
		for ; opened < 50; opened++ {
			if err = agent.Reopen(ctx10(t), wirev1.SessionMode_SESSION_MODE_SUPERSEDE); err != nil {
				break
			}
		}
		if !reason.Is(err, reason.RateLimited) {
			t.Fatalf("%d sessions in a row, then %v", opened, err)
		}
		// Others of the token are not slowed, and the session it has works on.
		linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS))
		roundTrip(t, edge.Replica(t), auto)
		roundTrip(t, r, auto)
		eventually(t, "the replica stays shut out", func() bool {
			return agent.Reopen(ctx10(t), wirev1.SessionMode_SESSION_MODE_SUPERSEDE) == nil
		})
	})
	t.Run("T02 agents that come and go leave nothing", func(t *testing.T) {
		agents, rounds := 20, 4
		if need.Soak() {
			agents, rounds = 100, 200
		}
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		base := runtime.NumGoroutine()
		for range rounds {
			var all []*linktest.Agent
			for range agents {
				all = append(all, linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS)))
			}
			for range agents {
				edge.Replica(t)
			}
			for _, a := range all {
				a.Stop()
			}
			for range agents {
				edge.Left(t)
			}
		}
		eventually(t, "replicas stay", func() bool { return len(edge.Acceptor.Replicas()) == 0 })
		eventually(t, "goroutines stay", func() bool { return runtime.NumGoroutine() <= base+10 })
	})
}

// TestFallback is about which carrier is used as a network changes.
func TestFallback(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	carrier := func(t *testing.T, r *link.Replica, want string) {
		t.Helper()
		eventually(t, "not on "+want, func() bool { s := r.Sessions(); return len(s) == 1 && s[0].Carrier == want })
	}
	t.Run("T07 UDP blocked from the start, with the intervals of production", func(t *testing.T) {
		p := newPath(t, edge.Addr)
		p.noUDP.Store(true)
		start := time.Now()
		a := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { c.Edge.Addresses = []string{p.addr.String()} })
		r := edge.Replica(t)
		if d := time.Since(start); d > 10*time.Second || carrierOf(r) != link.CarrierTLS {
			t.Fatalf("%s after %v", carrierOf(r), d)
		}
		a.Stop()
		edge.Left(t)
	})
	t.Run("T07 everything blocked, then only UDP opened, then all", func(t *testing.T) {
		p := newPath(t, edge.Addr)
		p.noUDP.Store(true)
		a := linktest.NewAgent(t, edge, tok, echo, through(p))
		r := edge.Replica(t)
		p.noUDP.Store(false)
		carrier(t, r, link.CarrierQUIC) // unblocked later, it moves
		p.silent.Store(true)
		edge.Left(t)
		p.noTCP.Store(true)
		p.silent.Store(false)
		r = edge.Replica(t)
		carrier(t, r, link.CarrierQUIC)
		roundTrip(t, r, latency)
		a.Stop()
		edge.Left(t)
	})
	t.Run("T07 5 percent of loss are no reason to leave QUIC", func(t *testing.T) {
		lossy := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { c.SetTiming(link.Steady(true)) })
		p := newPath(t, lossy.Addr)
		p.lossy.Store(20)
		a := linktest.NewAgent(t, lossy, tok, echo, func(c *link.ConnectorConfig) {
			c.SetTiming(link.Steady(true))
			c.Edge.Addresses = []string{p.addr.String()}
		})
		r := lossy.Replica(t)
		carrier(t, r, link.CarrierQUIC)
		number := r.Sessions()[0].ID
		for range 100 {
			roundTrip(t, r, latency)
		}
		if s := r.Sessions(); len(s) != 1 || s[0].Carrier != link.CarrierQUIC || s[0].ID != number {
			t.Fatalf("%+v, want the first session", s)
		}
		a.Stop()
	})
}

// TestNAT has a path that forgets flows.
func TestNAT(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run("T17 an idle session outlives the NAT's timeout over "+carrier, func(t *testing.T) {
			t.Parallel()
			tok := linktest.NewToken(t)
			// The proportions of 15 s, 45 s and a NAT that forgets after 60 s.
			timing := link.Fast()
			timing.SetLiveness(300*time.Millisecond, 3*time.Second, 3*time.Second)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { c.SetTiming(timing) })
			p := newPath(t, edge.Addr)
			p.idle.Store(int64(1500 * time.Millisecond))
			agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
				through(p, carrier)(c)
				c.SetTiming(timing)
			})
			r := edge.Replica(t)
			number := r.Sessions()[0].ID
			time.Sleep(4 * time.Second) // silence is what is tested
			if s := r.Sessions(); len(s) != 1 || s[0].ID != number {
				t.Fatalf("%+v, want the first session", s)
			}
			if carrier == link.CarrierQUIC {
				roundTrip(t, r, latency)
			}
			// A NAT that forgets all the same: both ends notice, and the agent comes back unasked.
			p.Hush()
			eventually(t, "nobody noticed", func() bool {
				s := r.Sessions()
				return len(s) == 1 && s[0].ID > number && len(agent.Sessions()) == 1
			})
		})
	}
}

// TestFamilies dials edges of which one address family works.
func TestFamilies(t *testing.T) {
	need.Kernel(t, need.IPv6)
	tok := linktest.NewToken(t)
	v4 := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	v6 := linktest.NewEdgeAt(t, "[::1]:0", nil, []*linktest.Token{tok}, fastEdge)
	// Takes connections and datagrams, and never answers.
	hole, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	udp, err := net.ListenPacket("udp", hole.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for _, c := range []struct {
		name  string
		edge  *linktest.Edge
		addrs []string
	}{
		{"T26 IPv4 only", v4, []string{v4.Addr.String()}},
		{"T26 IPv6 only", v6, []string{v6.Addr.String()}},
		{"T26 IPv6 refuses", v4, []string{"[::1]:1", v4.Addr.String()}},
		{"T26 IPv6 is a black hole", v4, []string{hole.Addr().String(), v4.Addr.String()}},
		{"T26 IPv4 is not routed", v6, []string{"0.0.0.1:443", v6.Addr.String()}},
	} {
		for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
			t.Run(c.name+" over "+carrier, func(t *testing.T) {
				start := time.Now()
				a := linktest.NewAgent(t, c.edge, tok, echo, func(cc *link.ConnectorConfig) {
					cc.Carriers, cc.Edge.Addresses = []string{carrier}, c.addrs
				})
				roundTrip(t, c.edge.Replica(t), auto)
				if d := time.Since(start); d > 3*time.Second {
					t.Errorf("connected after %v", d)
				}
				a.Stop()
				c.edge.Left(t)
			})
		}
	}
}
