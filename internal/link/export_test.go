package link

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Timing lets tests shorten intervals.
type Timing = timing

// Fast has the default intervals shortened for tests.
func Fast() Timing {
	t := defaultTiming()
	t.ping, t.dead, t.probe = 200*time.Millisecond, 900*time.Millisecond, 500*time.Millisecond
	t.laneWait = 2 * time.Second
	t.laneShrink, t.laneGrace, t.laneSilent = 600*time.Millisecond, time.Second, 800*time.Millisecond
	t.laneBackoff, t.tick = 50*time.Millisecond, 50*time.Millisecond
	t.backoffMin, t.backoffMax, t.worked = 20*time.Millisecond, 500*time.Millisecond, 50*time.Millisecond
	t.headStart, t.nextAddress, t.dial = 300*time.Millisecond, 50*time.Millisecond, 2*time.Second
	t.upgradeMin, t.upgradeMax = 100*time.Millisecond, 500*time.Millisecond
	t.openings = rate.Inf
	return t
}

// SetTiming replaces the intervals.
func (c *AcceptorConfig) SetTiming(t Timing) { c.timing = &t }

// SetTiming replaces the intervals.
func (c *ConnectorConfig) SetTiming(t Timing) { c.timing = &t }

// Steady is for tests under load: silence is noticed within seconds, not sooner. slow is for the
// race detector, under which an answer may well take that long.
func Steady(slow bool) Timing {
	t := Fast()
	t.ping, t.dead, t.probe = time.Second, 4*time.Second, 3*time.Second
	if slow {
		t.dead, t.probe = 10*time.Second, 10*time.Second
		// Lanes given up as they are made are made again, which makes all slower still.
		t.dial = 20 * time.Second
	}
	t.laneWait, t.laneShrink = 20*time.Second, time.Minute
	t.rawRate = 1 << 20
	return t
}

// Enter counts a connection of remote as one that has not proven itself.
func (a *Acceptor) Enter(remote netip.AddrPort) (leave func(), ok bool) { return a.enter(remote) }

// SetRawRate sets how many raw lanes may be used in a second.
func (t *timing) SetRawRate(n int) { t.rawRate = n }

// OpenRaw opens a stream on a raw lane and on nothing else; it waits for one.
func (r *Replica) OpenRaw(ctx context.Context, h *wirev1.StreamHeader, first []byte) (Outgoing, error) {
	end := time.Now().Add(r.pair.timing.laneWait)
	for ctx.Err() == nil && time.Now().Before(end) && r.pair.current() != nil {
		h.StreamId = r.nextStream.Add(1)
		if out, err := r.openRaw(ctx, h, first); out != nil || err != nil {
			return out, err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, r.openError(cmp.Or(ctx.Err(), errors.New("no raw lane")), "no raw lane").Safe()
}

// RawLanes counts the raw lanes of the replica.
func (r *Replica) RawLanes() (idle, all int) {
	r.raw.mu.Lock()
	defer r.raw.mu.Unlock()
	return len(r.raw.idle), len(r.raw.all)
}

// Preamble is what a raw lane of the connector's session begins with.
func (c *Connector) Preamble(counter uint64) []byte { return c.pair.current().raw.preamble(counter) }

// SetLiveness sets the intervals of liveness.
func (t *timing) SetLiveness(ping, dead, probe time.Duration) {
	t.ping, t.dead, t.probe = ping, dead, probe
}

// Reopen opens a further session.
func (c *Connector) Reopen(ctx context.Context, mode wirev1.SessionMode) error {
	_, err := c.connect(ctx, c.carriers, mode)
	return err
}

// SetLaneWait sets how long a stream waits for a lane.
func (t *timing) SetLaneWait(d time.Duration) { t.laneWait = d }

// SetOpenings sets how often a replica may open sessions.
func (t *timing) SetOpenings(every time.Duration, burst int) {
	t.openings, t.openingBurst = rate.Every(every), burst
}

// LaneLimit is how many lanes the agent says it can hold.
func (r *Replica) LaneLimit() int {
	r.lanes.mu.Lock()
	defer r.lanes.mu.Unlock()
	return r.lanes.limit
}

// LaneIDs lists the lanes of the replica.
func (r *Replica) LaneIDs() []uint64 {
	r.lanes.mu.Lock()
	defer r.lanes.mu.Unlock()
	var ids []uint64
	for l := range r.lanes.all {
		ids = append(ids, l.id)
	}
	return ids
}

// Default has the intervals of production.
func Default() Timing { return defaultTiming() }
