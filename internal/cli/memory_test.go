package cli

import (
	"testing"
	"time"
)

func TestTrimmer(t *testing.T) {
	const mib = 1 << 20
	now := time.Unix(1000, 0)
	var tr trimmer
	for _, s := range []struct {
		name            string
		allocated, live uint64
		after           time.Duration
		want            bool
	}{
		{"busy at the start", 30 * mib, 10 * mib, 0, false},
		{"silent after it", 30 * mib, 20 * mib, time.Second, true},
		{"nothing new", 30 * mib, 20 * mib, time.Minute, false},
		{"a little now and then", 32 * mib, 20 * mib, time.Second, false},
		{"busy", 60 * mib, 20 * mib, time.Second, false},
		{"silent, long after the last time", 60 * mib, 20 * mib, time.Second, true},
		{"busy again", 90 * mib, 20 * mib, time.Second, false},
		{"silent, but soon after the last time", 90 * mib, 20 * mib, time.Second, false},
		{"silent still", 90 * mib, 20 * mib, 10 * time.Second, true},
		{"a quarter of a large heap", 110 * mib, 400 * mib, time.Minute, false},
	} {
		now = now.Add(s.after)
		if got := tr.due(s.allocated, s.live, now); got != s.want {
			t.Errorf("%s: %v, want %v", s.name, got, s.want)
		}
	}
}
