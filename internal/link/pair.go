package link

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// pair is one (replica, edge), as one of both sees it: what outlives a single session. Streams
// on lanes, lanes and flows belong to it.
type pair struct {
	owner   owner
	log     *slog.Logger
	timing  timing
	metrics *metrics
	flows   flowTable

	active atomic.Int64

	mu       sync.Mutex
	running  int        // goroutines and sessions that close waits for
	ended    *sync.Cond // running sank to 0
	sessions []*session // by number, ascending
	streams  map[uint64]*laneStream
	closed   bool
}

// owner is the half that has the pair: Replica at the edge, Connector at the agent.
type owner interface {
	// control handles the frames that only one half gets.
	control(s *session, m *wirev1.Control)
	// incoming takes a stream that the peer opened on s.
	incoming(s *session, st rawStream)
	// ended is called after s was removed.
	ended(s *session)
	// handler is nil at the edge.
	handler() Handler
}

func newPair(o owner, log *slog.Logger, t timing, m *metrics) *pair {
	p := &pair{owner: o, log: log, timing: t, metrics: m, streams: map[uint64]*laneStream{}}
	p.ended = sync.NewCond(&p.mu)
	p.flows = newFlows(p)
	return p
}

// add makes s a session of p; false after close. It must be started or withdrawn, close waits
// for that.
func (p *pair) add(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	i, _ := slices.BinarySearchFunc(p.sessions, s.number, func(a *session, n uint64) int {
		if a.number < n {
			return -1
		}
		return 1
	})
	p.sessions = slices.Insert(p.sessions, i, s)
	p.running++
	return true
}

// withdraw removes a session that was added and never started.
func (p *pair) withdraw(s *session) {
	p.remove(s)
	p.done()
}

func (p *pair) remove(s *session) {
	p.mu.Lock()
	p.sessions = slices.DeleteFunc(p.sessions, func(o *session) bool { return o == s })
	p.mu.Unlock()
}

// all returns the live sessions, oldest first.
func (p *pair) all() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sessions)
}

// current is the session for what begins now: the newest that does not drain, else the newest;
// nil when none is up.
func (p *pair) current() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.currentLocked()
}

func (p *pair) currentLocked() *session {
	for i := len(p.sessions) - 1; i >= 0; i-- {
		if !p.sessions[i].draining() {
			return p.sessions[i]
		}
	}
	if n := len(p.sessions); n > 0 {
		return p.sessions[n-1]
	}
	return nil
}

// infos is the state of the sessions; lanes is their number, told with the current one.
func (p *pair) infos(lanes int) []SessionInfo {
	cur := p.current()
	var out []SessionInfo
	for _, s := range p.all() {
		i := s.info()
		if s == cur {
			i.Lanes = lanes
			i.Streams += p.laneStreams()
		}
		out = append(out, i)
	}
	return out
}

func (p *pair) laneStreams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// abort tells the peer to end a lane stream, on the control connection so that a stuck lane
// cannot hold it back.
func (p *pair) abort(id uint64, code uint64) {
	if s := p.current(); s != nil {
		s.send(&wirev1.Control{Message: &wirev1.Control_Abort{Abort: &wirev1.Abort{StreamId: id, Code: code}}})
	}
}

// aborted handles the peer's Abort.
func (p *pair) aborted(a *wirev1.Abort) {
	p.mu.Lock()
	st := p.streams[a.StreamId]
	p.mu.Unlock()
	if st != nil {
		st.abortedByPeer(a.Code)
	}
}

// probe asks all sessions but except for a sign of life.
func (p *pair) probe(except *session) {
	for _, s := range p.all() {
		if s != except {
			s.probe()
		}
	}
}

// close ends all sessions with err and waits for their goroutines.
func (p *pair) close(err error) {
	p.mu.Lock()
	p.closed = true
	sessions := slices.Clone(p.sessions)
	streams := make([]*laneStream, 0, len(p.streams))
	for _, st := range p.streams {
		streams = append(streams, st)
	}
	p.mu.Unlock()
	for _, s := range sessions {
		s.close(err)
	}
	for _, st := range streams {
		st.kill(ErrLost)
	}
	p.flows.close()
	p.mu.Lock()
	for p.running > 0 {
		p.ended.Wait()
	}
	p.mu.Unlock()
}

// goFunc runs f and makes close wait for it.
func (p *pair) goFunc(f func()) {
	p.mu.Lock()
	p.running++
	p.mu.Unlock()
	go func() {
		defer p.done()
		f()
	}()
}

func (p *pair) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		p.ended.Broadcast()
	}
}

// sleep waits for d or until ctx ends, which it reports as false.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
