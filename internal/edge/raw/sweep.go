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
	// writing and sending: a write to the stream, to the visitor, has begun and not ended.
	writing, sending atomic.Bool
	// lastIn and lastOut are the counts at the last sweep; only the sweep uses them.
	lastIn, lastOut int64
}

// sweep looks at all connections once, and again while there are any.
func (s *Server) sweep() {
	var stuck []*carriage
	s.mu.Lock()
	for _, ks := range s.open {
		for k := range ks {
			in, out := k.in.Load(), k.out.Load()
			if k.writing.Load() && in == k.lastIn || k.sending.Load() && out == k.lastOut {
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
	for _, k := range stuck {
		if k.writing.Load() && k.visitorAborted() || k.sending.Load() && k.streamAborted() {
			k.abort()
		}
	}
}

// streamAborted reports whether the origin or the agent ended the stream. Nobody reads it while a
// write to the visitor is held up.
func (k *carriage) streamAborted() bool {
	s, ok := k.stream.Stream.(interface{ Aborted() bool })
	return ok && s.Aborted()
}

// visitorAborted reports whether the visitor's socket was reset. Nobody reads it while a write to
// the stream is held up.
func (k *carriage) visitorAborted() bool {
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
