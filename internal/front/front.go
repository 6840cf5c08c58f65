// Package front owns the listeners on 443 (TCP and UDP) and 80. It reads just enough of each
// connection to know whose it is; roles register what they take by server name and ALPN.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/limits"
)

// Config says where to listen and what a stranger may cost.
type Config struct {
	// ListenHTTPS is for TCP and UDP; port 0 binds the same free port for both.
	ListenHTTPS string
	// ListenHTTP is plain HTTP; empty = off.
	ListenHTTP string
	// ProxyFrom are peers that must send a PROXY header; from others it is garbage.
	ProxyFrom []netip.Prefix
	// HelloTimeout (10 s) and HelloBytes (16 KiB) bound a ClientHello; HeaderTimeout (10 s) and
	// HeaderBytes (64 KiB) a request header; IdleTimeout (120 s) a kept-alive connection.
	HelloTimeout  time.Duration
	HelloBytes    int
	HeaderTimeout time.Duration
	HeaderBytes   int
	IdleTimeout   time.Duration
	// MaxConns (15000) and MaxConnsPerAddress (1024, IPv6 by /64) cap open visitor connections.
	MaxConns           int
	MaxConnsPerAddress int
	// StatelessReset is a key derived from the edge's identity; nil = a random one.
	StatelessReset *[32]byte
	Log            *slog.Logger
	Registry       prometheus.Registerer
}

// Tunnel is what a tunnel's server name means on 443.
type Tunnel struct {
	// Passthrough takes the whole connection, whatever its ALPN. Nil: TLS ends here with
	// Roles.Certificate, and Roles.HTTP serves it.
	Passthrough func(ctx context.Context, c *Conn)
	// Enter counts a connection that ends here, until leave; false refuses it. Nil: no cap.
	Enter func() (leave func(), ok bool)
}

// Protocol is an ALPN protocol of our own, taken on own names and without a server name.
type Protocol struct {
	ALPN string
	TLS  *tls.Config
	// Wrap, if set, goes between the connection and TLS.
	Wrap func(c net.Conn) net.Conn
	TCP  func(ctx context.Context, c *tls.Conn)
	// QUIC is nil for protocols that exist on TCP only. shared is the connection's socket, nil where
	// QUIC has it alone.
	QUIC func(ctx context.Context, c *quic.Conn, shared *datagram.Carrier)
}

// Roles is what runs behind the listeners. All functions must be safe for concurrent use.
type Roles struct {
	// Tunnel resolves a server name on the address the visitor dialled; nil = no such tunnel.
	Tunnel func(local netip.AddrPort, serverName string) *Tunnel
	// Own reports whether name is the hub's or this edge's own; those win over tunnels.
	Own func(serverName string) bool
	// OtherEdge takes a connection under adit/1 for another edge's name.
	OtherEdge func(ctx context.Context, c *Conn) bool
	// Protocols by ALPN.
	Protocols []Protocol
	// Certificate for visitors, by hello; also answers acme-tls/1.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// HTTP serves what visitors send over TLS: HTTP/1.1, HTTP/2, HTTP/3. The context of its
	// requests, hijacked ones too, ends with cause ErrDrained when the time to drain is over;
	// handlers have a second then to say goodbye (a WebSocket close frame).
	HTTP http.Handler
	// PlainHTTP serves port 80, and what ServeClear was given.
	PlainHTTP http.Handler
	// Raw takes a TCP connection whose first byte is not a TLS handshake, and returns when it is
	// proven or refused; nil closes it.
	Raw func(ctx context.Context, c net.Conn)
}

// After the time to drain, those who know of it (they were told themselves) have afterword to end
// what they serve; then contexts end, and whoever watches those has farewell.
const (
	afterword = 500 * time.Millisecond
	farewell  = time.Second
)

// ErrDrained is why contexts of visitors end when the time to drain is over.
var ErrDrained = errors.New("the edge shuts down")

