package link_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

// roundTrip sends text through a stream and wants it back.
func roundTrip(t *testing.T, r *link.Replica, policy hubv1.CarrierPolicy) {
	t.Helper()
	st, err := r.Open(ctx10(t), tcpHeader("t"), policy, []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	_ = st.SetDeadline(time.Now().Add(10 * time.Second))
	_ = st.CloseWrite()
	if b, err := io.ReadAll(st); err != nil || string(b) != "text" {
		t.Fatalf("%q, %v", b, err)
	}
}

// hold opens a stream that stays open, and returns a check that it still lives.
func hold(t *testing.T, r *link.Replica, policy hubv1.CarrierPolicy) (link.Outgoing, func()) {
	t.Helper()
	st, err := r.Open(ctx10(t), tcpHeader("t"), policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	check := func() {
		t.Helper()
		_ = st.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := st.Write([]byte("beat")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(st, buf); err != nil || string(buf) != "beat" {
			t.Fatalf("%q, %v", buf, err)
		}
	}
	check()
	return st, check
}

func through(p *path, carriers ...string) func(*link.ConnectorConfig) {
	return func(c *link.ConnectorConfig) {
		fastAgent(c)
		c.Carriers = carriers
		c.Edge.Addresses = []string{p.addr.String()}
	}
}

func carrierOf(r *link.Replica) string {
	s := r.Sessions()
	if len(s) == 0 {
		return ""
	}
	return s[len(s)-1].Carrier
}

func TestRefusals(t *testing.T) {
	good, unknown, revoked, expired := linktest.NewToken(t), linktest.NewToken(t), linktest.NewToken(t), linktest.NewToken(t)
	revoked.Credential.Revoked = true
	expired.Credential.ExpiresAt = timestamp(time.Now().Add(-time.Minute))
	edge := linktest.NewEdge(t, []*linktest.Token{good, revoked, expired}, fastEdge)
	forged := linktest.NewToken(t)
	// Somebody who knows a token's public keys, not its seed.
	stolen := &linktest.Token{Keys: forged.Keys, Credential: good.Credential}
	edge.Set(forged, good.Credential)
	for _, c := range []struct {
		name   string
		tok    *linktest.Token
		reason reason.Code
	}{
		{"unknown token", unknown, reason.TokenUnknown},
		{"revoked token", revoked, reason.TokenRevoked},
		{"expired token", expired, reason.TokenExpired},
		{"forged proof", stolen, reason.ProofInvalid},
	} {
		for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
			t.Run(c.name+" over "+carrier, func(t *testing.T) {
				a := linktest.NewAgent(t, edge, c.tok, echo, only(carrier))
				eventually(t, "no refusal", func() bool { err, _ := a.LastError(); return err != nil })
				err, at := a.LastError()
				var e *reason.Error
				if !errors.As(err, &e) || e.Code != c.reason || e.Hop != reason.HopEdge || e.Detail == "" || at.IsZero() {
					t.Fatalf("error %v", err)
				}
				if len(a.Sessions()) != 0 {
					t.Fatal("a session is up")
				}
				a.Stop()
			})
		}
	}
	t.Run("wrong pin", func(t *testing.T) {
		for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
			a := linktest.NewAgent(t, edge, good, echo, func(c *link.ConnectorConfig) {
				only(carrier)(c)
				c.Edge.KeyHash = make([]byte, 32)
			})
			eventually(t, "no error", func() bool { err, _ := a.LastError(); return err != nil })
			if err, _ := a.LastError(); !strings.Contains(err.Error(), "pin") {
				t.Fatalf("%s: %v", carrier, err)
			}
			a.Stop()
		}
	})
	t.Run("wrong edge", func(t *testing.T) {
		a := linktest.NewAgent(t, edge, good, echo, func(c *link.ConnectorConfig) {
			only(link.CarrierTLS)(c)
			c.Edge.Id = "0123456789abcdef"
		})
		eventually(t, "no error", func() bool { err, _ := a.LastError(); return reason.Is(err, reason.WrongEdge) })
	})
	if n := len(edge.Acceptor.Replicas()); n != 0 {
		t.Fatalf("%d replicas joined", n)
	}
}

func TestReconnect(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run(carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
			p := newPath(t, edge.Addr)
			served := make(chan []string, 16)
			agent := linktest.NewAgent(t, edge, tok, echo, through(p, carrier))
			agent.Serve([]string{"x"})
			r := edge.Replica(t)
			_ = served
			roundTrip(t, r, auto)
			t.Run("silence", func(t *testing.T) {
				p.silent.Store(true)
				if left := edge.Left(t); left != r {
					t.Fatal("another replica left")
				}
				eventually(t, "the agent did not notice", func() bool { return len(agent.Sessions()) == 0 })
				eventually(t, "no last error", func() bool { err, _ := agent.LastError(); return err != nil })
				_, err := r.Open(ctx10(t), tcpHeader("t"), auto, nil)
				if !reason.Is(err, reason.NoAgent) {
					t.Fatalf("open: %v", err)
				}
				p.silent.Store(false)
				r = edge.Replica(t)
				roundTrip(t, r, auto)
				if err, _ := agent.LastError(); err != nil {
					t.Fatalf("last error %v", err)
				}
			})
			t.Run("edge restart", func(t *testing.T) {
				addr, key := edge.Addr.String(), edge.Key
				edge.Close()
				eventually(t, "the agent did not notice", func() bool { return len(agent.Sessions()) == 0 })
				edge = linktest.NewEdgeAt(t, addr, key, []*linktest.Token{tok}, fastEdge)
				roundTrip(t, edge.Replica(t), auto)
			})
			agent.Stop()
			edge.Close()
		})
	}
}

