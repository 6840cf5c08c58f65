package link_test

import (
	"context"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
)

const (
	latency    = hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY
	throughput = hubv1.CarrierPolicy_CARRIER_POLICY_THROUGHPUT
	rawPolicy  = hubv1.CarrierPolicy_CARRIER_POLICY_RAW
)

// TestConformance runs the suite over every carrier and kind of stream.
func TestConformance(t *testing.T) {
	for _, k := range []struct {
		name, carrier string
		policy        hubv1.CarrierPolicy
		atOnce        int
	}{
		{"QUIC streams", link.CarrierQUIC, latency, 0},
		{"lanes beside QUIC", link.CarrierQUIC, throughput, 0},
		{"lanes of tls", link.CarrierTLS, auto, 32},
		{"lanes of ws", link.CarrierWS, auto, 32},
		{"raw lanes", link.CarrierQUIC, rawPolicy, 32},
	} {
		t.Run(k.name, func(t *testing.T) {
			linktest.Run(t, func(t testing.TB, h link.Handler) *linktest.Pair {
				return dialPair(t, h, k.carrier, k.policy, k.atOnce)
			})
		})
	}
}

func dialPair(t testing.TB, h link.Handler, carrier string, policy hubv1.CarrierPolicy, atOnce int) *linktest.Pair {
	timing := link.Steady(linktest.Race)
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) { c.SetTiming(timing) })
	p := newPath(t, edge.Addr)
	agent := linktest.NewAgent(t, edge, tok, h, func(c *link.ConnectorConfig) {
		c.SetTiming(timing)
		c.Carriers = []string{carrier}
		c.Edge.Addresses = []string{p.addr.String()}
	})
	r := edge.Replica(t)
	return &linktest.Pair{
		Open: func(ctx context.Context, h *wirev1.StreamHeader, first []byte) (link.Outgoing, error) {
			if policy == rawPolicy {
				return r.OpenRaw(ctx, h, first)
			}
			return r.Open(ctx, h, policy, first)
		},
		AtOnce: atOnce,
		Vanish: func() { p.silent.Store(true) },
		Close: func() {
			p.silent.Store(false)
			agent.Stop()
			edge.Close()
			p.Close()
		},
	}
}
