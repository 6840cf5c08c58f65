package proxy

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/edge/dial"
)

const (
	idleTimeout = 90 * time.Second
	// maxIdle is per replica and protocol.
	maxIdle = 128
	// shunFor is how long a replica that could not reach an origin is nobody's first choice.
	shunFor = 10 * time.Second
	// maxAnswerHeader bounds the header of an origin's answer.
	maxAnswerHeader = 1 << 20
)

// protocol is what an origin connection speaks.
type protocol int

const (
	http1 protocol = iota
	http2
	// patient is HTTP/2 without a limit on the wait for an answer: a gRPC service may say nothing,
	// not even a header, until it has something to say.
	patient
	protocols
)

// pool keeps origin connections: one http.Transport per replica and protocol. The transports
// know connections by an opaque host name that stands for all that must be equal for two
// requests to share one (ride.key).
type pool struct {
	dialer         *dial.Dialer
	responseHeader time.Duration

	mu       sync.Mutex
	replicas map[string]*replica
	shunned  map[shunKey]time.Time
	alpn     map[alpnKey]*alpn
	slots    map[string]slots
	pins     map[pin]struct{}
	swept    time.Time
	// watched are the visitor connections whose end closes origin connections.
	watched map[uint64]struct{}
}

type shunKey struct{ replica, tunnel string }

// replica is what the pool holds of one replica. It goes when nothing has used it for a while.
type replica struct {
	id         string
	transports map[transportKey]*http.Transport
	conns      map[*conn]struct{}
	// direct are idle connections without a transport, by key, the one used last at the end; idle is
	// how many.
	direct   map[string][]*direct
	idle     int
	requests int
	unused   time.Time // since when there is neither
	// leaving: it drains or left, so what falls idle is given up.
	leaving bool
}

func newPool(d *dial.Dialer, responseHeader time.Duration) *pool {
	return &pool{
		dialer: d, responseHeader: responseHeader, replicas: map[string]*replica{}, shunned: map[shunKey]time.Time{},
		alpn: map[alpnKey]*alpn{}, slots: map[string]slots{}, pins: map[pin]struct{}{}, watched: map[uint64]struct{}{},
	}
}

// choose returns the least loaded replica of a tunnel and counts a request on it; nil if there
// is none. Streams that wait for a request are no load, requests that share a stream are.
func (p *pool) choose(tunnelID string) *replica {
	order := p.dialer.Order(tunnelID, func(r dial.Replica) int64 {
		active := r.Active()
		p.mu.Lock()
		defer p.mu.Unlock()
		load := active
		if known := p.replicas[r.ID()]; known != nil {
			load = max(0, active-int64(len(known.conns))) + int64(known.requests)
		}
		if until, ok := p.shunned[shunKey{r.ID(), tunnelID}]; ok && time.Now().Before(until) {
			load += 1 << 32
		}
		return load
	})
	if len(order) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep()
	r := p.replica(order[0].ID())
	r.requests++
	r.leaving = false
	return r
}

// replica returns the pool's part of a replica. The caller holds mu and adds to it.
func (p *pool) replica(id string) *replica {
	r := p.replicas[id]
	if r == nil {
		r = &replica{id: id, conns: map[*conn]struct{}{}}
		p.replicas[id] = r
	}
	return r
}

// tidy notes when nothing uses a replica any more. The caller holds mu.
func (p *pool) tidy(r *replica) {
	if r.requests == 0 && len(r.conns) == 0 {
		r.unused = time.Now()
	}
}

// sweep forgets replicas that nothing has used for a while: not at once, because a transport may
// still dial for a request that has got its connection elsewhere. The caller holds mu.
func (p *pool) sweep() {
	now := time.Now()
	if now.Sub(p.swept) < time.Minute {
		return
	}
	p.swept = now
	for id, r := range p.replicas {
		if r.requests == 0 && len(r.conns) == 0 && now.Sub(r.unused) > time.Minute {
			delete(p.replicas, id)
		}
	}
}

func (p *pool) release(r *replica) {
	p.mu.Lock()
	r.requests--
	leaving := r.leaving && r.requests == 0
	p.tidy(r)
	p.mu.Unlock()
	if leaving {
		p.giveUp(r)
	}
}

// giveUp lets a replica's transports give their idle connections up. Only they know for certain that
// no request is about to take one.
func (p *pool) giveUp(r *replica) {
	p.mu.Lock()
	transports := slices.Collect(maps.Values(r.transports))
	p.mu.Unlock()
	for _, t := range transports {
		t.CloseIdleConnections()
	}
	p.dropDirect(r)
}

