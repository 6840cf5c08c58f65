package origin

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// proxyHeader is the PROXY header of version (0 = none) for the stream of h: the visitor's address
// and the edge's that it connected to, both in one family. Without them it says so (UNKNOWN, LOCAL).
func proxyHeader(version byte, h *wirev1.StreamHeader) ([]byte, error) {
	if version == 0 {
		return nil, nil
	}
	p := &proxyproto.Header{Version: version, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}
	from, err1 := netip.ParseAddrPort(h.GetVisitorAddress())
	to, err2 := netip.ParseAddrPort(h.GetEdgeAddress())
	if err1 == nil && err2 == nil {
		src, dst := from.Addr().Unmap().WithZone(""), to.Addr().Unmap().WithZone("")
		p.Command, p.TransportProtocol = proxyproto.PROXY, proxyproto.TCPv4
		if !src.Is4() || !dst.Is4() {
			p.TransportProtocol = proxyproto.TCPv6
			src, dst = netip.AddrFrom16(src.As16()), netip.AddrFrom16(dst.As16())
		}
		p.SourceAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, from.Port()))
		p.DestinationAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(dst, to.Port()))
	}
	return p.Format()
}

// headedConn is a TCP connection whose PROXY header goes in one segment with what is written
// first: payload, or a ClientHello.
type headedConn struct {
	tcp  *net.TCPConn
	mu   sync.Mutex
	head []byte
}

func (c *headedConn) flush() error {
	_, err := c.Write(nil)
	return err
}

func (c *headedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	head := c.head
	c.head = nil
	if head == nil {
		c.mu.Unlock()
		if len(b) == 0 {
			return 0, nil
		}
		return c.tcp.Write(b)
	}
	defer c.mu.Unlock()
	bufs := net.Buffers{head, b}
	n, err := bufs.WriteTo(c.tcp)
	return max(0, int(n)-len(head)), err
}

// CloseWrite ends this side's bytes; a header that waited for them goes first.
func (c *headedConn) CloseWrite() error {
	if err := c.flush(); err != nil {
		return err
	}
	return c.tcp.CloseWrite()
}

func (c *headedConn) Read(b []byte) (int, error)         { return c.tcp.Read(b) }
func (c *headedConn) Close() error                       { return c.tcp.Close() }
func (c *headedConn) LocalAddr() net.Addr                { return c.tcp.LocalAddr() }
func (c *headedConn) RemoteAddr() net.Addr               { return c.tcp.RemoteAddr() }
func (c *headedConn) SetDeadline(t time.Time) error      { return c.tcp.SetDeadline(t) }
func (c *headedConn) SetReadDeadline(t time.Time) error  { return c.tcp.SetReadDeadline(t) }
func (c *headedConn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
