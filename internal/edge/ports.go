package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/edge/udp"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/reason"
)

// place is where a tcp tunnel, or a clear HTTP port, listens; the zero address is the edge's own
// choice.
type place struct {
	addr netip.Addr
	port uint16
}

// ports binds what tunnels claim, by difference: a port whose tunnel changes hands stays bound,
// one that is busy is tried again, and neither touches another.
type ports struct {
	edge *Edge
	udp  *udp.Server
	host netip.Addr // the zero value: all
	// visits ends when the time to drain is over.
	visits context.Context
	end    context.CancelFunc
	wg     sync.WaitGroup // connections
	loops  sync.WaitGroup // accept loops

	mu     sync.Mutex
	closed bool
	places map[string][]place // of tunnels, by id
	want   map[place]map[string]wirev1.Kind
	bound  map[place]net.Listener
	// touched are places to look at in the next reconcile.
	touched map[place]bool
	// waiting are udp tunnels that could not be bound.
	waiting  map[string]*hubv1.Tunnel
	problems map[problemKey]*hubv1.PortReport
}

// problemKey is a tunnel and one of its ports.
type problemKey struct {
	id   string
	port uint32
}

func newPorts(e *Edge) (*ports, error) {
	addr, err := listenAddr(e.cfg.ListenHost)
	if err != nil {
		return nil, err
	}
	p := &ports{
		edge: e, places: map[string][]place{}, want: map[place]map[string]wirev1.Kind{}, bound: map[place]net.Listener{},
		touched: map[place]bool{}, waiting: map[string]*hubv1.Tunnel{}, problems: map[problemKey]*hubv1.PortReport{},
		udp: udp.New(udp.Config{Source: e.registry, Address: addr, Log: e.cfg.Log, Registry: e.cfg.Registry, Now: e.cfg.Now}),
	}
	p.visits, p.end = context.WithCancel(context.Background())
	p.host = addr
	return p, nil
}

// listenAddr is the address that a host names; the zero value for all addresses.
func listenAddr(host string) (netip.Addr, error) {
	if host == "" {
		return netip.Addr{}, nil
	}
	a, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("edge: listen host %q: %w", host, err)
	}
	addr, _ := netip.AddrFromSlice(a.IP)
	return addr.Unmap().WithZone(a.Zone), nil
}

// change notes what a tunnel is now (nil = gone). reconcile acts on it.
func (p *ports) change(id string, t *hubv1.Tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := p.placesOf(t)
	for _, old := range p.places[id] {
		if slices.Contains(now, old) {
			continue
		}
		if delete(p.want[old], id); len(p.want[old]) == 0 {
			delete(p.want, old)
		}
		delete(p.problems, problemKey{id, uint32(old.port)})
		p.touched[old] = true
	}
	delete(p.places, id)
	if len(now) > 0 {
		p.places[id] = now
	}
	for _, at := range now {
		if p.want[at] == nil {
			p.want[at] = map[string]wirev1.Kind{}
		}
		p.want[at][id] = t.GetKind()
		p.touched[at] = true
	}
	if t.GetKind() == wirev1.Kind_KIND_UDP {
		p.setUDP(t)
		return
	}
	p.udp.Remove(id)
	if old, waits := p.waiting[id]; waits {
		delete(p.waiting, id)
		delete(p.problems, problemKey{id, old.GetPort()})
	}
}

// placesOf are where a tunnel listens by itself: not on 443, nor on the plain HTTP listener.
func (p *ports) placesOf(t *hubv1.Tunnel) []place {
	a, _ := netip.ParseAddr(t.GetAddress())
	a = a.Unmap()
	switch t.GetKind() {
	case wirev1.Kind_KIND_TCP:
		return []place{{a, uint16(t.GetPort())}}
	case wirev1.Kind_KIND_HTTP:
		var out []place
		for _, port := range t.GetHttpPorts() {
			if !p.edge.plainHTTP(port) {
				out = append(out, place{a, uint16(port)})
			}
		}
		return out
	}
	return nil
}

// setUDP binds a udp tunnel. p.mu is held.
func (p *ports) setUDP(t *hubv1.Tunnel) {
	err := p.udp.Set(t)
	if err == nil {
		delete(p.waiting, t.GetId())
		delete(p.problems, problemKey{t.GetId(), t.GetPort()})
		return
	}
	p.waiting[t.GetId()] = t
	p.trouble(t.GetId(), wirev1.Kind_KIND_UDP, t.GetPort(), reason.Of(err, reason.HopEdge).Detail)
}

// trouble notes why a port is not bound. p.mu is held.
func (p *ports) trouble(id string, kind wirev1.Kind, port uint32, text string) {
	key := problemKey{id, port}
	if old := p.problems[key]; old.GetProblem() != text {
		p.edge.cfg.Log.Warn("a port cannot be bound; the others serve on", "kind", kindNames[kind], "port", port, "tunnel", id, "err", text)
	}
	p.problems[key] = &hubv1.PortReport{Kind: kind, Port: port, TunnelId: id, Problem: text}
}

// reconcile binds and unbinds the places that changed.
func (p *ports) reconcile() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// What is given up goes first: it may be what another one waits for.
	for at := range p.touched {
		if l := p.bound[at]; l != nil && len(p.want[at]) == 0 {
			delete(p.bound, at)
			_ = l.Close()
		}
	}
	for at := range p.touched {
		p.bind(at)
	}
	clear(p.touched)
	for _, t := range p.waiting {
		p.setUDP(t)
	}
}