// transportKey is what the connections of a transport have in common: what they speak, and how long an
// origin may take to begin its answer.
type transportKey struct {
	protocol protocol
	limit    time.Duration
}

func (p *pool) transport(r *replica, k transportKey) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.transports[k] == nil {
		if r.transports == nil {
			r.transports = map[transportKey]*http.Transport{}
		}
		r.transports[k] = p.newTransport(k)
	}
	return r.transports[k]
}

func (p *pool) newTransport(k transportKey) *http.Transport {
	t := &http.Transport{
		DialContext:            p.dial,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  k.limit,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // what the visitor accepts is the visitor's business
		Protocols:              new(http.Protocols),
	}
	if k.protocol == patient {
		t.ResponseHeaderTimeout = 0
	}
	if k.protocol != http1 {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.MaxConnsPerHost = 1 // a slot is one connection; see slots
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return t
}

// dial is for the transports. The ride whose request needs a connection is in ctx; it may end up
// with another one that has become free, but never with one for something else.
func (p *pool) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	rd, ok := ctx.Value(rideKey{}).(*ride)
	if !ok {
		panic("proxy: dial without a ride")
	}
	c, err := p.connect(ctx, rd)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect is the connection of a ride.
func (p *pool) connect(ctx context.Context, rd *ride) (*conn, error) {
	if c := rd.ready.Swap(nil); c != nil {
		return c, nil
	}
	c, err := p.dialer.Start(ctx, rd.request(rd.offer))
	if err != nil {
		return nil, err
	}
	return p.adopt(c, rd), nil
}

// adopt makes a stream a connection of the pool.
func (p *pool) adopt(c *dial.Conn, rd *ride) *conn {
	out := &conn{Conn: c, pool: p, tunnelID: rd.tunnel().GetId(), protocol: rd.protocol, readEnded: make(chan struct{})}
	if rd.exclusive {
		out.visitorID = rd.x.visitorID()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out.owner = p.replica(c.ReplicaID)
	out.owner.conns[out] = struct{}{}
	if c.ReplicaID != rd.boarded.id {
		p.shun(rd.boarded.id, out.tunnelID)
	}
	return out
}

// shun makes a replica that could not reach a tunnel's origin nobody's first choice for a while.
// The caller holds mu.
func (p *pool) shun(replicaID, tunnelID string) {
	now := time.Now()
	for k, until := range p.shunned {
		if now.After(until) {
			delete(p.shunned, k)
		}
	}
	p.shunned[shunKey{replicaID, tunnelID}] = now.Add(shunFor)
}

// forget takes a closed connection out of the books.
func (p *pool) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(c.owner.conns, c)
	p.tidy(c.owner)
}

// moved notes that another replica than the chosen one carries c, because that one could not
// reach the origin.
func (p *pool) moved(c *conn, to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := c.owner.conns[c]; !open {
		return
	}
	p.shun(c.owner.id, c.tunnelID)
	delete(c.owner.conns, c)
	p.tidy(c.owner)
	c.owner = p.replica(to)
	c.owner.conns[c] = struct{}{}
}

// closeIdle closes the idle connections for which f is true. A request that takes one just now
// fails, so f must name connections that no request asks for any more.
func (p *pool) closeIdle(f func(*conn) bool) {
	var found []*conn
	p.mu.Lock()
	for _, r := range p.replicas {
		for c := range r.conns {
			if c.busy.Load() == 0 && f(c) {
				found = append(found, c)
			}
		}
	}
	p.mu.Unlock()
	for _, c := range found {
		_ = c.Close() // it is given up either way
	}
}

func (p *pool) closeTunnel(id string) {
	p.mu.Lock()
	for k := range p.alpn {
		if k.tunnel == id {
			delete(p.alpn, k)
		}
	}
	p.mu.Unlock()
	p.closeIdle(func(c *conn) bool { return c.tunnelID == id })
}

func (p *pool) closeReplica(id string) {
	p.mu.Lock()
	r := p.replicas[id]
	if r != nil {
		r.leaving = true
	}
	p.mu.Unlock()
	if r != nil {
		p.giveUp(r)
	}
}

func (p *pool) closeIdleOf(id string) {
	p.mu.Lock()
	r := p.replicas[id]
	p.mu.Unlock()
	if r != nil {
		p.giveUp(r)
	}
}

func (p *pool) close() {
	p.mu.Lock()
	all := make([]*replica, 0, len(p.replicas))
	for _, r := range p.replicas {
		r.leaving = true
		all = append(all, r)
	}
	p.mu.Unlock()
	for _, r := range all {
		p.giveUp(r)
	}
}