// Front is the set of bound listeners.
type Front struct {
	cfg     Config
	conns   *limits.Conns
	metrics *metrics

	tcp, plain *net.TCPListener
	udp        *quicSide

	// base ends with Close, visits (below it) when the time to drain is over.
	base, visits    context.Context
	end             context.CancelFunc
	endVisits       context.CancelCauseFunc
	closing, closed chan struct{}
	serving         chan struct{} // closed when roles are known
	once, closeOnce sync.Once
	beginning       sync.Mutex
	wg              sync.WaitGroup

	roles     Roles
	tls       *tls.Config // visitors over TCP
	acme      *tls.Config // acme-tls/1
	tickets   tickets
	tlsFeed   *feed
	plainFeed *feed
	servers   []*http.Server

	mu   sync.Mutex
	open map[*Conn]phase
	// empty is closed when open became empty after stopped was set.
	stopped bool
	empty   chan struct{}
}

// Listen binds everything or nothing. Connections wait until Serve.
func Listen(cfg Config) (*Front, error) {
	cfg.defaults()
	f := &Front{
		cfg: cfg, conns: limits.NewConns(cfg.MaxConns, cfg.MaxConnsPerAddress), metrics: newMetrics(cfg.Registry),
		closing: make(chan struct{}), closed: make(chan struct{}), serving: make(chan struct{}), open: map[*Conn]phase{}, empty: make(chan struct{}),
	}
	f.base, f.end = context.WithCancel(context.Background())
	f.visits, f.endVisits = context.WithCancelCause(f.base)
	tcp, udp, err := bindBoth(cfg.ListenHTTPS)
	if err != nil {
		return nil, err
	}
	if cfg.ListenHTTP != "" {
		if f.plain, err = bindTCP(cfg.ListenHTTP); err != nil {
			return nil, errors.Join(err, tcp.Close(), udp.Close())
		}
	}
	f.tcp = tcp
	f.tlsFeed = newFeed(tcp.Addr())
	f.plainFeed = newFeed(tcp.Addr())
	if f.plain != nil {
		f.plainFeed = newFeed(f.plain.Addr())
	}
	f.udp = newQUICSide(f, udp)
	return f, nil
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&c.HelloTimeout, 10*time.Second)
	def(&c.HeaderTimeout, 10*time.Second)
	def(&c.IdleTimeout, 120*time.Second)
	num(&c.HelloBytes, 16<<10)
	num(&c.HeaderBytes, 64<<10)
	num(&c.MaxConns, 15000)
	num(&c.MaxConnsPerAddress, 1024)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// bindBoth binds TCP and UDP on one port.
func bindBoth(addr string) (*net.TCPListener, *net.UDPConn, error) {
	for try := 0; ; try++ {
		tcp, err := bindTCP(addr)
		if err != nil {
			return nil, nil, err
		}
		bound := tcp.Addr().(*net.TCPAddr)
		udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: bound.IP, Port: bound.Port, Zone: bound.Zone})
		if err == nil {
			return tcp, udp, nil
		}
		_ = tcp.Close()
		// A port that was free for TCP may be held for UDP; only a chosen one must be that one.
		if _, port, _ := net.SplitHostPort(addr); port != "0" || try == 20 {
			return nil, nil, fmt.Errorf("bind UDP %s: %w", addr, err)
		}
	}
}

func bindTCP(addr string) (*net.TCPListener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bind TCP %s: %w", addr, err)
	}
	return l.(*net.TCPListener), nil
}

// HTTPSAddr is the bound address of TCP and UDP 443.
func (f *Front) HTTPSAddr() netip.AddrPort { return addrPort(f.tcp.Addr()) }

// HTTPAddr is the bound plain HTTP address; zero when off.
func (f *Front) HTTPAddr() netip.AddrPort {
	if f.plain == nil {
		return netip.AddrPort{}
	}
	return addrPort(f.plain.Addr())
}

// Conns are the caps on visitor connections, for other listeners to share.
func (f *Front) Conns() *limits.Conns { return f.conns }

