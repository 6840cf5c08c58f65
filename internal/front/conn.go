package front

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
)

// ProxyTimeout bounds the wait for a PROXY header from a peer that must send one.
const ProxyTimeout = 2 * time.Second

// Conn is an accepted TCP connection whose first bytes may have been read but are replayed by
// Read. RemoteAddr is the visitor as resolved (PROXY header), LocalAddr what the visitor dialled.
type Conn struct {
	net.Conn
	// ServerName is lower case without trailing dot; Hello is the raw ClientHello records.
	ServerName string
	Hello      []byte

	replay        []byte
	remote, local netip.AddrPort
	clearPort     uint16

	entering sync.Mutex
	entered  bool

	mu   sync.Mutex
	over bool
	// undo gives back what the connection holds: its places under the caps.
	undo []func()
	// ended is called after Close: the end of its Visitor.
	ended atomic.Pointer[func()]
}

// Resolve finds out who the visitor of c is: the peer, or what its PROXY header says if the peer
// is in from. Such a peer must send a header within ProxyTimeout. On an error c is still open.
func Resolve(c net.Conn, from []netip.Prefix) (*Conn, error) {
	fc := &Conn{Conn: c, remote: addrPort(c.RemoteAddr()), local: addrPort(c.LocalAddr())}
	if !contains(from, fc.remote.Addr()) {
		return fc, nil
	}
	if err := c.SetReadDeadline(time.Now().Add(ProxyTimeout)); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(c, 512)
	h, err := proxyproto.Read(r)
	if err != nil {
		return nil, fmt.Errorf("PROXY header of %s: %w", fc.remote, err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	fc.replay, err = r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	// LOCAL and UNKNOWN, a balancer's own checks, keep the addresses of the socket.
	if src, dst, ok := h.TCPAddrs(); ok && h.Command.IsProxy() {
		fc.remote, fc.local = addrPort(src), addrPort(dst)
	}
	return fc, nil
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// addrPort is the unmapped form of a TCP or UDP address; the zero value of anything else.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Visitor is RemoteAddr as a value, Local what the visitor dialled.
func (c *Conn) Visitor() netip.AddrPort { return c.remote }

// Local is LocalAddr as a value.
func (c *Conn) Local() netip.AddrPort { return c.local }

// RemoteAddr is the visitor as resolved.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// LocalAddr is what the visitor dialled.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// NetConn is the socket below; bytes to be replayed are not in it.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Take returns the bytes that Read would replay, for somebody else to send on; Read goes on with
// the socket.
func (c *Conn) Take() []byte {
	b := c.replay
	c.replay, c.Hello = nil, nil
	return b
}

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.replay) > 0 {
		n := copy(p, c.replay)
		if c.replay = c.replay[n:]; len(c.replay) == 0 {
			c.replay, c.Hello = nil, nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends this side's bytes (FIN).
func (c *Conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Reset closes the connection so that the visitor sees an abort (RST), not an end.
func (c *Conn) Reset() error {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	return c.Close()
}

// Close closes the socket and gives back its places.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.done()
	if end := c.ended.Load(); end != nil {
		(*end)()
	}
	return err
}

// holds has f called when the connection ends, or now if it has.
func (c *Conn) holds(f func()) {
	c.mu.Lock()
	over := c.over
	if !over {
		c.undo = append(c.undo, f)
	}
	c.mu.Unlock()
	if over {
		f()
	}
}

// done gives back everything, once.
func (c *Conn) done() {
	c.mu.Lock()
	undo := c.undo
	c.over, c.undo = true, nil
	c.mu.Unlock()
	for _, f := range undo {
		f()
	}
}
