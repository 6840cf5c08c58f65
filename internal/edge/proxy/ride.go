package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/pages"
	"github.com/adit-dev/adit/internal/reason"
)

type rideKey struct{}

// ride is one request on its way to an origin: the replica and the kind of connection chosen for
// it before its body is touched, and the connection that it got.
type ride struct {
	pool      *pool
	x         *exchange
	boarded   *replica
	protocol  protocol
	offer     []string // ALPN for an https origin
	known     *alpn    // what is known of an https origin's ALPN
	guessed   bool     // offer rests on known
	exclusive bool     // the connection serves this visitor connection only
	key       string
	slot      func() // gives an HTTP/2 slot back
	// ready is a connection made while finding out the ALPN, until a transport takes it.
	ready atomic.Pointer[conn]
	// conn is the connection used last; riding is true while the request counts as using it.
	conn   atomic.Pointer[conn]
	riding atomic.Bool
	once   sync.Once
}

// roundTrip sends out through a replica of x's tunnel. dial.Start tries other replicas itself.
func (p *pool) roundTrip(x *exchange, out *http.Request) (*http.Response, error) {
	for again := false; ; again = true {
		rd, err := p.board(x, out)
		if err != nil {
			return nil, err
		}
		x.ride = rd
		var res *http.Response
		if rd.mayGoDirect() {
			res, err = rd.sendDirect(out)
		} else {
			res, err = rd.send(out)
		}
		if err == nil {
			p.noteChallenge(x, res)
			return res, nil
		}
		// An origin that changed its ALPN refuses the one it is asked for; nothing reached it.
		if again || !rd.guessed || !reason.Is(x.explain(err), reason.OriginTLS) || !x.body.untouched() {
			return nil, err
		}
		p.forgetALPN(rd.known)
		rd.end()
	}
}

// board chooses replica and connection for a request.
func (p *pool) board(x *exchange, out *http.Request) (*ride, error) {
	tunnel := x.rules.Tunnel()
	r := p.choose(tunnel.GetId())
	if r == nil && p.dialer.Await(out.Context(), tunnel) {
		r = p.choose(tunnel.GetId())
	}
	if r == nil {
		return nil, dial.NoAgent(tunnel)
	}
	rd := &ride{pool: p, x: x, boarded: r}
	origin := x.originConfig()
	pinned := p.pinned(x, out)
	proxied := origin.GetProxyProtocol() != "" && origin.GetProxyProtocol() != "none"
	rd.exclusive = pinned || proxied
	if rd.exclusive {
		p.watch(x)
	}
	scheme, _, _ := strings.Cut(origin.GetUrl(), "://")
	// Upgrades exist in HTTP/1.1 only, and so do authenticated connections.
	http1Only := pinned || out.Header.Get("Upgrade") != ""
	switch {
	case scheme == "h2c" && !http1Only:
		rd.protocol = http2
	case scheme == "https" && http1Only:
		rd.offer = []string{"http/1.1"}
	case scheme == "https":
		if err := rd.agree(out.Context()); err != nil {
			rd.end()
			return nil, err
		}
	}
	if rd.protocol == http2 && pages.IsGRPC(out.Header) {
		rd.protocol = patient
	}
	rd.key = rd.name()
	if rd.protocol != http1 && !rd.exclusive {
		n, back := p.takeSlot(fmt.Sprintf("%s %d %s", r.id, rd.protocol, rd.key), x.visitorID())
		rd.slot = back
		rd.key = fmt.Sprintf("%s-%d", rd.key, n)
	}
	return rd, nil
}

func (rd *ride) tunnel() *hubv1.Tunnel { return rd.x.rules.Tunnel() }

// name stands for all that must be equal for two requests to share a connection.
func (rd *ride) name() string {
	key := rd.x.rules.OriginKey(rd.x.origin)
	if rd.x.class == wirev1.Class_CLASS_INTERACTIVE {
		key += "-i"
	}
	for _, protocol := range rd.offer {
		key += "-" + strings.ReplaceAll(protocol, "/", "-")
	}
	if rd.exclusive {
		// Behind a trusted proxy one connection brings several visitors.
		h := sha256.Sum256(fmt.Appendf(nil, "%d\n%s", rd.x.visitorID(), rd.x.visitor.addr))
		key += "-" + hex.EncodeToString(h[:16])
	}
	return key
}

