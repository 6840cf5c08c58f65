package link_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// path forwards TCP and UDP of one port to an edge and can fall silent, as a network does.
type path struct {
	addr   netip.AddrPort
	silent atomic.Bool
	// deaf and mute: nothing reaches the agent, nothing of it reaches the edge.
	deaf, mute atomic.Bool
	noUDP      atomic.Bool
	noTCP      atomic.Bool
	// idle, if set, is after how much silence a flow is forgotten, as a NAT does.
	idle atomic.Int64
	// lossy loses every n-th UDP packet.
	lossy atomic.Int64
	// onlyQUIC loses UDP that is not QUIC's; sealed counts it.
	onlyQUIC atomic.Bool
	sealed   atomic.Int64
	// hushed is which flows have fallen silent: all that began before.
	hushed atomic.Int64
	// smallHello loses QUIC connections whose first flight is more than one datagram.
	smallHello atomic.Bool
	// tcpTo, if set, is where TCP goes instead.
	tcpTo atomic.Pointer[netip.AddrPort]

	mu    sync.Mutex
	conns []net.Conn
	ended bool
	wg    sync.WaitGroup
	tcp   net.Listener
	udp   *net.UDPConn
	once  sync.Once
}

// pathFlow is one TCP connection or UDP mapping on its way through a path.
type pathFlow struct {
	born int64
	last atomic.Int64
	gone atomic.Bool
}

func (p *path) newFlow() *pathFlow {
	f := &pathFlow{born: p.hushed.Load()}
	f.last.Store(time.Now().UnixNano())
	return f
}

// passes reports whether something of f gets through now, to the agent or to the edge.
func (p *path) passes(f *pathFlow, toAgent bool) bool {
	now := time.Now().UnixNano()
	before := f.last.Swap(now)
	if idle := p.idle.Load(); idle > 0 && now-before > idle {
		f.gone.Store(true)
	}
	if toAgent && p.deaf.Load() || !toAgent && p.mute.Load() {
		return false
	}
	return !p.silent.Load() && !f.gone.Load() && f.born >= p.hushed.Load()
}

// Hush makes all flows fall silent for ever; new ones pass.
func (p *path) Hush() { p.hushed.Add(1) }

// loses reports whether this packet is one of those that get lost.
func (p *path) loses(n *int64) bool {
	*n++
	every := p.lossy.Load()
	return every > 0 && *n%every == 0
}

// foreign reports whether b is lost because it is not QUIC's.
func (p *path) foreign(b []byte) bool {
	if len(b) == 0 || b[0]&0xc0 != 0 {
		return false
	}
	p.sealed.Add(1)
	return p.onlyQUIC.Load()
}

func newPath(t testing.TB, to netip.AddrPort) *path {
	t.Helper()
	p := &path{}
	var err error
	for range 20 {
		if p.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		p.addr = p.tcp.Addr().(*net.TCPAddr).AddrPort()
		if p.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.addr)); err == nil {
			break
		}
		_ = p.tcp.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.wg.Go(func() { p.acceptTCP(to) })
	p.wg.Go(func() { p.forwardUDP(to) })
	t.Cleanup(p.Close)
	return p
}

func (p *path) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		_ = c.Close()
		return false
	}
	p.conns = append(p.conns, c)
	return true
}

func (p *path) acceptTCP(to netip.AddrPort) {
	for {
		a, err := p.tcp.Accept()
		if err != nil {
			return
		}
		if p.noTCP.Load() {
			_ = a.Close()
			continue
		}
		dst := to
		if other := p.tcpTo.Load(); other != nil {
			dst = *other
		}
		b, err := net.Dial("tcp", dst.String())
		if err != nil {
			_ = a.Close()
			continue
		}
		if !p.track(a) || !p.track(b) {
			continue
		}
		f := p.newFlow()
		p.wg.Go(func() { p.copy(a, b, f, true) })
		p.wg.Go(func() { p.copy(b, a, f, false) })
	}
}

func (p *path) copy(dst, src net.Conn, f *pathFlow, toAgent bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if !p.passes(f, toAgent) {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				_ = src.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = dst.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			_ = dst.(*net.TCPConn).SetLinger(0)
			_ = dst.Close()
			return
		}
	}
}

func (p *path) forwardUDP(to netip.AddrPort) {
	type peer struct {
		*net.UDPConn
		*pathFlow
		answered, lost atomic.Bool
	}
	var out int64
	peers := map[netip.AddrPort]*peer{}
	buf := make([]byte, 64<<10)
	for {
		n, from, err := p.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if p.silent.Load() || p.noUDP.Load() {
			continue
		}
		c := peers[from]
		if c != nil && p.smallHello.Load() && !c.answered.Load() {
			c.lost.Store(true)
		}
		if c == nil {
			u, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err != nil || !p.track(u) {
				continue
			}
			c = &peer{UDPConn: u, pathFlow: p.newFlow()}
			peers[from] = c
			p.wg.Go(func() {
				back := make([]byte, 64<<10)
				var in int64
				for {
					n, err := c.Read(back)
					if err != nil {
						if errors.Is(err, net.ErrClosed) {
							return
						}
						time.Sleep(time.Millisecond) // ICMP from an edge that is away
						continue
					}
					if n > 200 { // more than an acknowledgement
						c.answered.Store(true)
					}
					if p.passes(c.pathFlow, true) && !p.noUDP.Load() && !c.lost.Load() && !p.loses(&in) && !p.foreign(back[:n]) {
						_, _ = p.udp.WriteToUDPAddrPort(back[:n], from)
					}
				}
			})
		}
		if p.passes(c.pathFlow, false) && !c.lost.Load() && !p.loses(&out) && !p.foreign(buf[:n]) {
			_, _ = c.Write(buf[:n])
		}
	}
}

// Cut ends all TCP connections with a reset, as a rebooting router does.
func (p *path) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
			_ = t.Close()
		}
	}
}

func (p *path) Close() {
	p.once.Do(func() {
		p.mu.Lock()
		p.ended = true
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		_ = p.tcp.Close()
		_ = p.udp.Close()
		p.wg.Wait()
	})
}
