package link_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/test/need"
)

// drip writes to its stream for ever and reads nothing. Tunnel "quiet" gets nothing.
var drip = linktest.HandlerFunc(func(ctx context.Context, in link.Incoming) {
	st, err := in.Accept("")
	if err != nil {
		return
	}
	defer st.Close()
	if in.Header().TunnelId == "quiet" {
		<-ctx.Done()
		return
	}
	for {
		if _, err := st.Write(make([]byte, 16<<10)); err != nil {
			return
		}
	}
})

// TestSilentLanes has an agent fall silent with streams on lanes, over a path whose middle goes on
// to acknowledge what it gets: no kernel notices anything.
func TestSilentLanes(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run("T01 invariant 4 the streams on lanes end with their silent agent over "+carrier, func(t *testing.T) {
			t.Parallel()
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, deafEdge)
			p := newPath(t, edge.Addr)
			linktest.NewAgent(t, edge, tok, drip, through(p, carrier))
			r := edge.Replica(t)
			// Beside QUIC a stream that finds no lane does not wait for one.
			eventually(t, "no lane stands by", func() bool { return lanes(r) > 0 })
			streams := map[string]func(link.Outgoing) error{
				"quiet": func(st link.Outgoing) error {
					for {
						_ = st.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
						if _, err := st.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
							return err
						}
					}
				},
				"upload": func(st link.Outgoing) error {
					for {
						if _, err := st.Write(make([]byte, 64<<10)); err != nil {
							return err
						}
					}
				},
				"download": func(st link.Outgoing) error { _, err := io.Copy(io.Discard, st); return err },
			}
			ended := map[string]chan error{}
			for name, use := range streams {
				st, err := r.Open(ctx10(t), tcpHeader(name), throughput, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer st.Close()
				if _, err := st.Answer(ctx10(t)); err != nil {
					t.Fatal(err)
				}
				c := make(chan error, 1)
				ended[name] = c
				go func() { c <- use(st) }()
			}
			if carrier == link.CarrierQUIC && lanes(r) == 0 {
				t.Fatal("no stream is on a lane")
			}
			p.silent.Store(true)
			for name, c := range ended {
				select {
				case err := <-c:
					t.Fatalf("%s ended before anybody asked: %v", name, err)
				default:
				}
			}
			linktest.NewAgent(t, edge, tok, echo, only(carrier)) // the successor
			start := time.Now()
			for name, c := range ended {
				select {
				case err := <-c:
					if err == nil || errors.Is(err, io.EOF) {
						t.Errorf("%s: %v", name, err)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("%s goes on", name)
				}
			}
			t.Logf("all ended %v after the successor", time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestStalledReader has a visitor that stops reading for longer than a silent peer is waited for:
// a peer that does not read is not dead.
func TestStalledReader(t *testing.T) {
	stall := 3 * time.Second
	edgeTiming, agentTiming := link.Fast(), link.Fast()
	if need.Soak() {
		stall = 3 * time.Minute
		edgeTiming, agentTiming = link.Default(), link.Default()
	}
	for _, c := range []struct {
		name, carrier string
		raw           bool
	}{
		{"a TLS lane", link.CarrierTLS, false},
		{"a lane of ws", link.CarrierWS, false},
		{"a raw lane", link.CarrierTLS, true},
	} {
		t.Run("T12 a stalled reader keeps its stream on "+c.name, func(t *testing.T) {
			t.Parallel()
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(a *link.AcceptorConfig) { a.SetTiming(edgeTiming) })
			linktest.NewAgent(t, edge, tok, drip, func(a *link.ConnectorConfig) {
				a.SetTiming(agentTiming)
				a.Carriers = []string{c.carrier}
			})
			r := edge.Replica(t)
			var st link.Outgoing
			var err error
			if c.raw {
				_, _ = r.Open(ctx10(t), tcpHeader("t"), rawPolicy, nil) // asks for raw lanes
				st, err = r.OpenRaw(ctx10(t), tcpHeader("t"), nil)
			} else {
				st, err = r.Open(ctx10(t), tcpHeader("t"), throughput, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			read := func(n int64) {
				t.Helper()
				_ = st.SetReadDeadline(time.Now().Add(20 * time.Second))
				if got, err := io.CopyN(io.Discard, st, n); err != nil {
					t.Fatalf("after %d bytes: %v", got, err)
				}
			}
			read(1 << 20)
			time.Sleep(stall) // silence is what is tested
			read(64 << 20)    // more than was under way
		})
	}
}

// TestHalfOpen has a path that passes one way only: each end notices, and both are back once it
// passes both ways.
func TestHalfOpen(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		for _, toAgent := range []bool{true, false} {
			way := "to the edge"
			if toAgent {
				way = "to the agent"
			}
			t.Run("T17 half-open: nothing comes through "+way+" over "+carrier, func(t *testing.T) {
				t.Parallel()
				tok := linktest.NewToken(t)
				edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
				p := newPath(t, edge.Addr)
				agent := linktest.NewAgent(t, edge, tok, echo, through(p, carrier))
				r := edge.Replica(t)
				st, _ := hold(t, r, auto)
				number := r.Sessions()[0].ID
				half := &p.mute
				if toAgent {
					half = &p.deaf
				}
				half.Store(true)
				eventually(t, "the agent did not notice", func() bool { return len(agent.Sessions()) == 0 })
				eventually(t, "the edge did not notice", func() bool { s := r.Sessions(); return len(s) == 0 || s[0].ID > number })
				_ = st.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := st.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a stream of it: %v", err)
				}
				half.Store(false)
				eventually(t, "no session", func() bool {
					for _, r := range edge.Acceptor.Replicas() {
						if s := r.Sessions(); len(s) > 0 && s[len(s)-1].ID > number {
							return len(agent.Sessions()) > 0
						}
					}
					return false
				})
				eventually(t, "no stream", func() bool {
					all := edge.Acceptor.Replicas()
					if len(all) != 1 {
						return false
					}
					st, err := all[0].Open(ctx10(t), tcpHeader("t"), auto, []byte("text"))
					if err != nil {
						return false
					}
					defer st.Close()
					_ = st.SetDeadline(time.Now().Add(time.Second))
					_ = st.CloseWrite()
					b, err := io.ReadAll(st)
					return err == nil && string(b) == "text"
				})
			})
		}
	}
}
