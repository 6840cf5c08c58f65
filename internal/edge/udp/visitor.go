package udp

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// lateReplies is how long replies are taken from a replica that left.
const lateReplies = 10 * time.Second

// holdOff is how long a replica that refused a visitor's flow is not asked again: not for each
// datagram.
const holdOff = time.Second

// visitor is one visitor's exchange with one tunnel: a flow, and the next one should its replica
// leave.
type visitor struct {
	port *port
	key  visitorKey
	// waiting: datagrams of the batch that is being read wait for flush. Of the port's reader.
	waiting bool
	// from makes replies leave from the address the visitor sent to.
	from []byte
	// used is when the last datagram went either way, UnixNano.
	used atomic.Int64

	mu      sync.Mutex
	flow    link.Flow
	replica string
	origin  uint32
	ended   bool
	// refused are the replicas that refused the flow; they are not asked again before holdTo.
	refused []string
	holdTo  time.Time
	// old are flows on replicas that left, which may still bring replies.
	old []retired
}

type retired struct {
	link.Flow
	until time.Time
}

func (v *visitor) touch() { v.used.Store(v.port.s.cfg.Now().UnixNano()) }

func (v *visitor) originIndex() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return int(v.origin)
}

// idle is how long the flow may be unused.
func (v *visitor) idle(cfg *config) time.Duration {
	if origin := v.originIndex(); origin < len(cfg.GetOrigins()) {
		if s := cfg.Origins[origin].GetIdleTimeoutSeconds(); s > 0 {
			return time.Duration(s) * time.Second
		}
	}
	return DefaultIdle
}

// send carries one datagram of the visitor to the agent; flush follows the last of several.
func (v *visitor) send(cfg *config, b []byte) {
	v.touch()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	if v.flow != nil && !closed(v.flow.Done()) && v.flow.Queue(b) == nil {
		return
	}
	if v.open(cfg) {
		_ = v.flow.Queue(b) // Ended again already: the next datagram opens another.
	}
}

// flush sends what send left waiting.
func (v *visitor) flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.flow != nil {
		v.flow.Flush()
	}
}

// open opens a flow on the replica with the least to do. The caller holds mu.
func (v *visitor) open(cfg *config) bool {
	m := &v.port.s.metrics
	now := v.port.s.cfg.Now()
	if v.flow != nil {
		if e := v.flow.Refusal(); e != nil {
			v.refused, v.holdTo = append(v.refused, v.replica), now.Add(holdOff)
			v.port.refused(cfg, e)
		}
		_ = v.flow.Close()
		v.flow = nil
	}
	if !now.Before(v.holdTo) {
		v.refused = nil
	}
	rule := cfg.rules.First()
	if rule == nil {
		m.drop(dropUnresolved, 1)
		return false
	}
	origin, refusal := rule.Origin(nil)
	if refusal != nil {
		m.drop(dropUnresolved, 1)
		v.port.refused(cfg, refusal)
		return false
	}
	h := &wirev1.StreamHeader{
		TunnelId: cfg.GetId(), Origin: origin, Kind: wirev1.Kind_KIND_UDP, Class: wirev1.Class_CLASS_INTERACTIVE,
		VisitorAddress: v.key.visitor.String(),
		EdgeAddress:    netip.AddrPortFrom(v.key.local, v.port.number).String(),
	}
	why := dropNoAgent
	for _, r := range v.port.s.dialer.Order(cfg.GetId(), nil) {
		if slices.Contains(v.refused, r.ID()) {
			why = dropRefused
			continue
		}
		f, err := r.OpenFlow(h, v.reply)
		if err == nil {
			f.AfterBatch(v.port.flush)
			v.flow, v.replica, v.origin = f, r.ID(), origin
			m.opened.Inc()
			return true
		}
		v.port.s.cfg.Log.Debug("a flow could not be opened", "tunnel", cfg.GetId(), "replica", r.ID(), "error", err)
	}
	m.drop(why, 1)
	return false
}

// refused says in the log, at most every ten seconds for a port, why flows are refused.
func (p *port) refused(cfg *config, e *reason.Error) {
	now := p.s.cfg.Now().UnixNano()
	last := p.warned.Load()
	if now-last < int64(10*time.Second) || !p.warned.CompareAndSwap(last, now) {
		return
	}
	p.s.cfg.Log.Warn("a udp flow was refused", "tunnel", cfg.GetId(), "name", name(cfg.Tunnel), "port", p.number,
		"reason", e.Code, "hop", e.Hop, "detail", e.Detail)
}

// reply carries one datagram of the origin to the visitor; port.flush follows the last of several.
func (v *visitor) reply(b []byte) {
	v.touch()
	v.port.sock.Queue(b, v.from, v.key.visitor)
	v.port.s.metrics.out.Inc()
}

// leave gives the flow up if its replica is not here any more: the next datagram opens another,
// replies on their way still arrive.
func (v *visitor) leave(here map[string]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.flow != nil && !here[v.replica] {
		v.old = append(v.old, retired{v.flow, v.port.s.cfg.Now().Add(lateReplies)})
		v.flow = nil
	}
}

// endOld ends flows whose time for late replies is over.
func (v *visitor) endOld(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.old = slices.DeleteFunc(v.old, func(f retired) bool {
		if now.Before(f.until) && !closed(f.Done()) {
			return false
		}
		_ = f.Close()
		return true
	})
}

// over reports whether the agent ended the flow, which frees its place. After a refusal the place
// is kept, so that the agent is not asked again at once.
func (v *visitor) over() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.flow != nil && closed(v.flow.Done()) && v.flow.Refusal() == nil
}

func (v *visitor) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	if v.flow != nil {
		_ = v.flow.Close()
	}
	for _, f := range v.old {
		_ = f.Close()
	}
	v.old = nil
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
