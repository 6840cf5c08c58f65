package proxy

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // what RFC 6455 computes Sec-WebSocket-Accept with
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// farewellTime is how long a visitor has to answer the edge's close frame, and how long a frame
// of the origin may take to end before the connection is closed without one.
const farewellTime = time.Second

var errEnded = errors.New("the edge ended the connection")

// upgrades are the connections that left HTTP, such as WebSockets.
type upgrades struct {
	mu  sync.Mutex
	set map[*upgraded]struct{}
	// empty is closed when the set becomes empty; nil when nobody waits.
	empty chan struct{}
}

func (us *upgrades) add(u *upgraded) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if us.set == nil {
		us.set = map[*upgraded]struct{}{}
	}
	us.set[u] = struct{}{}
}

func (us *upgrades) remove(u *upgraded) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.set, u)
	if len(us.set) == 0 && us.empty != nil {
		close(us.empty)
		us.empty = nil
	}
}

// wait returns when no upgraded connection is left or ctx ends.
func (us *upgrades) wait(ctx context.Context) {
	us.mu.Lock()
	if len(us.set) == 0 {
		us.mu.Unlock()
		return
	}
	if us.empty == nil {
		us.empty = make(chan struct{})
	}
	empty := us.empty
	us.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// end ends those for which f is true and returns when they are told.
func (us *upgrades) end(f func(*upgraded) bool) {
	us.mu.Lock()
	var found []*upgraded
	for u := range us.set {
		if f(u) {
			found = append(found, u)
		}
	}
	us.mu.Unlock()
	var wg sync.WaitGroup
	for _, u := range found {
		wg.Go(u.end)
	}
	wg.Wait()
}

// upgraded is the visitor's side of a connection that left HTTP.
type upgraded struct {
	net.Conn               // the visitor's connection, or its stream
	early    *bufio.Reader // what came before the switch, until it is read; may be nil
	set      *upgrades
	w        *writer
	tunnelID string
	once     sync.Once
	closed   chan struct{}

	// mu orders what goes to the visitor.
	mu     sync.Mutex
	frames *frames // nil if it is no WebSocket
	ending bool    // a close frame goes out as soon as one may
	told   bool    // it went out
}

func (us *upgrades) adopt(w *writer, c net.Conn, early *bufio.Reader, protocol string) *upgraded {
	u := &upgraded{Conn: c, early: early, set: us, w: w, tunnelID: w.x.rules.Tunnel().GetId(), closed: make(chan struct{})}
	if strings.EqualFold(protocol, "websocket") {
		u.frames = &frames{}
	}
	w.status = http.StatusSwitchingProtocols
	w.begun.Store(true)
	us.add(u)
	return u
}

// hijack takes an HTTP/1.1 connection over.
func (us *upgrades) hijack(w *writer) (net.Conn, *bufio.ReadWriter, error) {
	c, brw, err := w.rc.Hijack()
	if err != nil {
		return nil, nil, err
	}
	u := us.adopt(w, c, brw.Reader, w.x.in.Header.Get("Upgrade"))
	return u, bufio.NewReadWriter(bufio.NewReader(u), brw.Writer), nil
}

func (u *upgraded) Read(b []byte) (int, error) {
	// Past its buffer the server's reader would take the end of the visitor's bytes for the end
	// of the visitor, and cancel the request.
	if u.early != nil && u.early.Buffered() > 0 {
		return u.early.Read(b[:min(len(b), u.early.Buffered())])
	}
	return u.Conn.Read(b)
}

func (u *upgraded) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.write(b)
	u.w.bytes.Add(int64(n))
	return n, err
}

func (u *upgraded) write(b []byte) (int, error) {
	if u.told {
		return 0, errEnded
	}
	if u.frames == nil {
		return u.Conn.Write(b)
	}
	if !u.ending {
		for at := 0; at < len(b); {
			n, _ := u.frames.next(b[at:])
			at += n
		}
		return u.Conn.Write(b)
	}
	// Up to the end of the frame, then ours.
	n, done := u.frames.next(b)
	n, err := u.Conn.Write(b[:n])
	if err != nil || !done {
		return n, err
	}
	u.farewell()
	return n, errEnded
}

// farewell sends a close frame where one may go and none went. The caller holds mu.
func (u *upgraded) farewell() {
	if u.frames == nil || u.told || u.frames.closed || !u.frames.between() {
		return
	}
	u.told = true
	// A visitor that does not take it is closed all the same.
	_ = u.Conn.SetWriteDeadline(time.Now().Add(farewellTime))
	_, _ = u.Conn.Write(closeFrame(closeGoingAway, "the edge ends this connection"))
}

// end tells the visitor of a WebSocket that it is over, waits a moment for its answer and closes.
func (u *upgraded) end() {
	// A writer that is stuck holds mu; the visitor is not reading then, so nothing can be told.
	deadline := time.AfterFunc(farewellTime, func() {
		_ = u.Conn.SetDeadline(time.Now())
		_ = u.Close()
	})
	defer deadline.Stop()
	if u.frames == nil {
		_ = u.Close()
		return
	}
	u.mu.Lock()
	u.ending = true
	u.farewell()
	u.mu.Unlock()
	<-u.closed
}

// CloseWrite ends what goes to the visitor.
func (u *upgraded) CloseWrite() error {
	if cw, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	// A stream of HTTP/2 or HTTP/3 cannot be half-closed by a handler.
	return errEnded
}