// TestUpgrade starts where only TCP passes and has the session move once UDP does.
func TestUpgrade(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	p := newPath(t, edge.Addr)
	p.noUDP.Store(true)
	agent := linktest.NewAgent(t, edge, tok, echo, through(p))
	r := edge.Replica(t)
	if c := carrierOf(r); c != link.CarrierTLS {
		t.Fatalf("carrier %q while UDP is blocked", c)
	}
	_, alive := hold(t, r, auto)
	p.noUDP.Store(false)
	eventually(t, "no upgrade to QUIC", func() bool {
		s := r.Sessions()
		return len(s) == 1 && s[0].Carrier == link.CarrierQUIC
	})
	alive() // the lane outlived the session that it began with
	roundTrip(t, r, latency)
	roundTrip(t, r, throughput)
	eventually(t, "the agent keeps the old session", func() bool { return len(agent.Sessions()) == 1 })

	t.Run("falls back", func(t *testing.T) {
		p.noUDP.Store(true)
		eventually(t, "no fallback", func() bool {
			s := r.Sessions()
			return len(s) == 1 && s[0].Carrier == link.CarrierTLS
		})
		roundTrip(t, r, auto)
		alive()
	})
}

// TestUpgradeKeepsStreams has a QUIC stream on a session that is replaced: it goes on.
func TestUpgradeKeepsStreams(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	d := linktest.NewDialler(t, tok)
	agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { only(link.CarrierQUIC)(c); c.Dialler = d })
	r := edge.Replica(t)
	st, alive := hold(t, r, latency)
	if err := agent.Reopen(ctx10(t), wirev1.SessionMode_SESSION_MODE_UPGRADE); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old session does not drain", func() bool {
		s := r.Sessions()
		return len(s) == 2 && s[0].Draining && !s[1].Draining && s[0].Streams == 1
	})
	roundTrip(t, r, latency)
	alive()
	_ = st.Close()
	eventually(t, "the old session outlives its last stream", func() bool { return len(r.Sessions()) == 1 && len(agent.Sessions()) == 1 })

	t.Run("supersede closes the old one", func(t *testing.T) {
		st, _ := hold(t, r, latency)
		if err := agent.Reopen(ctx10(t), wirev1.SessionMode_SESSION_MODE_SUPERSEDE); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("stream of a superseded session: %v", err)
		}
		eventually(t, "two sessions", func() bool { return len(r.Sessions()) == 1 })
		roundTrip(t, r, latency)
	})
}

