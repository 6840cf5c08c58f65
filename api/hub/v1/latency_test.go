package hubv1

import (
	"testing"
	"time"
)

func TestLatencyBuckets(t *testing.T) {
	for i := range LatencyBuckets - 1 {
		b := LatencyBound(i)
		if got := LatencyBucket(b); got != i {
			t.Errorf("the bound of bucket %d falls into %d", i, got)
		}
		if got := LatencyBucket(b + time.Microsecond); got != i+1 {
			t.Errorf("just above the bound of bucket %d: %d", i, got)
		}
	}
	if got := LatencyBucket(0); got != 0 {
		t.Errorf("nothing falls into bucket %d", got)
	}
	if got := LatencyBucket(24 * time.Hour); got != LatencyBuckets-1 {
		t.Errorf("a day falls into bucket %d", got)
	}
	if last := LatencyBound(LatencyBuckets - 2); last < 20*time.Minute {
		t.Errorf("the last bound is %s: response timeouts go to 20 minutes", last)
	}
}

func TestLatencyQuantile(t *testing.T) {
	counts := make([]uint64, LatencyBuckets)
	for ms := 1; ms <= 1000; ms++ {
		counts[LatencyBucket(time.Duration(ms)*time.Millisecond)]++
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.9: 900 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		got := LatencyQuantile(counts, q)
		if ratio := float64(got) / float64(want); ratio < 0.75 || ratio > 1.33 {
			t.Errorf("quantile %v is %s, want about %s", q, got, want)
		}
	}
	if got := LatencyQuantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}
