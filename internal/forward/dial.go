package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/outbound"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// ALPN is the protocol of forwards: TLS 1.3 to an edge that proves its identity key, an opening
// with a ticket, a reply, then bytes.
const ALPN = "adit-forward/1"

// maxOpening bounds the opening and the reply.
const maxOpening = 4 << 10

// dialTime bounds the way to one address, with its handshake; replyTime the edge's reply, for which
// the agent dials the target.
const (
	dialTime  = 10 * time.Second
	replyTime = 15 * time.Second
)

// Dial opens one connection with a ticket, at the first of edges that takes it. Proxy as of
// outbound.Dial.
func Dial(ctx context.Context, edges []*hubv1.ForwardEdge, ticket string, proxy func(*url.URL) (*url.URL, error)) (*Conn, error) {
	var last error = reason.New(reason.NoAgent, reason.HopHub, "no edge has a session with the agent")
	for _, e := range edges {
		for _, addr := range e.GetAddresses() {
			c, err := dialEdge(ctx, e, addr, ticket, proxy)
			if err == nil {
				return c, nil
			}
			last = err
			if again := reason.Is(err, reason.NoAgent) || reason.Is(err, reason.Draining) || reason.Is(err, reason.WrongEdge); ctx.Err() != nil || refusal(err) && !again {
				return nil, err
			}
			if refusal(err) {
				break
			}
		}
	}
	return nil, last
}

// refusal tells an edge's answer from a connection that failed.
func refusal(err error) bool {
	var e *reason.Error
	return errors.As(err, &e)
}

func dialEdge(ctx context.Context, e *hubv1.ForwardEdge, addr, ticket string, proxy func(*url.URL) (*url.URL, error)) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime+replyTime)
	defer cancel()
	raw, err := outbound.Dial(ctx, proxy, addr)
	if err != nil {
		return nil, fmt.Errorf("edge %s: %w", addr, err)
	}
	t := tls.Client(raw, &tls.Config{
		ServerName: e.GetServerName(), NextProtos: []string{ALPN}, MinVersion: tls.VersionTLS13,
		// The edge's own key is what counts, which the hub has told; no authority has signed it.
		InsecureSkipVerify: true, //nolint:gosec
		VerifyConnection: func(cs tls.ConnectionState) error {
			key, err := identity.PeerKey(cs)
			if err != nil {
				return err
			}
			if !slices.Equal(identity.KeyHash(key), e.GetKeyHash()) {
				return errors.New("the edge has another key than the hub says; something on the way answers in its place")
			}
			return nil
		},
	})
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	fail := func(err error) (*Conn, error) {
		stop()
		_ = raw.Close()
		if refusal(err) {
			return nil, err
		}
		return nil, fmt.Errorf("edge %s: %w", addr, err)
	}
	if err := t.HandshakeContext(ctx); err != nil {
		return fail(err)
	}
	if err := wire.WriteFrame(t, &wirev1.ForwardOpening{Ticket: ticket}, maxOpening); err != nil {
		return fail(err)
	}
	reply := &wirev1.ForwardReply{}
	if err := wire.ReadFrame(t, reply, maxOpening); err != nil {
		return fail(err)
	}
	if r := reply.GetRefusal(); r != nil {
		return fail(reason.FromRefusal(r))
	}
	if !stop() {
		return fail(ctx.Err())
	}
	return &Conn{Conn: t, raw: raw}, nil
}

// Accept reads the opening of a connection at an edge; Reply answers it.
func Accept(c *tls.Conn) (ticket string, err error) {
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	o := &wirev1.ForwardOpening{}
	if err := wire.ReadFrame(c, o, maxOpening); err != nil {
		return "", err
	}
	return o.GetTicket(), c.SetReadDeadline(time.Time{})
}

// Reply answers an opening; nil = the bytes may come.
func Reply(c *tls.Conn, refusal *reason.Error) (*Conn, error) {
	r := &wirev1.ForwardReply{}
	if refusal != nil {
		r.Refusal = refusal.Refusal()
	}
	_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	if err := wire.WriteFrame(c, r, maxOpening); err != nil {
		return nil, err
	}
	return &Conn{Conn: c, raw: c.NetConn()}, c.SetWriteDeadline(time.Time{})
}

// Conn is one end of a forwarded connection. Its half-close is TLS's own, and a reset of the socket
// below stays one.
type Conn struct {
	*tls.Conn
	raw net.Conn
}

// Abort ends both directions with a reset, so that the other side can tell it from an end.
func (c *Conn) Abort() {
	switch r := c.raw.(type) {
	case interface{ Reset() error }:
		_ = r.Reset()
	case interface{ SetLinger(int) error }:
		_ = r.SetLinger(0)
	}
	_ = c.raw.Close()
}