func (u *upgraded) Close() error {
	var err error
	u.once.Do(func() {
		u.set.remove(u)
		// A writer that is stuck holds mu; nothing can be told then.
		if u.w.lost.Load() && u.mu.TryLock() {
			u.farewell()
			u.mu.Unlock()
		}
		err = u.Conn.Close()
		close(u.closed)
	})
	return err
}

// switched is the origin's side of a connection that left HTTP. It notes when the way to the
// origin was lost, as at the end of an agent's grace period, rather than ended by the origin.
type switched struct {
	io.ReadWriteCloser
	w *writer
}

func (s *switched) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	// A session that ended says net.ErrClosed as well.
	ended := errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) && !errors.Is(err, link.ErrLost)
	if err != nil && !ended {
		s.w.lost.Store(true)
	}
	return n, err
}

// CloseWrite ends what goes to the origin.
func (s *switched) CloseWrite() error {
	if cw, ok := s.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errEnded
}

// bridge turns an extended CONNECT into an upgrade of HTTP/1.1 and back.
type bridge struct {
	protocol, key string
	body          io.ReadCloser
}

// bridged is the HTTP/1.1 upgrade that stands for an extended CONNECT.
func (x *exchange) bridged(protocol string) *http.Request {
	b := &bridge{protocol: protocol, body: x.in.Body}
	x.w.bridge = b
	r := x.in.Clone(x.in.Context())
	r.Method, r.Body, r.ContentLength = http.MethodGet, http.NoBody, 0
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	delete(r.Header, ":protocol")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", protocol)
	if strings.EqualFold(protocol, "websocket") {
		nonce := make([]byte, 16)
		_, _ = rand.Read(nonce) // never fails
		b.key = base64.StdEncoding.EncodeToString(nonce)
		r.Header.Set("Sec-Websocket-Key", b.key)
		if r.Header.Get("Sec-Websocket-Version") == "" {
			r.Header.Set("Sec-Websocket-Version", "13")
		}
	}
	return r
}

// check refuses what a visitor would mistake for a switch of protocols, and an origin that did
// not read our key.
func (b *bridge) check(res *http.Response) error {
	if res.StatusCode != http.StatusSwitchingProtocols {
		if res.StatusCode < 300 {
			return reason.New(reason.OriginProtocol, reason.HopOrigin, "the origin answered %d instead of switching to %s", res.StatusCode, b.protocol)
		}
		return nil
	}
	if b.key == "" {
		return nil
	}
	sum := sha1.Sum([]byte(b.key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as RFC 6455 says
	if res.Header.Get("Sec-Websocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]) {
		return reason.New(reason.OriginProtocol, reason.HopOrigin, "the origin's Sec-WebSocket-Accept is wrong")
	}
	return nil
}

// bridge makes the stream of an extended CONNECT look like a hijacked connection. The head of
// the 101 that httputil writes first becomes a 200 with the same headers.
func (us *upgrades) bridge(w *writer) (net.Conn, *bufio.ReadWriter, error) {
	c := &streamConn{w: w, body: w.bridge.body}
	u := us.adopt(w, c, nil, w.bridge.protocol)
	return u, bufio.NewReadWriter(bufio.NewReader(u), bufio.NewWriter(&switchHead{w: w})), nil
}

// switchHead takes the head of a 101 and answers 200 at its first byte.
type switchHead struct {
	w    *writer
	done bool
}

func (s *switchHead) Write(b []byte) (int, error) {
	if s.done {
		return len(b), nil
	}
	s.done = true
	h := s.w.Header()
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Accept", "Transfer-Encoding", "Content-Length"} {
		h.Del(name)
	}
	s.w.status = http.StatusOK
	s.w.ResponseWriter.WriteHeader(http.StatusOK)
	return len(b), s.w.rc.Flush()
}

// streamConn is the stream of an extended CONNECT.
type streamConn struct {
	w    *writer
	body io.ReadCloser
	// The response writer may not be used once the handler has returned, which is after Close:
	// writing is held by a write, deadlines while one is set.
	writing, deadlines sync.Mutex
	closed             bool // guarded by both
}

func (c *streamConn) Read(b []byte) (int, error) { return c.body.Read(b) }

func (c *streamConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	n, err := c.w.ResponseWriter.Write(b)
	if err != nil {
		return n, err
	}
	return n, c.w.rc.Flush()
}

// Close ends reading; the stream ends with the handler, which sees that.
func (c *streamConn) Close() error {
	if !c.writing.TryLock() {
		// A write that is stuck must end; one that is not may.
		_ = c.SetWriteDeadline(time.Now().Add(farewellTime))
		c.writing.Lock()
		_ = c.SetWriteDeadline(time.Time{})
	}
	c.deadlines.Lock()
	c.closed = true
	c.deadlines.Unlock()
	c.writing.Unlock()
	return c.body.Close()
}

type streamAddr struct{}

func (streamAddr) Network() string { return "http" }
func (streamAddr) String() string  { return "stream" }

func (c *streamConn) LocalAddr() net.Addr  { return streamAddr{} }
func (c *streamConn) RemoteAddr() net.Addr { return streamAddr{} }

func (c *streamConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(c.w.rc.SetReadDeadline, t)
}

func (c *streamConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(c.w.rc.SetWriteDeadline, t)
}

func (c *streamConn) setDeadline(set func(time.Time) error, t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set(t)
}

func (c *streamConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
