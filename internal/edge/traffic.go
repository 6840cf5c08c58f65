package edge

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/edge/proxy"
	"github.com/adit-dev/adit/internal/reason"
)

// traffic counts what passes each tunnel until the hub has taken it.
type traffic struct {
	mu       sync.RWMutex
	counters map[string]*counters

	// The rest is the reporter's alone. sent are the reports that the hub has not confirmed: they
	// go again, unchanged, so that they count once.
	seq  uint64
	sent []*hubv1.TrafficReport
}

// counters are those of one tunnel since the last report.
type counters struct {
	requests, connections, in, out atomic.Uint64
	statuses                       [6]atomic.Uint64
	latency                        [hubv1.LatencyBuckets]atomic.Uint64

	mu     sync.Mutex
	errors map[reason.Code]uint64
}

// newTraffic numbers reports from the time on, so that those of a process that was restarted are
// newer.
func newTraffic(now time.Time) *traffic {
	return &traffic{counters: map[string]*counters{}, seq: uint64(now.UnixNano())}
}

// of returns the counters of a tunnel.
func (t *traffic) of(tunnelID string) *counters {
	t.mu.RLock()
	c := t.counters[tunnelID]
	t.mu.RUnlock()
	if c != nil {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c = t.counters[tunnelID]; c == nil {
		c = &counters{}
		t.counters[tunnelID] = c
	}
	return c
}

// answered counts one request of a visitor.
func (t *traffic) answered(o proxy.Outcome) {
	c := t.of(o.TunnelID)
	c.requests.Add(1)
	if class := o.Status / 100; class < len(c.statuses) {
		c.statuses[class].Add(1)
	}
	if o.FirstByte > 0 {
		c.latency[hubv1.LatencyBucket(o.FirstByte)].Add(1)
	}
	c.failed(o.Reason)
}

// carried counts one connection of a visitor; result is ok or the reason why it failed.
func (t *traffic) carried(tunnelID string, result reason.Code) {
	c := t.of(tunnelID)
	c.connections.Add(1)
	c.failed(result)
}

// failed counts an error; visitors who went away are none.
func (c *counters) failed(code reason.Code) {
	if code == "" || code == reason.OK || code == reason.ClientClosed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errors == nil {
		c.errors = map[reason.Code]uint64{}
	}
	c.errors[code]++
}

// take returns what was counted and begins anew; nil if nothing was.
func (c *counters) take() *hubv1.TrafficReport {
	r := &hubv1.TrafficReport{
		Requests: c.requests.Swap(0), Connections: c.connections.Swap(0), BytesIn: c.in.Swap(0), BytesOut: c.out.Swap(0),
	}
	c.mu.Lock()
	errors := c.errors
	c.errors = nil
	c.mu.Unlock()
	if r.Requests == 0 && r.Connections == 0 && r.BytesIn == 0 && r.BytesOut == 0 && errors == nil {
		return nil
	}
	for code, n := range errors {
		if r.Errors == nil {
			r.Errors = map[string]uint64{}
		}
		r.Errors[string(code)] = n
	}
	if r.Requests > 0 {
		r.Statuses, r.LatencyCounts = take(c.statuses[:]), take(c.latency[:])
	}
	return r
}

func take(counts []atomic.Uint64) []uint64 {
	out := make([]uint64, len(counts))
	for i := range counts {
		out[i] = counts[i].Swap(0)
	}
	return out
}

// reports are what the hub has not confirmed yet, else what was counted since. Of tunnels that are
// known no more it is the last word.
func (t *traffic) reports(known func(tunnelID string) bool) []*hubv1.TrafficReport {
	if len(t.sent) > 0 {
		return t.sent
	}
	t.mu.RLock()
	all := maps.Clone(t.counters)
	t.mu.RUnlock()
	t.seq++
	for id, c := range all {
		if r := c.take(); r != nil {
			r.TunnelId, r.Seq = id, t.seq
			t.sent = append(t.sent, r)
		}
		if !known(id) {
			t.mu.Lock()
			delete(t.counters, id)
			t.mu.Unlock()
		}
	}
	return t.sent
}

// confirmed drops what the hub has taken.
func (t *traffic) confirmed() { t.sent = nil }