func TestSiblings(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
		timing := link.Fast()
		timing.SetLiveness(time.Minute, time.Hour, 300*time.Millisecond)
		c.SetTiming(timing)
	})
	p := newPath(t, edge.Addr)
	linktest.NewAgent(t, edge, tok, echo, through(p, link.CarrierQUIC))
	silent := edge.Replica(t)
	linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS))
	second := edge.Replica(t)
	p.silent.Store(true)
	// The arrival of a third replica has the edge ask the others; the silent one goes.
	linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS))
	edge.Replica(t)
	if left := edge.Left(t); left != silent {
		t.Fatal("the wrong replica left")
	}
	if !second.Available() {
		t.Fatal("a live sibling was closed")
	}
	roundTrip(t, second, auto)
}

func TestDrain(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	agent := linktest.NewAgent(t, edge, tok, echo, only(link.CarrierQUIC))
	r := edge.Replica(t)
	_, alive := hold(t, r, latency)
	_, aliveLane := hold(t, r, throughput)
	agent.Drain()
	eventually(t, "the edge goes on using a draining agent", func() bool { return !r.Available() })
	alive()
	aliveLane()
	if !agent.Sessions()[0].Draining && !r.Sessions()[0].Draining {
		t.Fatal("no drain to be seen")
	}
	other := linktest.NewAgent(t, edge, tok, echo, only(link.CarrierTLS))
	edge.Replica(t)
	edge.Acceptor.Drain()
	eventually(t, "the agent does not see the edge drain", func() bool {
		s := other.Sessions()
		return len(s) == 1 && s[0].Draining
	})
	alive()
}

func TestRecheck(t *testing.T) {
	a, b := linktest.NewToken(t), linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{a, b}, fastEdge)
	linktest.NewAgent(t, edge, a, echo, only(link.CarrierQUIC))
	ra := edge.Replica(t)
	linktest.NewAgent(t, edge, b, echo, only(link.CarrierQUIC))
	rb := edge.Replica(t)
	quicStream, _ := hold(t, ra, latency)
	laneStream, _ := hold(t, ra, throughput)
	_, other := hold(t, rb, throughput)
	a.Credential.Revoked = true
	edge.Acceptor.Recheck(func(id string) *reason.Error {
		if id == a.Credential.TokenId {
			return reason.New(reason.TokenRevoked, reason.HopEdge, "revoked")
		}
		return nil
	})
	if left := edge.Left(t); left != ra {
		t.Fatal("the wrong replica left")
	}
	for _, st := range []link.Outgoing{quicStream, laneStream} {
		_ = st.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, link.ErrLost) && !errors.Is(err, link.ErrAborted) {
			t.Fatalf("stream of a revoked token: %v", err)
		}
	}
	other()
}

