package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	checkInterval = 30 * time.Second
	checkTimeout  = 5 * time.Second
	// maxChecks bounds the checks that run at a time.
	maxChecks = 32
)

// checks tries the origins of managed tunnels that ask for it. One that fails is reported, and
// edges send its streams elsewhere while another origin passes.
type checks struct {
	dialer  *origin.Dialer
	log     *slog.Logger
	changed func()
	slots   chan struct{}

	mu    sync.Mutex
	ctx   context.Context // of run; nil before
	group sync.WaitGroup
	by    map[string]*check // by tunnel id
}

// check is that of one tunnel.
type check struct {
	s      *service
	cancel context.CancelFunc
	// results is the last failure of each origin, nil = passes or not tried.
	results []*reason.Error
}

func newChecks(d *origin.Dialer, log *slog.Logger, changed func()) *checks {
	return &checks{dialer: d, log: log, changed: changed, slots: make(chan struct{}, maxChecks), by: map[string]*check{}}
}

// run has checks run until ctx ends, and waits for them.
func (c *checks) run(ctx context.Context) {
	c.mu.Lock()
	c.ctx = ctx
	for _, k := range c.by {
		c.start(k)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.group.Wait()
}

// follow makes the checks those of t; one whose tunnel is the same goes on.
func (c *checks) follow(t *table) {
	c.mu.Lock()
	gone := false
	for id, k := range c.by {
		if t.byID[id] != k.s {
			if k.cancel != nil {
				k.cancel()
			}
			gone = gone || slices.ContainsFunc(k.results, func(e *reason.Error) bool { return e != nil })
			delete(c.by, id)
		}
	}
	for _, s := range t.services {
		if s.managed.GetHealthCheck() == nil || s.problem != nil || c.by[s.id] != nil {
			continue
		}
		k := &check{s: s, results: make([]*reason.Error, len(s.origins))}
		c.by[s.id] = k
		c.start(k)
	}
	c.mu.Unlock()
	if gone {
		c.changed()
	}
}

// start is called with mu held.
func (c *checks) start(k *check) {
	if c.ctx == nil || c.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	k.cancel = cancel
	for i := range k.s.origins {
		c.group.Go(func() { c.repeat(ctx, k, i) })
	}
}

func (c *checks) repeat(ctx context.Context, k *check, i int) {
	h := k.s.managed.GetHealthCheck()
	every, limit := checkInterval, checkTimeout
	if n := h.GetIntervalSeconds(); n > 0 {
		every = time.Duration(n) * time.Second
	}
	if n := h.GetTimeoutSeconds(); n > 0 {
		limit = time.Duration(n) * time.Second
	}
	// Many tunnels that start together are not checked together for ever.
	pause := time.NewTimer(rand.N(200 * time.Millisecond)) //nolint:gosec // jitter is no secret
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		e := c.try(ctx, k.s, i, limit)
		<-c.slots
		if ctx.Err() != nil {
			return
		}
		c.note(k, i, e)
		pause.Reset(every - every/10 + rand.N(every/5)) //nolint:gosec // jitter is no secret
	}
}

func (c *checks) note(k *check, i int, e *reason.Error) {
	c.mu.Lock()
	old := k.results[i]
	k.results[i] = e
	current := c.by[k.s.id] == k
	c.mu.Unlock()
	if !current || (e == nil) == (old == nil) && (e == nil || e.Code == old.Code) {
		return
	}
	if e != nil {
		c.log.Warn("an origin fails its health check", "tunnel", k.s.declared.GetName(), "origin", k.s.origins[i].String(), "reason", e.Code, "detail", e.Detail)
	} else {
		c.log.Info("an origin passes its health check again", "tunnel", k.s.declared.GetName(), "origin", k.s.origins[i].String())
	}
	c.changed()
}

// try checks one origin once.
func (c *checks) try(ctx context.Context, s *service, i int, limit time.Duration) *reason.Error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	spec, path := s.origins[i], s.managed.GetHealthCheck().GetPath()
	conn, err := c.dialer.Dial(ctx, spec, &wirev1.StreamHeader{Kind: s.declared.GetKind()})
	if err != nil {
		return reason.Of(err, reason.HopAgent)
	}
	defer conn.Abort()
	if path == "" || spec.Scheme == origin.SchemeH2C {
		return nil
	}
	defer context.AfterFunc(ctx, conn.Abort)()
	fail := func(format string, args ...any) *reason.Error {
		if ctx.Err() != nil {
			return reason.New(reason.OriginTimeout, reason.HopOrigin, "%s did not answer GET %s within %v", spec, path, limit)
		}
		return reason.New(reason.OriginProtocol, reason.HopOrigin, format, args...)
	}
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+checkHost(s.managed, i)+"\r\nUser-Agent: adit-health-check\r\nConnection: close\r\n\r\n"); err != nil {
		return fail("%s closed the connection of the health check", spec)
	}
	res, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 64<<10)), nil)
	if err != nil {
		return fail("%s gave no answer in HTTP to GET %s", spec, path)
	}
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fail("%s answered GET %s with %d; the health check wants 2xx or 3xx", spec, path, res.StatusCode)
	}
	return nil
}

// checkHost is the Host of a check: what visitors' requests have.
func checkHost(t *hubv1.Tunnel, i int) string {
	o := t.GetOrigins()[i]
	_, hostport, _ := strings.Cut(o.GetUrl(), "://")
	switch h := o.GetHostHeader(); {
	case h == "origin", h == "" && strings.HasPrefix(t.GetHostname(), "*"):
		return hostport
	case h == "":
		return t.GetHostname()
	default:
		return h
	}
}

// failing names the origins that fail now, for edges.
func (c *checks) failing() []*wirev1.TunnelHealth {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*wirev1.TunnelHealth
	for id, k := range c.by {
		h := &wirev1.TunnelHealth{TunnelId: id}
		for i, e := range k.results {
			if e != nil {
				h.Failing = append(h.Failing, uint32(i))
			}
		}
		if len(h.Failing) > 0 {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *wirev1.TunnelHealth) int { return strings.Compare(a.TunnelId, b.TunnelId) })
	return out
}

// failure is what fails of a tunnel's origins, nil if they pass or are not checked.
func (c *checks) failure(id string) *reason.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[id]
	if k == nil {
		return nil
	}
	n := 0
	var first *reason.Error
	for _, e := range k.results {
		if e != nil {
			n++
			if first == nil {
				first = e
			}
		}
	}
	if n == 0 || len(k.results) == 1 {
		return first
	}
	return reason.New(first.Code, first.Hop, "%s", fmt.Sprintf("%d of %d origins fail their health check: %s", n, len(k.results), first.Detail))
}

// problem is what is wrong with a service now: it cannot be served, or an origin fails.
func (a *Agent) problem(s *service) *reason.Error {
	if s.problem != nil {
		return s.problem
	}
	if e := a.checks.failure(s.id); e != nil {
		return e
	}
	if s.managed.GetHealthCheck() != nil {
		return nil // what the check says is newer than the last visitor's failure
	}
	return a.handler.health(s.id)
}