// request is what the ride's connection is dialled with.
func (rd *ride) request(offer []string) dial.Request {
	x := rd.x
	q := dial.Request{
		Tunnel: rd.tunnel(), Origin: x.origin, Class: x.class, ALPN: offer, Visitor: x.visitor.addr, Local: x.local,
		Prefer: rd.boarded.id,
	}
	if x.in.TLS != nil {
		q.ServerName = x.in.TLS.ServerName
	}
	if t := x.in.Header.Get("Traceparent"); len(t) <= 64 {
		q.TraceContext = t
	}
	return q
}

// send sends the request and waits for the header of the answer.
func (rd *ride) send(out *http.Request) (*http.Response, error) {
	ctx := context.WithValue(out.Context(), rideKey{}, rd)
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if c, ok := info.Conn.(*conn); ok {
				rd.use(c)
			}
		},
		PutIdleConn: func(err error) {
			if err == nil {
				rd.leave()
			}
		},
	}
	if rd.x.interim.to != nil {
		trace.Got1xxResponse = rd.x.interim.pass
	}
	ctx = httptrace.WithClientTrace(ctx, trace)
	u := *out.URL
	u.Host = rd.key
	out = out.WithContext(ctx)
	out.URL = &url.URL{}
	*out.URL = u
	// Without a connection of the visitor's own to tie it to, it serves one request.
	out.Close = rd.exclusive && rd.x.conn == nil
	return rd.pool.transport(rd.boarded, transportKey{rd.protocol, rd.x.responseLimit()}).RoundTrip(out)
}

// use makes c the request's connection: the first one, or another after that failed.
func (rd *ride) use(c *conn) {
	rd.leave()
	c.busy.Add(1)
	rd.conn.Store(c)
	rd.riding.Store(true)
}

// leave ends the request's use of its connection.
func (rd *ride) leave() {
	if rd.riding.CompareAndSwap(true, false) {
		rd.conn.Load().busy.Add(-1)
	}
}

// end gives back what the ride holds; the answer has been read or given up.
func (rd *ride) end() {
	rd.once.Do(func() {
		if c := rd.ready.Swap(nil); c != nil {
			c.Abort()
			rd.pool.forget(c)
		}
		// A connection of HTTP/1 that was not put back is closed by its transport, as busy.
		if c := rd.conn.Load(); c != nil && c.protocol != http1 {
			rd.leave()
		}
		if rd.slot != nil {
			rd.slot()
		}
		if c := rd.conn.Load(); c != nil && c.Replica() != rd.boarded.id {
			// It is in the books of a replica that did not take it, so nobody would give it up
			// when its own replica drains.
			rd.pool.giveUp(rd.boarded)
		}
		rd.pool.release(rd.boarded)
	})
}

// replica is the id of the replica that carries the request, as far as is known.
func (rd *ride) replica() string {
	if c := rd.conn.Load(); c != nil {
		return c.Replica()
	}
	return rd.boarded.id
}

// refusal is the agent's refusal of the ride's stream, nil if it was not refused.
func (rd *ride) refusal() *reason.Error {
	if c := rd.conn.Load(); c != nil {
		return c.refusal()
	}
	return nil
}

// lost says why the exchange with the origin broke off.
func (rd *ride) lost() *reason.Error {
	c := rd.conn.Load()
	if c == nil {
		return reason.New(reason.OriginRefused, reason.HopEdge, "no connection to the origin could be made")
	}
	if refusal := c.refusal(); refusal != nil {
		return refusal
	}
	if err := c.ended(); err != nil {
		return reason.Wrap(err, reason.OriginRefused, reason.HopOrigin, "the origin closed the connection before the end of its answer")
	}
	return reason.New(reason.OriginProtocol, reason.HopOrigin, "the origin's answer does not follow the protocol of its address; check the scheme")
}