func TestConnectorEnds(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	t.Run("T25 cancelled while it dials or waits", func(t *testing.T) {
		p := newPath(t, edge.Addr)
		p.silent.Store(true)
		for i := range 20 {
			a := linktest.NewAgent(t, edge, tok, echo, through(p))
			time.Sleep(time.Duration(i) * 5 * time.Millisecond) // another step of dialling each time
			start := time.Now()
			a.Stop()
			if d := time.Since(start); d > 2*time.Second {
				t.Fatalf("stopping took %v", d)
			}
			if len(a.Sessions()) != 0 {
				t.Fatal("a session outlived its connector")
			}
		}
	})
	t.Run("T33 each connector has its own pause", func(t *testing.T) {
		// Three that fail do not slow the fourth one's first retry.
		dead := newPath(t, netip.MustParseAddrPort("127.0.0.1:1"))
		var tries atomic.Int64
		for range 3 {
			linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
				through(dead, link.CarrierTLS)(c)
				c.OnState = func() { tries.Add(1) }
			})
		}
		eventually(t, "no failures", func() bool { return tries.Load() >= 12 })
		p := newPath(t, edge.Addr)
		p.noTCP.Store(true)
		var mu sync.Mutex
		var failures int
		a := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
			through(p, link.CarrierTLS)(c)
			c.OnState = func() { mu.Lock(); failures++; mu.Unlock() }
		})
		eventually(t, "no first failure", func() bool { err, _ := a.LastError(); return err != nil })
		p.noTCP.Store(false)
		start := time.Now()
		edge.Replica(t)
		if d := time.Since(start); d > time.Second {
			t.Fatalf("the retry took %v after %d failures", d, failures)
		}
	})
}

func TestDialling(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	t.Run("an address that is dead costs little", func(t *testing.T) {
		dead := newPath(t, edge.Addr)
		dead.silent.Store(true)
		for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
			start := time.Now()
			a := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
				only(carrier)(c)
				c.Edge.Addresses = []string{dead.addr.String(), "127.0.0.1:1", edge.Addr.String()}
			})
			roundTrip(t, edge.Replica(t), auto)
			if d := time.Since(start); d > 3*time.Second {
				t.Fatalf("%s took %v", carrier, d)
			}
			a.Stop()
		}
	})
	t.Run("a path that loses a hello of two datagrams", func(t *testing.T) {
		p := newPath(t, edge.Addr)
		p.smallHello.Store(true)
		a := linktest.NewAgent(t, edge, tok, echo, through(p, link.CarrierQUIC))
		roundTrip(t, edge.Replica(t), latency)
		a.Stop()
	})
	t.Run("no address", func(t *testing.T) {
		a := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { fastAgent(c); c.Edge.Addresses = []string{"no-port"} })
		eventually(t, "no error", func() bool { err, _ := a.LastError(); return err != nil })
		if err, _ := a.LastError(); !strings.Contains(err.Error(), "host:port") {
			t.Fatalf("%v", err)
		}
		a.Stop()
	})
	t.Run("lanes that reach another edge are given up beside QUIC", func(t *testing.T) {
		other := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		p := newPath(t, edge.Addr)
		p.tcpTo.Store(&other.Addr)
		a := linktest.NewAgent(t, edge, tok, echo, through(p, link.CarrierQUIC))
		r := edge.Replica(t)
		eventually(t, "the edge goes on asking for lanes", func() bool { return r.LaneLimit() == 0 })
		roundTrip(t, r, throughput)
		a.Stop()
	})
}

func TestMetrics(t *testing.T) {
	tok := linktest.NewToken(t)
	er, ar := prometheus.NewRegistry(), prometheus.NewRegistry()
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { fastEdge(c); c.Registry = er })
	agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { only(link.CarrierQUIC)(c); c.Registry = ar })
	roundTrip(t, edge.Replica(t), auto)
	want := "# HELP adit_edge_sessions Sessions of agents, by carrier and path.\n# TYPE adit_edge_sessions gauge\nadit_edge_sessions{carrier=\"quic\",path=\"direct\"} 1\n"
	if err := testutil.GatherAndCompare(er, strings.NewReader(want), "adit_edge_sessions"); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(ar, "adit_agent_sessions", "adit_agent_session_reconnects_total", "adit_agent_lanes"); err != nil || n != 4 {
		t.Fatalf("%d series, %v", n, err)
	}
	agent.Stop()
	edge.Left(t)
	want = strings.Replace(want, "} 1", "} 0", 1)
	if err := testutil.GatherAndCompare(er, strings.NewReader(want), "adit_edge_sessions"); err != nil {
		t.Fatal(err)
	}
}
