// Package proxy is the HTTP data plane: it takes visitors' requests in HTTP/1.1, HTTP/2 and
// HTTP/3, decides which tunnel and rule they are for and carries them to an origin through a
// stream of one of the tunnel's replicas.
package proxy

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/route"
	_ "github.com/adit-dev/adit/internal/front/h2connect" // WebSockets over HTTP/2
	"github.com/adit-dev/adit/internal/reason"
)

// Defaults of Config.
const (
	defaultResponseHeader = 60 * time.Second
	defaultBodyIdle       = 60 * time.Second
)

// Config is what a proxy needs. Functions must be safe for concurrent use.
type Config struct {
	// Lookup returns the rules of the tunnel of kind http or tls for a normalized host name on
	// the address the visitor dialled; nil = none.
	Lookup func(local netip.AddrPort, host string) *route.Rules
	// Covers reports whether the certificate served for serverName also covers host. Both are
	// normalized and differ. Nil: it never does.
	Covers func(serverName, host string) bool
	// Dialer opens streams and knows the replicas.
	Dialer *dial.Dialer
	// TrustedProxies are peers whose X-Forwarded-* is believed.
	TrustedProxies []netip.Prefix
	// ResponseHeader (60 s, or up to an eighth more) bounds the wait for an answer after the request was sent, BodyIdle
	// (60 s) the wait for the next piece of a body from or to the visitor.
	ResponseHeader time.Duration
	BodyIdle       time.Duration
	// Failing reports whether an origin of a tunnel fails the checks of those who serve it; nil: none
	// does.
	Failing func(tunnelID string, origin uint32) bool
	// Local serves paths under /.adit/ on tunnels' hosts; nil answers 404.
	Local http.Handler
	// Done is called with what became of each request for a tunnel; nil = nobody asks.
	Done func(Outcome)
	// Log may be nil: slog.Default. Registry may be nil.
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Outcome is what became of one request.
type Outcome struct {
	TunnelID string
	// Status as the visitor saw it; 499 for one that went away.
	Status int
	// FirstByte is the time from the request to the head of the answer; 0 if there was none.
	FirstByte time.Duration
	// Reason is why the edge answered itself, or broke off; empty if it did neither.
	Reason reason.Code
}

// Proxy is an http.Handler for all tunnels of kind http.
type Proxy struct {
	cfg      Config
	log      *slog.Logger
	errorLog *log.Logger
	metrics  *metrics
	pool     *pool
	buffers  buffers
	upgrades upgrades
}

// New returns a proxy.
func New(cfg Config) *Proxy {
	cfg.ResponseHeader = cmp.Or(cfg.ResponseHeader, defaultResponseHeader)
	cfg.BodyIdle = cmp.Or(cfg.BodyIdle, defaultBodyIdle)
	if cfg.Covers == nil {
		cfg.Covers = func(string, string) bool { return false }
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Proxy{
		cfg: cfg, log: cfg.Log, metrics: newMetrics(cfg.Registry),
		errorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		pool:     newPool(cfg.Dialer, cfg.ResponseHeader),
	}
}

// failing is Failing for the origins of t; nil where nobody checks them.
func (p *Proxy) failing(t *hubv1.Tunnel) func(origin uint32) bool {
	if p.cfg.Failing == nil || t.GetHealthCheck() == nil {
		return nil
	}
	return func(origin uint32) bool { return p.cfg.Failing(t.GetId(), origin) }
}

// ServeHTTP serves one request of a visitor.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(p, w, r)
	defer x.finish()
	if err := x.decide(); err != nil {
		x.fail(err)
		return
	}
	x.serve()
}

// CloseTunnel ends the upgraded connections (WebSockets) of a tunnel that was removed, or whose
// access changed, and the idle origin connections kept for it. Plain requests run to their end.
func (p *Proxy) CloseTunnel(tunnelID string) {
	p.upgrades.end(func(u *upgraded) bool { return u.tunnelID == tunnelID })
	p.pool.closeTunnel(tunnelID)
}

// CloseReplica gives up the idle origin connections through a replica that drains or left.
func (p *Proxy) CloseReplica(replicaID string) { p.pool.closeReplica(replicaID) }

// CloseIdle gives up the idle origin connections through a replica: others want what carries them.
func (p *Proxy) CloseIdle(replicaID string) { p.pool.closeIdleOf(replicaID) }

// Drain waits for the upgraded connections to end by themselves; when ctx ends it tells the rest
// that the edge goes away (WebSocket close 1001) and closes them. New requests are still served;
// stopping those is the front's business.
func (p *Proxy) Drain(ctx context.Context) {
	p.upgrades.wait(ctx)
	p.upgrades.end(func(*upgraded) bool { return true })
}

// Close ends the upgraded connections and gives up all idle origin connections.
func (p *Proxy) Close() {
	p.upgrades.end(func(*upgraded) bool { return true })
	p.pool.close()
}

// buffers lends copy buffers to httputil.ReverseProxy.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if v, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return v[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buf []byte) {
	if len(buf) == bufferSize {
		b.pool.Put((*[bufferSize]byte)(buf))
	}
}
