package hub

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// Traffic is kept in steps of a minute, an hour and a day, in seconds.
const (
	minuteStep = 60
	hourStep   = 3600
	dayStep    = 86400
)

// keepTraffic is how long each step is kept; maxTraffic caps the rows of each: beyond it the
// oldest half goes.
var keepTraffic = map[int64]time.Duration{minuteStep: 48 * time.Hour, hourStep: 30 * 24 * time.Hour, dayStep: 400 * 24 * time.Hour}

const (
	maxTraffic = 1_000_000
	// trafficFlush is how often what edges reported is stored. A hub that is killed loses that much.
	trafficFlush = 10 * time.Second
	// maxPoints caps one answer, usualPoints is what an answer without a step aims at.
	maxPoints   = 2000
	usualPoints = 200
)

// trafficKey is one tunnel in one minute, in Unix seconds.
type trafficKey struct {
	at     int64
	tunnel string
}

// traffic adds up what edges report until it is stored.
type traffic struct {
	mu   sync.Mutex
	rows map[trafficKey]*hubv1.TrafficReport
	// seqs is the last report of each edge that was added: one that is sent again counts once.
	seqs map[string]uint64
}

func newTraffic() *traffic {
	return &traffic{rows: map[trafficKey]*hubv1.TrafficReport{}, seqs: map[string]uint64{}}
}

// add takes what an edge counted since its last report.
func (t *traffic) add(edge string, now time.Time, reports []*hubv1.TrafficReport) {
	if len(reports) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seq := reports[0].GetSeq()
	if seq <= t.seqs[edge] {
		return
	}
	t.seqs[edge] = seq
	at := now.Unix() / minuteStep * minuteStep
	for _, r := range reports {
		k := trafficKey{at, r.GetTunnelId()}
		if t.rows[k] == nil {
			t.rows[k] = &hubv1.TrafficReport{}
		}
		t.rows[k].Add(r)
	}
}

func (t *traffic) take() map[trafficKey]*hubv1.TrafficReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := t.rows
	t.rows = map[trafficKey]*hubv1.TrafficReport{}
	return rows
}

// giveBack keeps what could not be stored.
func (t *traffic) giveBack(rows map[trafficKey]*hubv1.TrafficReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, r := range rows {
		if have := t.rows[k]; have != nil {
			r.Add(have)
		}
		t.rows[k] = r
	}
}

