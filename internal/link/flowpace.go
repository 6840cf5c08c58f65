package link

import (
	"sync"
	"time"
)

// QUIC keeps 128 received datagrams and drops what comes on top, unseen; nothing tells the sender
// how many wait there. So a session sends at most paceBurst without a pause in which the other
// side gets to read: 64,000 datagrams a second, and a burst passes whole.
const (
	paceBurst = 64
	paceEvery = time.Millisecond
)

// pacer spreads the datagrams of a session.
type pacer struct {
	mu    sync.Mutex
	start time.Time
	sent  int
}

// wait returns when the next datagram may go.
func (p *pacer) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	since := now.Sub(p.start)
	if p.sent >= paceBurst && since < paceEvery {
		// The others wait for the lock: their datagrams are due no sooner.
		time.Sleep(paceEvery - since)
		now = time.Now()
		since = paceEvery
	}
	if since >= paceEvery {
		p.start, p.sent = now, 0
	}
	p.sent++
}
