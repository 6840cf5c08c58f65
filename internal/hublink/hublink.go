// Package hublink carries the hub API to and from machines: TLS 1.3 under ALPN adit-hub/1 with
// the hub's key pinned, an opening that proves the caller, then HTTP/2 on the same connection.
// The proof is made in the dial function, so every redial proves itself.
package hublink

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
)

// Caller is who an opening on adit-hub/1 proved to be.
type Caller struct {
	Role       wirev1.Role
	Credential *hubv1.Credential
	NodeKey    ed25519.PublicKey
	ReplicaID  []byte
	HostName   string
	Software   string
	Remote     net.Addr
}

// CallerFrom returns the proven caller of a machine RPC; ok is false for people's connections.
func CallerFrom(ctx context.Context) (*Caller, bool) { panic("unbuilt") }

// WithCaller is for a local edge whose calls do not cross a socket, and for tests.
func WithCaller(ctx context.Context, c *Caller) context.Context { panic("unbuilt") }

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
func NewClient(cfg ClientConfig) (client *http.Client, base string, err error) { panic("unbuilt") }

// NewPinnedClient is for the CLI on the server's host: ALPN adit-hub/1, pinned, no opening; the
// bearer key proves the caller. dialAddr is the bound address from server.json.
func NewPinnedClient(dialAddr string, pins [][]byte) (client *http.Client, base string) {
	panic("unbuilt")
}

// ServerConfig is the hub's side.
type ServerConfig struct {
	Key *identity.NodeKey
	// Credential looks up a token id (hex); nil = unknown.
	Credential func(ctx context.Context, tokenID string) (*hubv1.Credential, error)
	// Handler serves the API. Machine callers are in the context.
	Handler http.Handler
	Now     func() time.Time
	Log     *slog.Logger
}

// Server takes adit-hub/1 connections.
type Server struct{ cfg ServerConfig }

// NewServer returns a server; connections are handed to it by the front.
func NewServer(cfg ServerConfig) *Server { return &Server{cfg: cfg} }

// TLSConfig is for ALPN adit-hub/1: the hub's identity certificate, client certificate optional.
func (s *Server) TLSConfig() *tls.Config { panic("unbuilt") }

// ServeTLS takes a connection after its handshake. With a client certificate an opening comes
// first; without one it is a person's tool and HTTP/2 starts at once.
func (s *Server) ServeTLS(ctx context.Context, c *tls.Conn) { panic("unbuilt") }

// ServeHTTP takes GET /.adit/hub (WebSocket): the same mutual TLS runs inside.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("unbuilt") }

// CloseToken closes the connections of a revoked token.
func (s *Server) CloseToken(tokenID string) { panic("unbuilt") }

// Close ends all connections: gracefully until ctx ends.
func (s *Server) Close(ctx context.Context) error { panic("unbuilt") }
