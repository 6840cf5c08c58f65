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
