// Package udp is the public side of udp tunnels: a socket per public port, a flow per visitor
// address, replies from the very address the visitor used.
package udp

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/access"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/reason"
)

// Defaults of Config.
const (
	DefaultIdle         = 120 * time.Second
	DefaultMaxFlows     = 4096
	DefaultMaxPerSource = 64
)

// sweepEvery is how often idle flows are looked for, and replicas that left.
const sweepEvery = time.Second

// Config is what all udp tunnels of an edge share.
type Config struct {
	// Source lists the replicas that serve a tunnel now.
	Source dial.Source
	// Address to listen on for tunnels that name none; the zero value is the wildcard.
	Address netip.Addr
	// MaxFlows caps flows per public port, MaxPerSource those of one visitor address (IPv4 /32,
	// IPv6 /64) per public port. 0 = the defaults.
	MaxFlows, MaxPerSource int
	Log                    *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
	// Now is the clock of idle times; nil = time.Now.
	Now func() time.Time
}

// Server holds the public sockets of all udp tunnels of an edge. Their lifetime is the tunnel's:
// from Set to Remove or Close.
type Server struct {
	cfg     Config
	dialer  *dial.Dialer
	metrics metrics
	stop    chan struct{}
	wg      sync.WaitGroup

	// setMu orders changes of tunnels.
	setMu sync.Mutex

	mu      sync.Mutex
	tunnels map[string]*tunnel
	closed  bool
}

// tunnel is one udp tunnel with its ports.
type tunnel struct {
	config *config
	addr   netip.Addr
	ports  map[uint16]*port
}

// config is what a tunnel's ports need of it; it is replaced as a whole.
type config struct {
	*hubv1.Tunnel
	rules  *route.Rules
	public bool
}

// New returns a server without tunnels.
func New(cfg Config) *Server {
	if cfg.MaxFlows == 0 {
		cfg.MaxFlows = DefaultMaxFlows
	}
	if cfg.MaxPerSource == 0 {
		cfg.MaxPerSource = DefaultMaxPerSource
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		// What has passed since the start, whatever steps the system's clock makes.
		began := time.Now()
		cfg.Now = func() time.Time { return began.Add(time.Since(began)) }
	}
	s := &Server{
		cfg: cfg, dialer: dial.New(cfg.Source), metrics: newMetrics(cfg.Registry),
		stop: make(chan struct{}), tunnels: make(map[string]*tunnel),
	}
	s.wg.Go(s.run)
	return s
}

// Set serves t from now on: new ports are bound, ports it no longer has are closed, everything
// else (bound sockets, running flows) stays as it is. When a port cannot be bound the error is a
// *reason.Error with port_unavailable, the tunnel's new ports are released and what it served
// before goes on.
func (s *Server) Set(t *hubv1.Tunnel) error {
	addr, first, last, refusal := s.place(t)
	if refusal != nil {
		return refusal
	}
	s.setMu.Lock()
	defer s.setMu.Unlock()
	have := s.tunnel(t.GetId())
	if have != nil && have.addr != addr {
		s.remove(t.GetId()) // A port cannot be bound at the old and the new address at once.
		have = nil
	}
	next := &tunnel{addr: addr, ports: make(map[uint16]*port), config: &config{
		Tunnel: t, rules: route.Compile(t),
		public: access.Open(t.GetAccess()),
	}}
	var bound []*port
	for n := first; n <= last; n++ {
		if have != nil && have.ports[uint16(n)] != nil {
			next.ports[uint16(n)] = have.ports[uint16(n)]
			continue
		}
		p, err := s.listen(next.config, addr, uint16(n))
		if err != nil {
			for _, p := range bound {
				p.close()
			}
			return reason.Wrap(err, reason.PortUnavailable, reason.HopEdge,
				"UDP port %d of tunnel %s cannot be bound; end what holds it, or choose another port", n, name(t))
		}
		bound = append(bound, p)
		next.ports[uint16(n)] = p
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		for _, p := range bound {
			p.close()
		}
		return reason.Wrap(net.ErrClosed, reason.PortUnavailable, reason.HopEdge, "the edge is ending")
	}
	s.tunnels[t.GetId()] = next
	s.mu.Unlock()
	for _, p := range bound {
		s.wg.Go(p.serve)
	}
	if have != nil {
		have.become(next)
	}
	return nil
}