// Serve dispatches until Shutdown or ctx ends; the end of ctx closes everything at once. It is
// called once.
func (f *Front) Serve(ctx context.Context, r Roles) error {
	if err := f.begin(r); err != nil {
		return errors.Join(err, f.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	select {
	case <-f.closing:
	case <-f.closed:
		stop()
	}
	return nil
}

// begin starts to serve, unless the front was closed before.
func (f *Front) begin(r Roles) error {
	f.beginning.Lock()
	defer f.beginning.Unlock()
	select {
	case <-f.closing:
		return nil
	default:
	}
	f.roles = r
	f.tls = &tls.Config{GetCertificate: r.Certificate, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	f.acme = &tls.Config{GetCertificate: r.Certificate, NextProtos: []string{alpnACME}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if err := f.udp.listen(r); err != nil {
		return err
	}
	f.tickets.rotate(f.tls, f.udp.h3)
	f.start()
	close(f.serving)
	return nil
}

// start runs everything that lives until Close.
func (f *Front) start() {
	f.serveHTTP(f.tlsFeed, f.altSvc(f.roles.HTTP))
	f.wg.Go(func() { f.accept(f.tcp, f.serveTLS) })
	f.serveHTTP(f.plainFeed, f.roles.PlainHTTP)
	if f.plain != nil {
		f.wg.Go(func() { f.accept(f.plain, f.servePlain) })
	}
	f.wg.Go(f.udp.accept)
	f.wg.Go(func() {
		t := time.NewTicker(ticketRotation)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f.tickets.rotate(f.tls, f.udp.h3)
			case <-f.base.Done():
				return
			}
		}
	})
}

// Shutdown stops accepting, sends GOAWAY and Connection: close, and waits until ctx ends for
// running visitor connections (hijacked and passthrough ones too), then closes them. QUIC
// sessions of agents go on until Close.
func (f *Front) Shutdown(ctx context.Context) error {
	f.stopAccepting()
	var wg sync.WaitGroup
	for _, s := range f.httpServers() {
		wg.Go(func() { _ = s.Shutdown(ctx) })
	}
	wg.Go(func() { f.udp.shutdown(ctx) })
	wg.Wait()
	var err error
	if !f.waitEmpty(ctx) {
		err = context.Cause(ctx)
	}
	f.waitEmptyFor(afterword)
	f.endVisits(ErrDrained)
	f.waitEmptyFor(farewell)
	f.closeVisitors()
	return err
}

// Close closes everything at once, the UDP socket and QUIC sessions on it included.
func (f *Front) Close() error {
	f.closeOnce.Do(func() {
		f.stopAccepting()
		f.endVisits(ErrDrained)
		f.closeVisitors()
		f.udp.close()
		f.end()
		f.wg.Wait()
		close(f.closed)
	})
	<-f.closed
	return nil
}

// stopAccepting closes the TCP listeners, and connections that did not say yet what they want.
func (f *Front) stopAccepting() {
	f.once.Do(func() {
		f.beginning.Lock()
		close(f.closing)
		f.beginning.Unlock()
		_ = f.tcp.Close()
		if f.plain != nil {
			_ = f.plain.Close()
		}
		f.mu.Lock()
		f.stopped = true
		var silent []*Conn
		for c, p := range f.open {
			if p == phaseHello {
				silent = append(silent, c)
			}
		}
		if len(f.open) == 0 {
			close(f.empty)
		}
		f.mu.Unlock()
		for _, c := range silent {
			_ = c.Close()
		}
	})
}

func (f *Front) waitEmpty(ctx context.Context) bool {
	select {
	case <-f.empty:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitEmptyFor waits for the last visitor, HTTP/3 included, at most d.
func (f *Front) waitEmptyFor(d time.Duration) {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-t.C {
		f.mu.Lock()
		n := len(f.open)
		f.mu.Unlock()
		if n == 0 && f.udp.visitors() == 0 {
			return
		}
	}
}

func (f *Front) httpServers() []*http.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.servers)
}

func (f *Front) closeVisitors() {
	for _, s := range f.httpServers() {
		_ = s.Close()
	}
	f.udp.closeVisitors()
	f.mu.Lock()
	all := make([]*Conn, 0, len(f.open))
	for c := range f.open {
		all = append(all, c)
	}
	f.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}
