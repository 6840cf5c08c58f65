package proxy

import (
	"context"

	"github.com/adit-dev/adit/internal/reason"
)

type alpnKey struct {
	tunnel, url, serverName string
}

// alpn is what an https origin speaks, once its first connection has told. Afterwards that one
// protocol is asked for, so that nothing waits for an answer.
type alpn struct {
	key alpnKey
	// turn holds one token: who has it may ask.
	turn chan struct{}
	// protocol is "" until it is known; guarded by turn.
	protocol string
}

// agree settles the protocol of a ride to an https origin, with a first connection if need be.
func (rd *ride) agree(ctx context.Context) error {
	o := rd.x.originConfig()
	a := rd.pool.alpnOf(alpnKey{rd.tunnel().GetId(), o.GetUrl(), o.GetServerName()})
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return reason.Wrap(context.Cause(ctx), reason.ClientClosed, reason.HopVisitor, "the visitor closed before the origin was reached")
	}
	defer func() { <-a.turn }()
	rd.known, rd.guessed = a, a.protocol != ""
	if !rd.guessed {
		c, err := rd.pool.dialer.Dial(ctx, rd.request([]string{"h2", "http/1.1"}))
		if err != nil {
			return err
		}
		a.protocol = "http/1.1" // also of an origin that agrees on none
		if c.ALPN == "h2" {
			a.protocol = "h2"
			rd.protocol = http2
		}
		rd.ready.Store(rd.pool.adopt(c, rd))
	}
	rd.offer = []string{a.protocol}
	if a.protocol == "h2" {
		rd.protocol = http2
	}
	return nil
}

func (p *pool) alpnOf(k alpnKey) *alpn {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.alpn[k]
	if a == nil {
		a = &alpn{key: k, turn: make(chan struct{}, 1)}
		p.alpn[k] = a
	}
	return a
}

// forgetALPN makes the next ride ask again.
func (p *pool) forgetALPN(a *alpn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alpn[a.key] == a {
		delete(p.alpn, a.key)
	}
}
