package cli

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// trimTick is how often the memory of the process is looked at, trimPause how long it is left
	// alone after it was given back.
	trimTick  = time.Second
	trimPause = 10 * time.Second
	// trimLeast is how many bytes must have been taken since to make it worth while.
	trimLeast = 4 << 20
)

// giveBackMemory returns to the system what a busy time left behind once it is over, until ctx ends:
// garbage is collected only when the heap has doubled, which a process that fell silent never does.
func giveBackMemory(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(trimTick)
	defer tick.Stop()
	var t trimmer
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			metrics.Read(samples)
			if t.due(samples[0].Value.Uint64(), samples[1].Value.Uint64(), now) {
				debug.FreeOSMemory()
			}
		}
	}
}

// trimmer decides when memory is given back.
type trimmer struct {
	seen, last uint64 // bytes allocated so far: at the last look, when memory was given back
	at         time.Time
}

// due takes the bytes allocated so far and those that lived at the last collection. It is time when a
// quarter as much as lives was allocated since, and next to nothing since the last look.
func (t *trimmer) due(allocated, live uint64, now time.Time) bool {
	quiet := allocated-t.seen < max(live/64, trimLeast/16)
	t.seen = allocated
	if !quiet || allocated-t.last < max(live/4, trimLeast) || now.Sub(t.at) < trimPause {
		return false
	}
	t.last, t.at = allocated, now
	return true
}
