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
	noUDP  atomic.Bool
	noTCP  atomic.Bool
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
		p.wg.Go(func() { p.copy(a, b) })
		p.wg.Go(func() { p.copy(b, a) })
	}
}

func (p *path) copy(dst, src net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if p.silent.Load() {
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
		answered, lost atomic.Bool
	}
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
			c = &peer{UDPConn: u}
			peers[from] = c
			p.wg.Go(func() {
				back := make([]byte, 64<<10)
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
					if !p.silent.Load() && !p.noUDP.Load() && !c.lost.Load() {
						_, _ = p.udp.WriteToUDPAddrPort(back[:n], from)
					}
				}
			})
		}
		if !c.lost.Load() {
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
