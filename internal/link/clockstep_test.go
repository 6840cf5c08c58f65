package link_test

import (
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

// TestClockSteps has the system's clock jump under live sessions. It is not parallel: the clock is
// everybody's.
func TestClockSteps(t *testing.T) {
	tok, brief := linktest.NewToken(t), linktest.NewToken(t)
	brief.Credential.ExpiresAt = timestamp(time.Now().Add(30 * time.Minute))
	edge := linktest.NewEdge(t, []*linktest.Token{tok, brief}, fastEdge)
	type one struct {
		r      *link.Replica
		number uint64
		check  func()
	}
	var all []one
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS, link.CarrierWS} {
		linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) { fastAgent(c); only(carrier)(c) })
		r := edge.Replica(t)
		_, check := hold(t, r, auto)
		all = append(all, one{r, r.Sessions()[0].ID, check})
	}
	for _, step := range []time.Duration{25 * time.Hour, -26 * time.Hour} {
		t.Run("S14 sessions and streams outlive a step of the clock by "+step.String(), func(t *testing.T) {
			link.StepClock(t, step)
			time.Sleep(1500 * time.Millisecond) // longer than a peer may be silent
			for _, o := range all {
				if s := o.r.Sessions(); len(s) != 1 || s[0].ID != o.number {
					t.Errorf("%+v, want session %d alone", s, o.number)
				}
				o.check()
				roundTrip(t, o.r, auto)
			}
		})
	}
	t.Run("S14 a token ends by the time of day, and a clock set right again heals it", func(t *testing.T) {
		agent := linktest.NewAgent(t, edge, brief, echo, only(link.CarrierTLS))
		edge.Replica(t)
		agent.Stop()
		edge.Left(t)
		t.Run("ahead", func(t *testing.T) {
			link.StepClock(t, time.Hour)
			a := linktest.NewAgent(t, edge, brief, echo, only(link.CarrierTLS))
			eventually(t, "no refusal", func() bool { err, _ := a.LastError(); return reason.Is(err, reason.TokenExpired) })
			a.Stop()
		})
		linktest.NewAgent(t, edge, brief, echo, only(link.CarrierTLS))
		roundTrip(t, edge.Replica(t), auto)
	})
}
