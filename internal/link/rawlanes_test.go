package link_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func rawIdle(r *link.Replica) int { n, _ := r.RawLanes(); return n }

// onRaw reports whether a stream that is answered rides a raw lane.
func onRaw(t *testing.T, st link.Outgoing) bool {
	t.Helper()
	if _, err := st.Answer(ctx10(t)); err != nil {
		t.Fatal(err)
	}
	sp, ok := st.(link.Splicer)
	return ok && sp.HasSocket()
}

func TestRawLanes(t *testing.T) {
	tok := linktest.NewToken(t)
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS} {
		t.Run(carrier, func(t *testing.T) {
			er := prometheus.NewRegistry()
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { fastEdge(c); c.Registry = er })
			linktest.NewAgent(t, edge, tok, echo, only(carrier))
			r := edge.Replica(t)
			roundTrip(t, r, auto)
			if idle, all := r.RawLanes(); idle+all > 0 {
				t.Fatal("raw lanes though no tunnel asked for them")
			}
			// Without an idle one the stream goes as with auto, and some are asked for.
			st, err := r.Open(ctx10(t), tcpHeader("t"), rawPolicy, nil)
			if err != nil || onRaw(t, st) {
				t.Fatalf("the first stream: %v", err)
			}
			st.Abort()
			eventually(t, "no idle raw lane", func() bool { return rawIdle(r) > 0 })
			st, err = r.Open(ctx10(t), tcpHeader("t"), rawPolicy, []byte("text"))
			if err != nil || !onRaw(t, st) {
				t.Fatalf("not on a raw lane: %v", err)
			}
			if n := testutil.ToFloat64(gauge(t, er, "raw")); n < 1 {
				t.Errorf("%v raw lanes counted", n)
			}
			_ = st.CloseWrite()
			if b, err := io.ReadAll(st); err != nil || string(b) != "text" {
				t.Fatalf("%q, %v", b, err)
			}
			_ = st.Close()
			// A rush raises the number, calm lowers it again.
			for range 60 {
				st, err := r.Open(ctx10(t), tcpHeader("t"), rawPolicy, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer st.Abort()
			}
			eventually(t, "no more lanes after a rush", func() bool { return rawIdle(r) > 20 })
			eventually(t, "idle lanes stay", func() bool { return rawIdle(r) == 16 })
		})
	}
	t.Run("more than a few new ones a second take TLS lanes", func(t *testing.T) {
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
			timing := link.Fast()
			timing.SetRawRate(2)
			c.SetTiming(timing)
		})
		linktest.NewAgent(t, edge, tok, echo, fastAgent)
		r := edge.Replica(t)
		roundTrip(t, r, rawPolicy)
		eventually(t, "no idle raw lane", func() bool { return rawIdle(r) > 1 })
		raw := 0
		for range 20 {
			st, err := r.Open(ctx10(t), tcpHeader("t"), rawPolicy, nil)
			if err != nil {
				t.Fatal(err)
			}
			if onRaw(t, st) {
				raw++
			}
			st.Abort()
		}
		if raw == 0 || raw > 10 {
			t.Errorf("%d of 20", raw)
		}
	})
	t.Run("a revoked token's streams end", func(t *testing.T) {
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		linktest.NewAgent(t, edge, tok, echo, fastAgent)
		r := edge.Replica(t)
		st, err := r.OpenRaw(ctx10(t), tcpHeader("t"), nil)
		if err != nil || !onRaw(t, st) {
			t.Fatal(err)
		}
		edge.Set(tok, nil)
		edge.Acceptor.Recheck(func(string) *reason.Error { return reason.New(reason.TokenRevoked, reason.HopEdge, "revoked") })
		if _, err := io.ReadAll(st); !errors.Is(err, link.ErrLost) {
			t.Errorf("%v", err)
		}
		eventually(t, "raw lanes stay", func() bool { _, all := r.RawLanes(); return all == 0 })
	})
	t.Run("none over WebSockets, which the agent says once", func(t *testing.T) {
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		log := &lockedBuffer{}
		linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
			only(link.CarrierWS)(c)
			c.Log = slog.New(slog.NewTextHandler(log, nil))
		})
		r := edge.Replica(t)
		for range 20 {
			roundTrip(t, r, rawPolicy)
		}
		eventually(t, "no warning", func() bool { return strings.Contains(log.String(), "raw lanes are not available") })
		if n := strings.Count(log.String(), "raw lanes are not available"); n != 1 || rawIdle(r) > 0 {
			t.Errorf("%d warnings, %d raw lanes", n, rawIdle(r))
		}
	})
}

func gauge(t *testing.T, r *prometheus.Registry, kind string) prometheus.Gauge {
	t.Helper()
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "adit_edge_lanes", Help: "Lanes of agents, idle and busy, by kind."}, []string{"kind"})
	var are prometheus.AlreadyRegisteredError
	if err := r.Register(g); !errors.As(err, &are) {
		t.Fatalf("no gauge: %v", err)
	}
	return are.ExistingCollector.(*prometheus.GaugeVec).WithLabelValues(kind)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRawLaneProof knocks with what is not a fresh preamble of a live session.
func TestRawLaneProof(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	agent := linktest.NewAgent(t, edge, tok, echo, fastAgent)
	r := edge.Replica(t)
	roundTrip(t, r, auto)
	knock := func(t *testing.T, b []byte) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", edge.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		return c
	}
	good := agent.Preamble(1 << 40)
	before := rawIdle(r)
	taken := knock(t, good)
	eventually(t, "a good preamble is refused", func() bool { return rawIdle(r) == before+1 })
	_ = taken.Close()
	eventually(t, "the lane stays though its other end is closed", func() bool { return rawIdle(r) == 0 })
	// refused reports whether the edge closes the connection that begins with b.
	refused := func(t *testing.T, b []byte) bool {
		t.Helper()
		c := knock(t, b)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	}
	forged := agent.Preamble(1<<40 + 1)
	forged[20] ^= 1
	unknown := agent.Preamble(1<<40 + 2)
	unknown[3] ^= 1
	for name, b := range map[string][]byte{
		"replayed":            good,
		"forged":              forged,
		"of no session":       unknown,
		"too old":             agent.Preamble(1),
		"followed by payload": append(agent.Preamble(1<<40+3), "early"...),
		"HTTP":                []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if !refused(t, b) {
				t.Error("taken")
			}
		})
	}
	t.Run("of a session that ended", func(t *testing.T) {
		late := agent.Preamble(1<<40 + 4)
		agent.Stop()
		edge.Left(t)
		if !refused(t, late) {
			t.Error("taken")
		}
	})
}

// TestRawLaneOpensUnknown opens a stream on a lane that the agent does not have any more.
func TestRawLaneOpensUnknown(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	agent := linktest.NewAgent(t, edge, tok, echo, fastAgent)
	r := edge.Replica(t)
	roundTrip(t, r, auto)
	// A lane that the agent does not know: it was dialled by the test.
	c, err := net.Dial("tcp", edge.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(agent.Preamble(1 << 50)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no lane", func() bool { return rawIdle(r) == 1 })
	st, err := r.OpenRaw(context.Background(), tcpHeader("t"), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Answer(ctx10(t))
	if !reason.Is(err, reason.NoAgent) || !reason.Of(err, "").Untouched {
		t.Errorf("answer: %v", err)
	}
	_ = st.Close()
}
