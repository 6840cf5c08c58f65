package link

import (
	"net"
	"time"
)

// A lane that a stream rides may wait for its peer for hours, and only the kernel knows whether the
// peer's kernel still answers. TCP_USER_TIMEOUT is not used for it: it ends a connection whose peer
// lives and merely does not read.

// watchLanes ends the streams on lanes whose peer left everything unanswered for limit.
func (p *pair) watchLanes(limit time.Duration) {
	for _, st := range p.riding() {
		if t := tcpConn(st.lane.raw); t != nil && unanswered(t) >= limit {
			p.log.Info("stream ended: its lane is silent", "lane", st.lane.id, "limit", limit)
			st.kill(ErrLost)
		}
	}
}

// askLanes has the kernel ask for a sign of life on the lanes that streams ride, and ends the
// streams that got none in the probe time. A session ended, so the path or the peer may be gone;
// lanes that live outlast it.
func (p *pair) askLanes() {
	asked := p.riding()
	for _, st := range asked {
		if t := tcpConn(st.lane.raw); t != nil {
			setKeepAlive(t, time.Second)
		}
	}
	if len(asked) == 0 {
		return
	}
	// One second is the shortest pause before the first question.
	time.AfterFunc(p.timing.probe+time.Second, func() {
		p.watchLanes(p.timing.probe)
		for _, st := range asked {
			if t := tcpConn(st.lane.raw); t != nil {
				setKeepAlive(t, keepAlive)
			}
		}
	})
}

// riding lists the streams on lanes.
func (p *pair) riding() []*laneStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*laneStream, 0, len(p.streams))
	for _, st := range p.streams {
		out = append(out, st)
	}
	return out
}

// setKeepAlive has an idle connection asked for a sign of life every so often, and ended after
// three questions without an answer.
func setKeepAlive(t *net.TCPConn, every time.Duration) {
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3})
}
