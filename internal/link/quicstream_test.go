package link

import (
	"testing"
	"time"
)

func TestBulkMeter(t *testing.T) {
	type write struct {
		after time.Duration
		bytes int
		bulk  bool
	}
	for name, writes := range map[string][]write{
		"echoes are not bulk": {{0, 128, false}, {time.Millisecond, 128, false}, {time.Second, 128, false}},
		"a download is, from its first hundred KiB": {{0, 32 << 10, false}, {time.Millisecond, 32 << 10, false},
			{time.Millisecond, 32 << 10, true}, {time.Second, 1000, true}, {500 * time.Millisecond, 128 << 10, true}},
		"one that slows down is bulk no more":   {{0, 128 << 10, true}, {time.Second, 100, true}, {time.Second, 100, false}},
		"nor is one that paused":                {{0, 128 << 10, true}, {time.Minute, 100, false}},
		"a thousand small answers a second are": {{0, 60 << 10, false}, {900 * time.Millisecond, 10 << 10, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var m bulkMeter
			now := time.Unix(1000, 0)
			for i, w := range writes {
				was := m.is
				now = now.Add(w.after)
				if changed := m.wrote(w.bytes, now); changed != (w.bulk != was) || m.is != w.bulk {
					t.Errorf("write %d: bulk %v, changed %v", i, m.is, changed)
				}
			}
		})
	}
}
