package raw

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sweepEvery is how soon an abort is noticed behind a writer that the other side holds up.
const sweepEvery = time.Second

// watch is what the sweep looks at.
type watch struct {
	// writing: a write to the stream has begun and not ended.
	writing atomic.Bool
	// lastIn is the count at the last sweep; only the sweep uses it.
	lastIn int64
}

// sweep looks at all connections once, and again while there are any.
func (s *Server) sweep() {
	var stuck []*carriage
	s.mu.Lock()
	for _, ks := range s.open {
		for k := range ks {
			in := k.in.Load()
			if k.writing.Load() && in == k.lastIn {
				stuck = append(stuck, k)
			}
			k.lastIn = in
		}
	}
	if len(s.open) == 0 {
		s.sweeper = nil
	} else {
		s.sweeper.Reset(sweepEvery)
	}
	s.mu.Unlock()
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