// become closes the ports that next has no more and tells the others what changed.
func (t *tunnel) become(next *tunnel) {
	for n, p := range t.ports {
		if next.ports[n] == nil {
			p.close()
			continue
		}
		p.config.Store(next.config)
		p.endFlows(func(v *visitor) bool {
			old, now := t.config.GetOrigins(), next.config.GetOrigins()
			i := v.originIndex()
			return !next.config.public || i >= len(now) || i >= len(old) || !proto.Equal(old[i], now[i])
		})
	}
}

// place reads where t listens.
func (s *Server) place(t *hubv1.Tunnel) (addr netip.Addr, first, last uint32, refusal *reason.Error) {
	invalid := func(format string, args ...any) (netip.Addr, uint32, uint32, *reason.Error) {
		return netip.Addr{}, 0, 0, reason.New(reason.Invalid, reason.HopEdge, "tunnel %s: %s", name(t), fmt.Sprintf(format, args...))
	}
	addr = s.cfg.Address
	if t.GetAddress() != "" {
		var err error
		if addr, err = netip.ParseAddr(t.GetAddress()); err != nil {
			return invalid("address %q is not an IP address", t.GetAddress())
		}
	}
	first, last = t.GetPort(), max(t.GetPort(), t.GetPortLast())
	switch {
	case t.GetKind() != wirev1.Kind_KIND_UDP:
		return invalid("kind %s is not udp", t.GetKind())
	case first == 0 || last > 65535 || t.GetPortLast() != 0 && t.GetPortLast() < first:
		return invalid("ports %d to %d are not a range within 1 to 65535", first, t.GetPortLast())
	}
	if addr.IsValid() && addr.IsUnspecified() {
		addr = netip.Addr{}
	}
	return addr.Unmap(), first, last, nil
}

func name(t *hubv1.Tunnel) string {
	if t.GetName() != "" {
		return t.GetName()
	}
	return t.GetId()
}

func (s *Server) tunnel(id string) *tunnel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tunnels[id]
}

// Remove closes the tunnel's ports and flows.
func (s *Server) Remove(tunnelID string) {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	s.remove(tunnelID)
}

func (s *Server) remove(id string) {
	s.mu.Lock()
	t := s.tunnels[id]
	delete(s.tunnels, id)
	s.mu.Unlock()
	if t != nil {
		for _, p := range t.ports {
			p.close()
		}
	}
}

// ReplicasChanged moves flows off replicas that left. Call it after Joined, Left and Serve;
// without it they move within a second.
func (s *Server) ReplicasChanged() {
	for _, p := range s.ports() {
		p.replicasChanged()
	}
}

// ports lists all bound ports.
func (s *Server) ports() []*port {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*port
	for _, t := range s.tunnels {
		for _, p := range t.ports {
			all = append(all, p)
		}
	}
	return all
}

// Flows is the number of flows now.
func (s *Server) Flows() int {
	n := 0
	for _, p := range s.ports() {
		n += p.count()
	}
	return n
}

// run ends flows that are idle and moves those whose replica left.
func (s *Server) run() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.sweep()
		}
	}
}

func (s *Server) sweep() {
	now := s.cfg.Now()
	for _, p := range s.ports() {
		p.sweep(now)
		p.replicasChanged()
	}
}

// Close closes all ports and flows and waits for their goroutines.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	for _, p := range s.ports() {
		p.close()
	}
	s.wg.Wait()
	return nil
}
