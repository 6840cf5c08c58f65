package raw

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sweepEvery is how long a connection may hold a large buffer without using it, and how soon an
// abort is noticed behind a writer that the other side holds up.
const sweepEvery = time.Second

// watch is what the sweep looks at.
type watch struct {
	// holding: a large buffer is held for the stream's next bytes. kicked asks to let go of it.
	holding, kicked atomic.Bool
	// writing: a write to the stream has begun and not ended.
	writing atomic.Bool
	// lastIn and lastOut are the counts at the last sweep; only the sweep uses them.
	lastIn, lastOut int64
}

// sweep looks at all connections once, and again while there are any.
func (s *Server) sweep() {
	var idle, stuck []*carriage
	s.mu.Lock()
	for _, ks := range s.open {
		for k := range ks {
			in, out := k.in.Load(), k.out.Load()
			if k.holding.Load() && out == k.lastOut {
				idle = append(idle, k)
			}
			if k.writing.Load() && in == k.lastIn {
				stuck = append(stuck, k)
			}
			k.lastIn, k.lastOut = in, out
		}
	}
	if len(s.open) == 0 {
		s.sweeper = nil
	} else {
		s.sweeper.Reset(sweepEvery)
	}
	s.mu.Unlock()
	for _, k := range idle {
		k.kicked.Store(true)
		_ = k.stream.SetReadDeadline(time.Unix(1, 0))
	}
	for _, k := range stuck {
		if k.aborted() {
			k.abort()
		}
	}
}

// aborted reports whether the visitor's socket was reset. Nobody reads it while a write to the
// stream is held up.
func (k *carriage) aborted() bool {
	rc, err := k.socket()
	if err != nil {
		return false
	}
	gone := false
	err = rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(p, 0); n > 0 && err == nil {
			gone = p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
	})
	return err != nil || gone
}
