package link

import (
	"sync"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// frameQueue holds the control frames of a session that wait for the network. It takes memory only
// for what waits: there is one for every session, and nearly all are idle.
type frameQueue struct {
	mu      sync.Mutex
	waiting []*wirev1.Control
	// more holds one value while something may wait.
	more chan struct{}
}

func newFrameQueue() frameQueue { return frameQueue{more: make(chan struct{}, 1)} }

// put adds m; false if too many wait.
func (q *frameQueue) put(m *wirev1.Control) bool {
	q.mu.Lock()
	if len(q.waiting) >= controlQueue {
		q.mu.Unlock()
		return false
	}
	q.waiting = append(q.waiting, m)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true
}

// take returns what waits, in order.
func (q *frameQueue) take() []*wirev1.Control {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.waiting
	q.waiting = nil
	return out
}
