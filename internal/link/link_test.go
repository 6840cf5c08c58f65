package link_test

import (
	"context"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers ok and copies back what comes.
var echo = linktest.HandlerFunc(func(_ context.Context, in link.Incoming) {
	if in.Header().TunnelId == "refused" {
		in.Refuse(reason.New(reason.OriginRefused, reason.HopOrigin, "127.0.0.1:1 refused the connection").Safe())
		return
	}
	st, err := in.Accept("alpn")
	if err != nil {
		return
	}
	defer st.Close()
	if _, err := io.Copy(st, st); err == nil {
		_ = st.CloseWrite()
	}
})

func fastEdge(c *link.AcceptorConfig)   { c.SetTiming(link.Fast()) }
func fastAgent(c *link.ConnectorConfig) { c.SetTiming(link.Fast()) }
func only(carriers ...string) func(*link.ConnectorConfig) {
	return func(c *link.ConnectorConfig) { fastAgent(c); c.Carriers = carriers }
}

func ctx10(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const auto = hubv1.CarrierPolicy_CARRIER_POLICY_AUTO

func tcpHeader(tunnel string) *wirev1.StreamHeader {
	return &wirev1.StreamHeader{TunnelId: tunnel, Kind: wirev1.Kind_KIND_TCP, Class: wirev1.Class_CLASS_BULK}
}

// eventually polls for what has no event to wait for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal(what)
}

func TestCarriers(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		t.Run(carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
			served := make(chan []*wirev1.TunnelVerdict, 10)
			agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
				only(carrier)(c)
				c.OnServed = func(v []*wirev1.TunnelVerdict) { served <- v }
			})
			agent.Serve([]string{"t1", "t2"})
			r := edge.Replica(t)
			if v := <-served; len(v) != 2 || v[0].Verdict != "ok" {
				t.Fatalf("verdicts %v", v)
			}
			if s := r.Sessions(); len(s) != 1 || s[0].Carrier != carrier {
				t.Fatalf("sessions %+v", s)
			}
			for range 3 {
				st, err := r.Open(ctx10(t), tcpHeader("t1"), auto, []byte("hello "))
				if err != nil {
					t.Fatal(err)
				}
				if a, err := st.Answer(ctx10(t)); err != nil || a.Alpn != "alpn" {
					t.Fatalf("answer %v, %v", a, err)
				}
				if _, err := st.Write([]byte("world")); err != nil {
					t.Fatal(err)
				}
				if err := st.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if b, err := io.ReadAll(st); err != nil || string(b) != "hello world" {
					t.Fatalf("got %q, %v", b, err)
				}
				st.Close()
			}
			st, err := r.Open(ctx10(t), tcpHeader("refused"), auto, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = st.Read(make([]byte, 1))
			if !reason.Is(err, reason.OriginRefused) || !reason.Of(err, "").Untouched {
				t.Fatalf("refusal: %v", err)
			}
			st.Close()
			eventually(t, "streams are not given back", func() bool { return r.Active() == 0 && agent.Active() == 0 })
			agent.Stop()
			edge.Left(t)
			edge.Close()
		})
	}
}
