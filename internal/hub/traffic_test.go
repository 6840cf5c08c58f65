package hub

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// passed is what the edge counted of a tunnel, as report seq.
func (h *testHub) passed(seq uint64, id string, requests uint64, latency time.Duration) {
	h.t.Helper()
	counts := make([]uint64, hubv1.LatencyBuckets)
	counts[hubv1.LatencyBucket(latency)] = requests
	err := h.LocalFeed(h.edge.Public()).Report(h.t.Context(), &hubv1.ReportRequest{Edge: h.address(), Traffic: []*hubv1.TrafficReport{{
		TunnelId: id, Seq: seq, Requests: requests, BytesIn: 10 * requests, BytesOut: 100 * requests, LatencyCounts: counts,
		Statuses: []uint64{0, 0, requests - 1, 0, 0, 1}, Errors: map[string]uint64{"origin_refused": 1},
	}}})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *testHub) traffic_(r *hubv1.GetTrafficRequest) *hubv1.GetTrafficResponse {
	h.t.Helper()
	if err := h.flushTraffic(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	out, err := h.GetTraffic(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func TestTraffic(t *testing.T) {
	h := newTestHub(t)
	r := h.replica(h.invite_("home", "*.home.dev"))
	ids := r.ok(web("a.home.dev"), web("b.home.dev"))
	h.passed(1, ids[0], 10, 20*time.Millisecond)
	h.passed(1, ids[0], 10, 20*time.Millisecond) // the same report again: its answer was lost
	h.passed(2, ids[1], 5, time.Second)
	h.passed(3, "made-up", 5, time.Second)
	h.clock.add(10 * time.Minute)
	h.passed(4, ids[0], 30, 40*time.Millisecond)

	one := h.traffic_(&hubv1.GetTrafficRequest{Label: "a.home.dev"})
	if one.GetStepSeconds() != 60 || len(one.GetPoints()) != 60 && len(one.GetPoints()) != 61 {
		t.Fatalf("step %d, %d points", one.GetStepSeconds(), len(one.GetPoints()))
	}
	total := one.GetTotal()
	if total.GetRequests() != 40 || total.GetBytesOut() != 4000 || total.GetErrors()["origin_refused"] != 2 || total.GetStatuses()[2] != 38 {
		t.Fatalf("total of one: %v", total)
	}
	if p := total.GetP50Ms(); p < 20 || p > 45 {
		t.Fatalf("p50 is %v ms", p)
	}
	busy := 0
	for i, p := range one.GetPoints() {
		if i > 0 && p.GetAt().AsTime().Sub(one.GetPoints()[i-1].GetAt().AsTime()) != time.Minute {
			t.Fatal("points are not a minute apart")
		}
		if p.GetRequests() > 0 {
			busy++
		}
	}
	if busy != 2 {
		t.Fatalf("%d minutes with requests", busy)
	}
	if all := h.traffic_(&hubv1.GetTrafficRequest{}).GetTotal(); all.GetRequests() != 45 {
		t.Fatalf("total of all: %v", all)
	}
	t.Run("a month is days, and survives what minutes do not", func(t *testing.T) {
		h.clock.add(72 * time.Hour)
		if err := h.prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		month := &hubv1.GetTrafficRequest{Since: timestamppb.New(h.clock.now().Add(-30 * 24 * time.Hour))}
		out := h.traffic_(month)
		if out.GetStepSeconds() != 86400 || out.GetTotal().GetRequests() != 45 {
			t.Fatalf("step %d, total %v", out.GetStepSeconds(), out.GetTotal())
		}
		month.StepSeconds = 3600
		if out := h.traffic_(month); out.GetTotal().GetRequests() != 45 {
			t.Fatalf("hours: %v", out.GetTotal())
		}
		if out := h.traffic_(&hubv1.GetTrafficRequest{Since: timestamppb.New(h.clock.now().Add(-73 * time.Hour)), Until: timestamppb.New(h.clock.now().Add(-71 * time.Hour)), StepSeconds: 60}); out.GetTotal().GetRequests() != 0 {
			t.Fatalf("minutes are still there: %v", out.GetTotal())
		}
	})
	for field, r := range map[string]*hubv1.GetTrafficRequest{
		"step_seconds": {StepSeconds: 61},
		"since":        {Since: timestamppb.New(h.clock.now().Add(time.Hour))},
		"label":        {Label: "tcp:x"},
	} {
		_, err := h.GetTraffic(t.Context(), r)
		wantProblem(t, err, reason.Invalid, field)
	}
	_, err := h.GetTraffic(t.Context(), &hubv1.GetTrafficRequest{Since: timestamppb.New(h.clock.now().Add(-30 * 24 * time.Hour)), StepSeconds: 60})
	wantProblem(t, err, reason.Invalid, "step_seconds")
}
