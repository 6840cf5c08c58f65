package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/adit-dev/adit/internal/origin"
)

const (
	// sweepEvery is how often connections are looked at whose visitor does not read.
	sweepEvery = time.Second
	// unreadSweeps is for how many of them in a row nothing may have moved before the abort of the
	// origin ends what it sent before.
	unreadSweeps = 3
)

// outward is the way from an origin to its visitor. While the visitor does not read, nobody reads
// the origin's socket either, and its abort would go unseen for as long.
type outward struct {
	origin *origin.Conn
	abort  func()
	// writing: a write to the stream has begun and not ended.
	writing atomic.Bool
	moved   atomic.Int64
	// seen and unread are the sweep's: moved at the last one, and for how many it was the same.
	seen   int64
	unread int
}

// sweeper looks at all of them.
type sweeper struct {
	mu    sync.Mutex
	ways  map[*outward]struct{}
	timer *time.Timer // runs while there are ways
}

func (s *sweeper) track(w *outward) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ways == nil {
		s.ways = map[*outward]struct{}{}
	}
	s.ways[w] = struct{}{}
	if s.timer == nil {
		s.timer = time.AfterFunc(sweepEvery, s.sweep)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ways, w)
	}
}

func (s *sweeper) sweep() {
	var stuck []*outward
	s.mu.Lock()
	for w := range s.ways {
		if n := w.moved.Load(); n != w.seen || !w.writing.Load() {
			w.seen, w.unread = n, 0
			continue
		}
		if w.unread++; w.unread >= unreadSweeps {
			stuck = append(stuck, w)
		}
	}
	if len(s.ways) == 0 {
		s.timer = nil
	} else {
		s.timer.Reset(sweepEvery)
	}
	s.mu.Unlock()
	for _, w := range stuck {
		if w.origin.Aborted() {
			w.abort()
		}
	}
}
