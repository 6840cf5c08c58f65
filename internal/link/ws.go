package link

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/adit-dev/adit/internal/opening"
)

// ServeHTTP takes GET /.adit/session (WebSocket, subprotocol adit.1): a session or a lane. The
// peer's address is the connection's, whatever headers say.
func (a *Acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "no remote address", http.StatusInternalServerError)
		return
	}
	leave, ok := a.enter(unmap(remote))
	if !ok {
		http.Error(w, "too many unproven connections", http.StatusTooManyRequests)
		return
	}
	defer leave()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{wsSubprotocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		a.log.Debug("no WebSocket", "remote", remote, "error", err)
		return
	}
	if ws.Subprotocol() != wsSubprotocol {
		_ = ws.Close(websocket.StatusPolicyViolation, "subprotocol "+wsSubprotocol+" is required")
		return
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	below := newWSConn(ws, local, net.TCPAddrFromAddrPort(remote))
	defer context.AfterFunc(a.ctx, func() { _ = below.Close() })()
	c := tls.Server(below, a.tls)
	ctx, cancel := context.WithTimeout(r.Context(), opening.Timeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil || c.ConnectionState().NegotiatedProtocol != opening.ALPNSession {
		a.log.Debug("no session inside the WebSocket", "remote", remote, "error", err)
		_ = below.Close()
		return
	}
	a.serveTCP(ctx, c, CarrierWS)
}

// wsConn makes a byte stream of a WebSocket's binary messages. Unlike the library's own adapter
// it survives a read deadline.
type wsConn struct {
	ws            *websocket.Conn
	local, remote net.Addr
	ctx           context.Context
	cancel        context.CancelFunc

	in      chan []byte   // from the pump; its buffer is free again after next
	next    chan struct{} // tells the pump that the last chunk was used up
	readErr error         // set before in is closed

	rmu     sync.Mutex
	rest    []byte
	readDue expiry

	wmu      sync.Mutex
	writeDue expiry
}

func newWSConn(ws *websocket.Conn, local, remote net.Addr) *wsConn {
	ws.SetReadLimit(-1)
	c := &wsConn{ws: ws, local: local, remote: remote, in: make(chan []byte), next: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.pump()
	return c
}

// pump reads messages until the connection ends.
func (c *wsConn) pump() {
	defer close(c.in)
	buf := make([]byte, largeRecord)
	for {
		typ, r, err := c.ws.Reader(c.ctx)
		if err != nil {
			c.readErr = err
			return
		}
		if typ != websocket.MessageBinary {
			c.readErr = websocket.CloseError{Code: websocket.StatusUnsupportedData}
			_ = c.ws.CloseNow()
			return
		}
		for {
			n, err := r.Read(buf)
			if n > 0 {
				select {
				case c.in <- buf[:n]:
				case <-c.ctx.Done():
					c.readErr = net.ErrClosed
					return
				}
				select {
				case <-c.next:
				case <-c.ctx.Done():
					c.readErr = net.ErrClosed
					return
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				c.readErr = err
				return
			}
		}
	}
}

func (c *wsConn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.rest) == 0 {
		select {
		case <-c.readDue.wait():
			return 0, os.ErrDeadlineExceeded
		default:
		}
		select {
		case b, ok := <-c.in:
			if !ok {
				return 0, c.ended()
			}
			c.rest = b
		case <-c.readDue.wait():
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		select {
		case c.next <- struct{}{}:
		case <-c.ctx.Done():
		}
	}
	return n, nil
}

func (c *wsConn) ended() error {
	if c.ctx.Err() != nil {
		return net.ErrClosed
	}
	if websocket.CloseStatus(c.readErr) == websocket.StatusNormalClosure {
		return io.EOF
	}
	return io.ErrUnexpectedEOF
}

func (c *wsConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	due := c.writeDue.wait()
	select {
	case <-due:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.writeDue.onExpiry(cancel)
	defer c.writeDue.onExpiry(nil)
	if err := c.ws.Write(ctx, websocket.MessageBinary, p); err != nil {
		switch {
		case c.ctx.Err() != nil:
			return 0, net.ErrClosed
		case ctx.Err() != nil:
			return 0, os.ErrDeadlineExceeded
		}
		return 0, err
	}
	return len(p), nil
}

// Close ends the connection at once: what must arrive is acknowledged above.
func (c *wsConn) Close() error {
	c.cancel()
	return c.ws.CloseNow()
}

func (c *wsConn) LocalAddr() net.Addr  { return c.local }
func (c *wsConn) RemoteAddr() net.Addr { return c.remote }

func (c *wsConn) SetDeadline(t time.Time) error {
	c.readDue.set(t)
	c.writeDue.set(t)
	return nil
}

func (c *wsConn) SetReadDeadline(t time.Time) error  { c.readDue.set(t); return nil }
func (c *wsConn) SetWriteDeadline(t time.Time) error { c.writeDue.set(t); return nil }

// expiry is a deadline that can be waited for and moved meanwhile.
type expiry struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{}
	f     func()
	gen   int
}

// wait is closed when the deadline has passed. A later set that revives the deadline makes a
// new channel.
func (e *expiry) wait() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over == nil {
		e.over = make(chan struct{})
	}
	return e.over
}

// onExpiry sets what else happens when the deadline passes.
func (e *expiry) onExpiry(f func()) {
	e.mu.Lock()
	e.f = f
	e.mu.Unlock()
}

func (e *expiry) set(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.gen++
	if e.over == nil {
		e.over = make(chan struct{})
	}
	select {
	case <-e.over:
		e.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	if d := time.Until(t); d > 0 {
		gen := e.gen
		e.timer = time.AfterFunc(d, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.gen == gen {
				e.expire()
			}
		})
		return
	}
	e.expire()
}

// expire runs with mu held.
func (e *expiry) expire() {
	close(e.over)
	if e.f != nil {
		e.f()
	}
}
