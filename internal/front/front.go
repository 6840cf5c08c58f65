// Package front owns the listeners on 443 (TCP and UDP) and 80. It reads just enough of each
// connection to know whose it is; roles register what they take by server name and ALPN.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

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
	// StatelessReset is derived from the edge's identity.
	StatelessReset *quic.StatelessResetKey
	Log            *slog.Logger
	Registry       prometheus.Registerer
}

// Conn is an accepted TCP connection whose ClientHello was read but is replayed by Read.
// RemoteAddr is the visitor as resolved (PROXY header), LocalAddr what the visitor dialled.
type Conn struct {
	net.Conn
	// ServerName is lower case without trailing dot; Hello is the raw ClientHello records.
	ServerName string
	Hello      []byte
}

// Tunnel is what a tunnel's server name means on 443.
type Tunnel struct {
	// Passthrough takes the whole connection, whatever its ALPN. Nil: TLS ends here with
	// Roles.Certificate, and Roles.HTTP serves it.
	Passthrough func(ctx context.Context, c *Conn)
}

// Protocol is an ALPN protocol of our own, taken on own names and without a server name.
type Protocol struct {
	ALPN string
	TLS  *tls.Config
	TCP  func(ctx context.Context, c *tls.Conn)
	// QUIC is nil for protocols that exist on TCP only.
	QUIC func(ctx context.Context, c *quic.Conn)
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
	// PlainHTTP serves port 80.
	PlainHTTP http.Handler
	// Raw takes a TCP connection whose first byte is not a TLS handshake; nil closes it.
	Raw func(ctx context.Context, c net.Conn)
}

// ErrDrained is why contexts of visitors end when the time to drain is over.
var ErrDrained = errors.New("the edge shuts down")

// Front is the set of bound listeners.
type Front struct{ cfg Config }

// Listen binds everything or nothing. Connections wait until Serve.
func Listen(cfg Config) (*Front, error) { panic("unbuilt") }

// HTTPSAddr is the bound address of TCP and UDP 443.
func (f *Front) HTTPSAddr() netip.AddrPort { panic("unbuilt") }

// HTTPAddr is the bound plain HTTP address; zero when off.
func (f *Front) HTTPAddr() netip.AddrPort { panic("unbuilt") }

// Conns are the caps on visitor connections, for other listeners to share.
func (f *Front) Conns() *limits.Conns { panic("unbuilt") }

// Serve dispatches until Shutdown or ctx ends.
func (f *Front) Serve(ctx context.Context, r Roles) error { panic("unbuilt") }

// Shutdown stops accepting, sends GOAWAY and Connection: close, and waits until ctx ends for
// running visitor connections (hijacked and passthrough ones too), then closes them. QUIC
// sessions of agents go on until Close.
func (f *Front) Shutdown(ctx context.Context) error { panic("unbuilt") }

// Close closes everything at once, the UDP socket and QUIC sessions on it included.
func (f *Front) Close() error { panic("unbuilt") }

// HandOver tells the front that the connection of a request belongs to a session from now on: it
// is no visitor's, is not counted and not waited for. Call it before hijacking.
func HandOver(ctx context.Context) {}
