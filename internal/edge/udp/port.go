package udp

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adit-dev/adit/internal/datagram"
)

// port is one public port of a tunnel.
type port struct {
	s      *Server
	number uint16
	sock   *datagram.Socket
	config atomic.Pointer[config]
	// waiting are the visitors whose datagrams wait for flush. Of the reader.
	waiting []*visitor
	// warned is when the log last told of refused flows, UnixNano.
	warned atomic.Int64

	mu      sync.Mutex
	flows   map[visitorKey]*visitor
	sources map[netip.Addr]int
	closed  bool
}

// visitorKey is the visitor's address and the one of ours it sends to.
type visitorKey struct {
	visitor netip.AddrPort
	local   netip.Addr
}

// listen binds a port; serve makes it work.
func (s *Server) listen(cfg *config, addr netip.Addr, number uint16) (*port, error) {
	sock, err := datagram.Listen(addr, number)
	if err != nil {
		return nil, err
	}
	p := &port{s: s, number: number, sock: sock, flows: make(map[visitorKey]*visitor), sources: make(map[netip.Addr]int)}
	p.config.Store(cfg)
	return p, nil
}

// serve takes the visitors' datagrams until the port is closed. No error but that ends it.
func (p *port) serve() {
	for {
		lost, err := p.sock.ReadBatch(p.receive)
		p.flushWaiting()
		p.s.metrics.drop(dropSocketFull, lost)
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return
		default:
			p.s.metrics.drop(dropReadFailed, 1)
			select {
			case <-p.s.stop:
			case <-time.After(10 * time.Millisecond): // Whatever it is, it must not spin.
			}
		}
	}
}

func (p *port) flushWaiting() {
	for i, v := range p.waiting {
		v.flush()
		v.waiting = false
		p.waiting[i] = nil
	}
	p.waiting = p.waiting[:0]
}

// flush sends what replies left waiting.
func (p *port) flush() {
	lost := p.sock.Flush()
	p.s.metrics.drop(dropWriteFailed, lost.Refused+lost.Failed)
}

// receive takes one datagram.
func (p *port) receive(from netip.AddrPort, local netip.Addr, b []byte) {
	p.s.metrics.in.Inc()
	if !local.IsValid() { // The kernel did not tell: replies leave as it sees fit.
		local = netip.IPv4Unspecified()
	}
	key := visitorKey{from, local}
	cfg := p.config.Load()
	if !cfg.public {
		p.s.metrics.drop(dropDenied, 1)
		return
	}
	p.mu.Lock()
	v := p.flows[key]
	if v == nil {
		if v = p.admit(key); v == nil {
			p.mu.Unlock()
			return
		}
	}
	p.mu.Unlock()
	v.send(cfg, b)
	if !v.waiting {
		v.waiting = true
		p.waiting = append(p.waiting, v)
	}
}

// admit makes a flow's place if the caps allow it. The caller holds mu.
func (p *port) admit(key visitorKey) *visitor {
	source := sourceOf(key.visitor.Addr())
	switch {
	case p.closed:
		return nil
	case len(p.flows) >= p.s.cfg.MaxFlows:
		p.s.metrics.drop(dropMaxFlows, 1)
		return nil
	case p.sources[source] >= p.s.cfg.MaxPerSource:
		p.s.metrics.drop(dropMaxPerSource, 1)
		return nil
	}
	p.sources[source]++
	v := &visitor{port: p, key: key, from: p.sock.ReplyFrom(key.local)}
	v.touch()
	p.flows[key] = v
	p.s.metrics.flows.Inc()
	return v
}

// sourceOf is what the cap per source counts: an IPv4 address, an IPv6 /64.
func sourceOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}

// forget gives the flow's place free and ends it.
func (p *port) forget(v *visitor) {
	p.mu.Lock()
	if p.flows[v.key] == v {
		delete(p.flows, v.key)
		source := sourceOf(v.key.visitor.Addr())
		if p.sources[source]--; p.sources[source] <= 0 {
			delete(p.sources, source)
		}
		p.s.metrics.flows.Dec()
	}
	p.mu.Unlock()
	v.end()
}

func (p *port) visitors() []*visitor {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*visitor, 0, len(p.flows))
	for _, v := range p.flows {
		all = append(all, v)
	}
	return all
}

func (p *port) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flows)
}

// endFlows ends the flows that which names.
func (p *port) endFlows(which func(*visitor) bool) {
	for _, v := range p.visitors() {
		if which(v) {
			p.forget(v)
		}
	}
}

// sweep ends flows that are idle.
func (p *port) sweep(now time.Time) {
	cfg := p.config.Load()
	p.endFlows(func(v *visitor) bool {
		v.endOld(now)
		return now.Sub(time.Unix(0, v.used.Load())) >= v.idle(cfg) || v.over()
	})
}

// replicasChanged moves flows off replicas that left.
func (p *port) replicasChanged() {
	if p.count() == 0 {
		return
	}
	cfg := p.config.Load()
	here := make(map[string]bool)
	for _, r := range p.s.cfg.Source.Replicas(cfg.GetId()) {
		here[r.ID()] = true
	}
	if len(here) == 0 {
		return // Nowhere to go: the replica may come back with its flows.
	}
	for _, v := range p.visitors() {
		v.leave(here)
	}
}

func (p *port) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.sock.Close()
	p.endFlows(func(*visitor) bool { return true })
}
