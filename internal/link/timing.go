package link

import (
	"time"

	"golang.org/x/time/rate"
)

// timing holds every interval and allowance of the link, so that tests can make them small.
type timing struct {
	// ping is how often a control message is sent; dead is how long nothing may be heard.
	ping, dead time.Duration
	// probe is how long a probed session may take to answer.
	probe time.Duration
	// answer is how long a stream may be unanswered before its agent is probed.
	answer time.Duration
	// stalled is how long a write must be blocked to count as stalled; stalledBytes is what the
	// stalled streams of a QUIC session may hold in the peer's memory.
	stalled      time.Duration
	stalledBytes int64
	// laneWait bounds waiting for a lane when there is no QUIC session.
	laneWait time.Duration
	// laneShrink is how long demand must be lower before idle lanes are retired.
	laneShrink time.Duration
	// laneGrace is how long lanes outlive the last session of their replica.
	laneGrace time.Duration
	// laneSilent is the same where the session ended because nothing was heard: long enough for an
	// agent that lives to be back over another carrier.
	laneSilent time.Duration
	// laneAge and laneBytes retire a lane.
	laneAge   time.Duration
	laneBytes int64
	// laneBackoff is the first pause after a failed lane dial; it doubles up to a minute.
	laneBackoff time.Duration
	// rawRate is how many raw lanes of a replica are used in a second; each one that ends leaves a
	// port behind for a minute.
	rawRate int
	// tick is how often a pair looks after its lanes and stalled streams.
	tick time.Duration
	// linger bounds reading on after the local end, so that the peer gets what is in flight.
	linger time.Duration
	// backoffMin and backoffMax bound the jittered pause between dials.
	backoffMin, backoffMax time.Duration
	// standby bounds the pause between the questions of a standby, each of which the edge holds for
	// a few seconds.
	standby time.Duration
	// worked is how long a session must live to reset the pause.
	worked time.Duration
	// headStart is how long a better carrier is tried alone; nextAddress the same for addresses.
	headStart, nextAddress time.Duration
	// dial bounds one attempt.
	dial time.Duration
	// upgradeMin and upgradeMax bound the pause between looks for a better carrier.
	upgradeMin, upgradeMax time.Duration
	// drainMax is how long a replaced session may go on for its last streams.
	drainMax time.Duration
	// openings is how often one replica may open sessions; openingBurst how many at once.
	openings     rate.Limit
	openingBurst int
}

func defaultTiming() timing {
	return timing{
		ping: 15 * time.Second, dead: 45 * time.Second, probe: 3 * time.Second,
		answer: 2 * time.Second, stalled: 5 * time.Second, stalledBytes: 256 << 20,
		laneWait: 5 * time.Second, laneShrink: time.Minute, laneGrace: time.Minute, laneSilent: 15 * time.Second,
		laneAge: 24 * time.Hour, laneBytes: 64 << 30, laneBackoff: time.Second,
		rawRate: 200,
		tick:    time.Second, linger: 30 * time.Second,
		backoffMin: time.Second, backoffMax: time.Minute, standby: time.Second, worked: 10 * time.Second,
		headStart: 1500 * time.Millisecond, nextAddress: 250 * time.Millisecond, dial: 10 * time.Second,
		upgradeMin: 30 * time.Second, upgradeMax: 4 * time.Minute,
		drainMax: 24 * time.Hour,
		openings: rate.Every(2 * time.Second), openingBurst: 20,
	}
}
