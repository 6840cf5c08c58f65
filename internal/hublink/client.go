package hublink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/outbound"
	"github.com/adit-dev/adit/internal/reason"
)

// dialTimeout bounds one try: TCP, TLS and opening, or all of that inside a WebSocket.
const dialTimeout = 10 * time.Second

// ClientConfig says how a machine reaches its hub.
type ClientConfig struct {
	// URL of the hub from the token or --server-url.
	URL string
	// Pins are SHA-256 hashes of acceptable hub keys; never empty.
	Pins    [][]byte
	Dialler *opening.Dialler
	Proxy   func(target *url.URL) (*url.URL, error)
	Log     *slog.Logger
}

// NewClient returns an HTTP client whose connections are proven ones; base is the URL to give
// to Connect clients. Dials tls first, then a WebSocket at /.adit/hub.
func NewClient(cfg ClientConfig) (client *http.Client, base string, err error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || (u.Path != "" && u.Path != "/") {
		return nil, "", fmt.Errorf("hub URL %q: give https://HOST or https://HOST:PORT", cfg.URL)
	}
	if len(cfg.Pins) == 0 {
		return nil, "", errors.New("no hub key is pinned; use a token of this hub")
	}
	if cfg.Dialler == nil {
		return nil, "", errors.New("hub link needs an identity to prove")
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &dialler{cfg: cfg, host: u.Hostname(), addr: net.JoinHostPort(u.Hostname(), port)}
	return &http.Client{Transport: transport(d.dial), CheckRedirect: noRedirect}, "http://" + u.Host, nil
}

// NewPinnedClient is for the CLI on the server's host: ALPN adit-hub/1, pinned, no opening; the
// bearer key proves the caller. dialAddr is the bound address from server.json.
func NewPinnedClient(dialAddr string, pins [][]byte) (client *http.Client, base string) {
	return newPinnedClient(dialAddr, pins, nil)
}

// NewProxiedClient is NewPinnedClient for a server that wants a PROXY header from peers of its own
// host: it gets one that leaves the addresses as they are.
func NewProxiedClient(dialAddr string, pins [][]byte) (client *http.Client, base string) {
	return newPinnedClient(dialAddr, pins, []byte("PROXY UNKNOWN\r\n"))
}

func newPinnedClient(dialAddr string, pins [][]byte, header []byte) (client *http.Client, base string) {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{opening.ALPNHub},
		// The pin is what is trusted, not a name or a CA.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection pins the key
		VerifyConnection:   identity.VerifyPin(func() [][]byte { return pins }),
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		raw, err := outbound.Dial(ctx, nil, dialAddr)
		if err != nil {
			return nil, unreachable(err, "the server does not answer at %s", dialAddr)
		}
		if _, err := raw.Write(header); err != nil {
			_ = raw.Close()
			return nil, unreachable(err, "the server at %s takes nothing", dialAddr)
		}
		c := tls.Client(raw, cfg)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, unreachable(err, "no TLS with the server at %s", dialAddr)
		}
		return &plainConn{Conn: c}, nil
	}
	return &http.Client{Transport: transport(dial), CheckRedirect: noRedirect}, "http://adit-hub"
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func transport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		Protocols:       priorKnowledge(),
		HTTP2:           http2Config(),
		IdleConnTimeout: 90 * time.Second,
		// Answers may be large (lists); compression is Connect's business.
		DisableCompression: true,
	}
}

type dialler struct {
	cfg  ClientConfig
	host string
	addr string
	// session numbers the openings of this process towards the hub.
	session atomic.Uint64
}

// dial proves this machine over TLS, or over a WebSocket when something on the way does not let
// TLS through as it is.
func (d *dialler) dial(ctx context.Context) (net.Conn, error) {
	c, err := d.try(ctx, d.overTLS)
	if err == nil {
		return c, nil
	}
	if refused(err) || ctx.Err() != nil {
		return nil, err
	}
	c, errWS := d.try(ctx, d.overWebSocket)
	if errWS == nil {
		d.cfg.Log.Debug("hub reached over WebSocket", "hub", d.addr, "tls_error", err)
		return c, nil
	}
	if refused(errWS) {
		return nil, errWS
	}
	return nil, unreachable(fmt.Errorf("over tls: %w; over ws: %w", err, errWS), "no connection to the hub at %s", d.addr)
}

// unreachable keeps the text of the cause only: RPC clients replace an error that wraps io.EOF or
// its like by that alone.
func unreachable(err error, format string, args ...any) error {
	return reason.Wrap(errors.New(err.Error()), reason.HubUnreachable, reason.HopHub, format, args...)
}

// refused is true when the hub itself answered no.
func refused(err error) bool {
	var e *reason.Error
	return errors.As(err, &e)
}

// try bounds one way to connect and opens it.
func (d *dialler) try(ctx context.Context, connect func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, d.tlsConfig())
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol != opening.ALPNHub {
		_ = raw.Close()
		return nil, fmt.Errorf("%s does not speak %s", d.addr, opening.ALPNHub)
	}
	o := &wirev1.Opening{Session: d.session.Add(1)}
	if _, err := d.cfg.Dialler.Open(ctx, c, c.ConnectionState(), o); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &plainConn{Conn: c}, nil
}

func (d *dialler) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: d.host, NextProtos: []string{opening.ALPNHub},
		Certificates: []tls.Certificate{d.cfg.Dialler.Node.Certificate()},
		// The pin is what is trusted, not a name or a CA.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection pins the key
		VerifyConnection:   identity.VerifyPin(func() [][]byte { return d.cfg.Pins }),
	}
}

func (d *dialler) overTLS(ctx context.Context) (net.Conn, error) {
	return outbound.Dial(ctx, d.cfg.Proxy, d.addr)
}

func (d *dialler) overWebSocket(ctx context.Context) (net.Conn, error) {
	var raw net.Conn
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := outbound.Dial(ctx, d.cfg.Proxy, d.addr)
			raw = c
			return c, err
		},
		// A proxy may end this outer TLS, so it is not trusted: the pinned one runs inside.
		TLSClientConfig:   &tls.Config{ServerName: d.host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
		DisableKeepAlives: true,
	}
	ws, resp, err := websocket.Dial(ctx, "https://"+d.addr+Path, &websocket.DialOptions{ //nolint:bodyclose // Dial has read and closed it
		HTTPClient: &http.Client{Transport: tr, CheckRedirect: noRedirect}, Subprotocols: []string{subprotocol},
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("GET %s was answered %s", Path, resp.Status)
		}
		return nil, err
	}
	if ws.Subprotocol() != subprotocol {
		_ = ws.CloseNow()
		return nil, fmt.Errorf("GET %s: the other side does not speak %s", Path, subprotocol)
	}
	return newSocket(ws, raw.RemoteAddr()), nil
}

// socket is a WebSocket as a connection. Closing it does not wait for the peer's close frame: the
// TLS inside has said goodbye already.
type socket struct {
	net.Conn
	ws     *websocket.Conn
	remote net.Addr
	cancel context.CancelFunc
}

func newSocket(ws *websocket.Conn, remote net.Addr) *socket {
	ctx, cancel := context.WithCancel(context.Background())
	return &socket{Conn: websocket.NetConn(ctx, ws, websocket.MessageBinary), ws: ws, remote: remote, cancel: cancel}
}

func (s *socket) RemoteAddr() net.Addr { return s.remote }

func (s *socket) Close() error {
	s.cancel()
	return s.ws.CloseNow()
}
