// Package hublink carries the hub API to and from machines: TLS 1.3 under ALPN adit-hub/1 with
// the hub's key pinned, an opening that proves the caller, then HTTP/2 on the same connection.
// The proof is made in the dial function, so every redial proves itself.
package hublink

import (
	"context"
	"crypto/ed25519"
	"net"
	"net/http"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Path is where the WebSocket of the hub link is, on the hub host.
const Path = "/.adit/hub"

// subprotocol of that WebSocket.
const subprotocol = "adit-hub.1"

// keepAlive is when a silent connection is pinged, and how long the answer may take.
const keepAlive = 15 * time.Second

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

type callerKey struct{}

// CallerFrom returns the proven caller of a machine RPC; ok is false for people's connections.
func CallerFrom(ctx context.Context) (*Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(*Caller)
	return c, ok
}

// WithCaller is for a local edge whose calls do not cross a socket, and for tests.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// plainConn hides from net/http that a connection is TLS already, so that it speaks HTTP/2 with
// prior knowledge over it.
type plainConn struct {
	net.Conn
	remote net.Addr
	caller *Caller
}

func (c *plainConn) RemoteAddr() net.Addr {
	if c.remote != nil {
		return c.remote
	}
	return c.Conn.RemoteAddr()
}

func priorKnowledge() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: keepAlive, PingTimeout: keepAlive, WriteByteTimeout: 2 * keepAlive}
}
