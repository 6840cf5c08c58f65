package proxy

import (
	"net/http"
	"strings"
)

// pin ties the requests of one visitor connection for one origin to connections of their own:
// NTLM and Negotiate sign a connection in, not a request, so sharing it would share the sign-in.
type pin struct {
	visitor uint64
	tunnel  string
	origin  uint32
}

func (x *exchange) pin() pin {
	return pin{x.visitorID(), x.rules.Tunnel().GetId(), x.origin}
}

// pinned reports whether a request must not share its connection: after a challenge, or when it
// signs in without waiting for one.
func (p *pool) pinned(x *exchange, out *http.Request) bool {
	if signsConnection(out.Header["Authorization"]) {
		p.keepPin(x)
		return true
	}
	if x.conn == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.pins[x.pin()]
	return ok
}

// noteChallenge looks for an answer that asks the visitor to sign its connection in.
func (p *pool) noteChallenge(x *exchange, res *http.Response) {
	if res.StatusCode == http.StatusUnauthorized && signsConnection(res.Header["Www-Authenticate"]) {
		p.keepPin(x)
	}
}

func signsConnection(values []string) bool {
	for _, v := range values {
		for c := range strings.SplitSeq(v, ",") {
			scheme, _, _ := strings.Cut(strings.TrimSpace(c), " ")
			if strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate") {
				return true
			}
		}
	}
	return false
}

func (p *pool) keepPin(x *exchange) {
	if x.conn == nil {
		return
	}
	p.mu.Lock()
	p.pins[x.pin()] = struct{}{}
	p.mu.Unlock()
	p.watch(x)
}

// watch closes what belongs to the visitor connection alone when it ends.
func (p *pool) watch(x *exchange) {
	v := x.conn
	if v == nil {
		return
	}
	p.mu.Lock()
	_, known := p.watched[v.ID]
	p.watched[v.ID] = struct{}{}
	p.mu.Unlock()
	if known {
		return
	}
	go func() {
		<-v.Done()
		p.mu.Lock()
		delete(p.watched, v.ID)
		for k := range p.pins {
			if k.visitor == v.ID {
				delete(p.pins, k)
			}
		}
		p.mu.Unlock()
		p.closeIdle(func(c *conn) bool { return c.visitorID == v.ID })
	}()
}