// bind listens on a place that somebody wants. p.mu is held.
func (p *ports) bind(at place) {
	if len(p.want[at]) == 0 || p.closed {
		return
	}
	problem := ""
	if p.bound[at] == nil {
		l, err := p.listen(at)
		if err == nil {
			p.bound[at] = l
			p.loops.Go(func() { p.accept(l, at) })
		} else {
			problem = bindProblem(err, at.port)
		}
	}
	for id, kind := range p.want[at] {
		if problem == "" {
			delete(p.problems, problemKey{id, uint32(at.port)})
		} else {
			p.trouble(id, kind, uint32(at.port), problem)
		}
	}
}

func (p *ports) listen(at place) (net.Listener, error) {
	if at.port == 0 {
		return nil, errors.New("the tunnel names no port")
	}
	addr, host := at.addr, ""
	if !addr.IsValid() {
		addr = p.host
	}
	if addr.IsValid() {
		host = addr.String()
	}
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(at.port))))
}

func bindProblem(err error, port uint16) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("port %d is held by another program on the edge; stop that program or choose another port", port)
	case errors.Is(err, syscall.EACCES):
		return fmt.Sprintf("the edge may not bind port %d; allow it (CAP_NET_BIND_SERVICE) or choose a port above 1023", port)
	default:
		return fmt.Sprintf("port %d cannot be bound on the edge: %v", port, err)
	}
}

// retry tries busy ports again until ctx ends.
func (p *ports) retry(ctx context.Context) {
	for sleep(ctx, p.edge.cfg.RetryPort) {
		p.mu.Lock()
		before := len(p.problems)
		for at := range p.want {
			if p.bound[at] == nil {
				p.bind(at)
			}
		}
		for _, t := range p.waiting {
			p.setUDP(t)
		}
		solved := len(p.problems) != before
		p.mu.Unlock()
		if solved {
			p.edge.wakeReport()
		}
	}
}

// problem is why the port of a tunnel is not bound; empty when it is.
func (p *ports) problem(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, r := range p.problems {
		if key.id == id {
			return r.GetProblem()
		}
	}
	return ""
}

// reports are all problems, by tunnel id and port.
func (p *ports) reports() []*hubv1.PortReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*hubv1.PortReport
	for _, r := range p.problems {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *hubv1.PortReport) int {
		return cmp.Or(strings.Compare(a.GetTunnelId(), b.GetTunnelId()), cmp.Compare(a.GetPort(), b.GetPort()))
	})
	return out
}

func (p *ports) replicasChanged() { p.udp.ReplicasChanged() }

// accept serves the connections of one port until it is closed.
func (p *ports) accept(l net.Listener, at place) {
	conns := p.edge.cfg.Conns
	var pause time.Duration
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.edge.cfg.Log.Error("accept failed", "address", l.Addr(), "err", err, "pause", pause)
			if !sleep(p.visits, pause) {
				return
			}
			continue
		}
		pause = 0
		if p.clear(c, at) {
			continue
		}
		if !conns.AcquireTotal() {
			p.edge.metrics.connections.WithLabelValues("tcp", string(reason.RateLimited)).Inc()
			_ = c.Close()
			continue
		}
		p.wg.Go(func() {
			defer conns.ReleaseTotal()
			p.serve(c, at)
		})
	}
}

// tunnel is the tcp tunnel on a place, as the visitor of c reached it; nil = none.
func (p *ports) tunnel(c net.Conn, at place) *route.Entry {
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	return p.edge.view.Load().table.Port(netip.AddrPortFrom(local.Addr(), at.port))
}

// clear hands a connection to a clear HTTP port on.
func (p *ports) clear(c net.Conn, at place) bool {
	if p.edge.cfg.ServeClear == nil || p.tunnel(c, at) != nil {
		return false
	}
	p.edge.cfg.ServeClear(c, at.port)
	return true
}

func (p *ports) serve(c net.Conn, at place) {
	e := p.edge
	fc, err := front.Resolve(c, e.cfg.ProxyFrom)
	if err != nil {
		e.cfg.Log.Debug("connection refused", "peer", c.RemoteAddr(), "reason", "proxy_header", "err", err)
		_ = c.Close()
		return
	}
	if !e.cfg.Conns.AcquireAddress(fc.Visitor().Addr()) {
		e.metrics.connections.WithLabelValues("tcp", string(reason.RateLimited)).Inc()
		_ = fc.Reset()
		return
	}
	defer e.cfg.Conns.ReleaseAddress(fc.Visitor().Addr())
	t := p.tunnel(c, at)
	if t == nil {
		_ = fc.Reset()
		return
	}
	e.raw.Serve(p.visits, fc, t)
}

// drain stops accepting and waits for running connections until ctx ends.
func (p *ports) drain(ctx context.Context) {
	p.stop()
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	p.end()
	<-done
}

// stop closes the listeners.
func (p *ports) stop() {
	p.mu.Lock()
	p.closed = true
	for at, l := range p.bound {
		_ = l.Close()
		delete(p.bound, at)
	}
	p.mu.Unlock()
	p.loops.Wait()
}

func (p *ports) close() {
	p.stop()
	p.end()
	p.wg.Wait()
	_ = p.udp.Close()
}
