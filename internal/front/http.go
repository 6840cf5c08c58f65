package front

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	_ "github.com/adit-dev/adit/internal/front/h2connect" // WebSockets over HTTP/2
)

// feed is a listener whose connections are given to it.
type feed struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  chan struct{}
}

func newFeed(a net.Addr) *feed {
	f := &feed{addr: a, conns: make(chan net.Conn), done: make(chan struct{}), once: make(chan struct{}, 1)}
	f.once <- struct{}{}
	return f
}

// give hands c over, or closes it when nobody takes it any more.
func (f *feed) give(c net.Conn, closing <-chan struct{}) {
	select {
	case f.conns <- c:
		return
	case <-closing:
	case <-f.done:
	}
	// Not through TLS: no handshake has been made that a close_notify could end.
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *feed) Close() error {
	select {
	case <-f.once:
		close(f.done)
	default:
	}
	return nil
}

func (f *feed) Addr() net.Addr { return f.addr }

type connKey struct{}

// HandOver tells the front that the connection of a request belongs to a session from now on: it
// is no visitor's, is not counted and not waited for. Call it before hijacking.
func HandOver(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.done()
	}
}

// ClearPort is the port that ServeClear was given the connection of a request with; 0 for others.
func ClearPort(ctx context.Context) uint16 {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		return c.clearPort
	}
	return 0
}

// Enter has the connection of a clear request counted by enter, until it ends, for whom its first
// request is for; false when that was refused.
func Enter(ctx context.Context, enter func() (leave func(), ok bool)) bool {
	c, ok := ctx.Value(connKey{}).(*Conn)
	if !ok {
		return true
	}
	c.entering.Lock()
	defer c.entering.Unlock()
	if c.entered {
		return true
	}
	leave, ok := enter()
	if ok {
		c.entered = true
		c.holds(leave)
	}
	return ok
}

// socket is our connection under c.
func socket(c net.Conn) *Conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	fc, _ := c.(*Conn)
	return fc
}

// serveHTTP starts a server for HTTP/1.1 and, over TLS, HTTP/2.
func (f *Front) serveHTTP(l *feed, h http.Handler) {
	if h == nil {
		h = http.NotFoundHandler()
	}
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: f.cfg.HeaderTimeout,
		IdleTimeout:       f.cfg.IdleTimeout,
		MaxHeaderBytes:    f.cfg.HeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return f.visits },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			fc := socket(c)
			ctx = context.WithValue(ctx, connKey{}, fc)
			if fc == nil {
				return ctx
			}
			ctx, end := WithVisitor(ctx)
			fc.ended.Store(&end)
			return ctx
		},
		ErrorLog:  slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelDebug),
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			// A visitor that vanished amid a stream is noticed.
			SendPingTimeout: 30 * time.Second,
			PingTimeout:     15 * time.Second,
		},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	// In clear text by prior knowledge, as gRPC speaks it.
	s.Protocols.SetUnencryptedHTTP2(true)
	f.mu.Lock()
	f.servers = append(f.servers, s)
	f.mu.Unlock()
	f.wg.Go(func() {
		_ = s.Serve(l)
		_ = l.Close()
	})
}

// altSvc tells browsers that HTTP/3 is spoken on the port they know, which may not be the one
// that is bound here.
func (f *Front) altSvc(h http.Handler) http.Handler {
	if h == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, port, err := net.SplitHostPort(r.Host)
		if err != nil {
			port = "443"
		}
		if validPort(port) {
			w.Header().Set("Alt-Svc", `h3=":`+port+`"; ma=86400`)
		}
		h.ServeHTTP(w, r)
	})
}

func validPort(p string) bool {
	for _, c := range p {
		if c < '0' || c > '9' {
			return false
		}
	}
	return p != "" && len(p) <= 5
}