// flushTraffic adds what was counted to the store.
func (h *Hub) flushTraffic(ctx context.Context) error {
	rows := h.traffic.take()
	if len(rows) == 0 {
		return nil
	}
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		for k, r := range rows {
			// A report of a tunnel that the edge made up is nobody's.
			if h.feed.get("tunnel/"+k.tunnel) == nil {
				continue
			}
			for _, step := range []int64{minuteStep, hourStep, dayStep} {
				if err := addTraffic(tx, step, k.at/step*step, k.tunnel, r); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		h.traffic.giveBack(rows)
	}
	return err
}

// addTraffic adds to one row: several hubs may write the same.
func addTraffic(tx *store.Tx, step, at int64, tunnel string, r *hubv1.TrafficReport) error {
	row, err := tx.TrafficAt(step, at, tunnel)
	if err != nil {
		return err
	}
	sum := &hubv1.TrafficReport{}
	if row != nil {
		if err := proto.Unmarshal(row.Counters, sum); err != nil {
			return err
		}
	}
	sum.Add(r)
	raw, err := proto.Marshal(sum)
	if err != nil {
		return err
	}
	return tx.PutTraffic(&store.Traffic{Step: step, At: at, TunnelID: tunnel, Counters: raw})
}

// pruneTraffic forgets what is too old, and the older half of a step that has too many rows.
func pruneTraffic(tx *store.Tx) error {
	for step, keep := range keepTraffic {
		oldest := tx.Now.Add(-keep).Unix()
		if err := tx.PruneTraffic(step, oldest); err != nil {
			return err
		}
		n, err := tx.CountTraffic(step)
		if err != nil {
			return err
		}
		for n > maxTraffic {
			keep /= 2
			if err := tx.PruneTraffic(step, tx.Now.Add(-keep).Unix()); err != nil {
				return err
			}
			if n, err = tx.CountTraffic(step); err != nil {
				return err
			}
		}
	}
	return nil
}

// GetTraffic returns a series of what passed a tunnel, or all of them. Every step from since to
// until has a point, also where nothing passed.
func (h *Hub) GetTraffic(ctx context.Context, r *hubv1.GetTrafficRequest) (*hubv1.GetTrafficResponse, error) {
	id := ""
	if r.GetLabel() != "" {
		t, err := h.findTunnel(r.GetLabel())
		if err != nil {
			return nil, err
		}
		id = t.GetId()
	}
	step, since, until, err := h.trafficRange(r)
	if err != nil {
		return nil, err
	}
	var rows []store.Traffic
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.TrafficOf(id, step, since, until); return err }); err != nil {
		return nil, err
	}
	sums := map[int64]*hubv1.TrafficReport{}
	total := &hubv1.TrafficReport{}
	for _, row := range rows {
		c := &hubv1.TrafficReport{}
		if err := proto.Unmarshal(row.Counters, c); err != nil {
			return nil, err
		}
		if sums[row.At] == nil {
			sums[row.At] = &hubv1.TrafficReport{}
		}
		sums[row.At].Add(c)
		total.Add(c)
	}
	out := &hubv1.GetTrafficResponse{StepSeconds: uint32(step), Total: pointOf(since, total)}
	for at := since; at < until; at += step {
		out.Points = append(out.Points, pointOf(at, sums[at]))
	}
	return out, nil
}

// trafficRange reads step, since and until of a request, aligned to the step.
func (h *Hub) trafficRange(r *hubv1.GetTrafficRequest) (step, since, until int64, err error) {
	end := h.cfg.Now()
	if r.GetUntil() != nil {
		end = r.GetUntil().AsTime()
	}
	begin := end.Add(-time.Hour)
	if r.GetSince() != nil {
		begin = r.GetSince().AsTime()
	}
	if !begin.Before(end) {
		return 0, 0, 0, invalid("since", begin.Format(time.RFC3339), "give a time before until", "is not before %s", end.Format(time.RFC3339))
	}
	switch step = int64(r.GetStepSeconds()); step {
	case minuteStep, hourStep, dayStep:
	case 0:
		for _, step = range []int64{minuteStep, hourStep, dayStep} {
			if int64(end.Sub(begin)/time.Second)/step <= usualPoints {
				break
			}
		}
	default:
		return 0, 0, 0, invalid("step_seconds", fmt.Sprint(step), "use 60, 3600 or 86400", "is no step")
	}
	since = begin.Unix() / step * step
	until = end.Unix()/step*step + step // the step that is running counts
	if n := (until - since) / step; n > maxPoints {
		return 0, 0, 0, invalid("step_seconds", fmt.Sprint(step), "choose a longer step, or a shorter time", "gives %d points, more than %d", n, maxPoints)
	}
	return step, since, until, nil
}

func pointOf(at int64, c *hubv1.TrafficReport) *hubv1.TrafficPoint {
	ms := func(q float64) float64 {
		return float64(hubv1.LatencyQuantile(c.GetLatencyCounts(), q)) / float64(time.Millisecond)
	}
	return &hubv1.TrafficPoint{
		At: timestamppb.New(time.Unix(at, 0)), Requests: c.GetRequests(), Connections: c.GetConnections(), BytesIn: c.GetBytesIn(), BytesOut: c.GetBytesOut(),
		Errors: c.GetErrors(), P50Ms: ms(0.5), P90Ms: ms(0.9), P99Ms: ms(0.99), Statuses: c.GetStatuses(), Dropped: c.GetDropped(),
	}
}
