package origin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/adit-dev/adit/internal/reason"
)

// headStart is what one address gets before the next one is tried beside it.
const headStart = 250 * time.Millisecond

// resolve returns the addresses of s, families alternating. localhost is both loopback addresses,
// whatever a resolver makes of it: services listen on either.
func (d *Dialer) resolve(ctx context.Context, s *Spec) ([]netip.AddrPort, *reason.Error) {
	if e := d.guard.checkName(s); e != nil {
		return nil, e
	}
	if a, err := netip.ParseAddr(s.Host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, s.Port)}, nil
	}
	if h := strings.TrimSuffix(strings.ToLower(s.Host), "."); h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return []netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.Port),
			netip.AddrPortFrom(netip.IPv6Loopback(), s.Port),
		}, nil
	}
	found, err := d.cfg.Lookup(ctx, s.Host)
	if err != nil || len(found) == 0 {
		return nil, unresolved(s, err)
	}
	var v4, v6 []netip.AddrPort
	for _, f := range found {
		a, ok := netip.AddrFromSlice(f.IP)
		if !ok {
			continue
		}
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, netip.AddrPortFrom(a, s.Port))
		} else {
			v6 = append(v6, netip.AddrPortFrom(a.WithZone(f.Zone), s.Port))
		}
	}
	if first := found[0].IP; first.To4() != nil {
		return alternate(v4, v6), nil
	}
	return alternate(v6, v4), nil
}

func alternate(a, b []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range max(len(a), len(b)) {
		if i < len(a) {
			out = append(out, a[i])
		}
		if i < len(b) {
			out = append(out, b[i])
		}
	}
	return out
}

func unresolved(s *Spec, err error) *reason.Error {
	var dns *net.DNSError
	switch {
	case err == nil:
		return reason.New(reason.OriginUnresolved, reason.HopOrigin, "%s has no address; check the origin's host name", s.Host).Safe()
	case errors.As(err, &dns) && dns.IsNotFound:
		return reason.New(reason.OriginUnresolved, reason.HopOrigin, "the host name %s of %s does not exist for this agent; check the origin's spelling and the agent's DNS", s.Host, s).Safe()
	}
	return reason.Wrap(err, reason.OriginUnresolved, reason.HopOrigin, "looking up %s failed; check the agent's DNS", s.Host).Safe()
}

// dialTCP tries every address of s, each with a head start, and returns the first connection.
func (d *Dialer) dialTCP(ctx context.Context, s *Spec) (*net.TCPConn, *reason.Error) {
	addrs, rerr := d.resolve(ctx, s)
	if rerr != nil {
		return nil, rerr
	}
	var tried attempts
	permitted := addrs[:0:0]
	for _, a := range addrs {
		if e := d.guard.check(s, a.Addr()); e != nil {
			tried.add(a, e)
			continue
		}
		permitted = append(permitted, a)
	}
	if len(permitted) == 0 {
		return nil, tried.error(s)
	}
	nd := &net.Dialer{
		Control:         d.guard.control(s),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: d.cfg.KeepAlive, Interval: d.cfg.KeepAlive / 2, Count: 4},
	}
	if len(permitted) == 1 {
		// Nobody to race with.
		c, err := nd.DialContext(ctx, "tcp", permitted[0].String())
		if err != nil {
			tried.add(permitted[0], err)
			return nil, tried.error(s)
		}
		return c.(*net.TCPConn), nil
	}
	return race(ctx, nd, s, permitted, &tried)
}

// race dials addresses beside each other, each with a head start.
func race(ctx context.Context, nd *net.Dialer, s *Spec, permitted []netip.AddrPort, tried *attempts) (*net.TCPConn, *reason.Error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		addr netip.AddrPort
		conn net.Conn
		err  error
	}
	results := make(chan result, len(permitted))
	running, next := 0, 0
	start := func() {
		a := permitted[next]
		next++
		running++
		go func() {
			c, err := nd.DialContext(ctx, "tcp", a.String())
			results <- result{a, c, err}
		}()
	}
	start()
	timer := time.NewTimer(headStart)
	defer timer.Stop()
	for running > 0 {
		select {
		case <-timer.C:
			if next < len(permitted) {
				start()
				timer.Reset(headStart)
			}
		case r := <-results:
			running--
			if r.err == nil {
				cancel()
				// Those that lost may still connect; their sockets are closed as they come.
				go func() {
					for range running {
						if late := <-results; late.conn != nil {
							_ = late.conn.Close()
						}
					}
				}()
				return r.conn.(*net.TCPConn), nil
			}
			tried.add(r.addr, r.err)
			if next < len(permitted) {
				start()
				timer.Reset(headStart)
			}
		}
	}
	return nil, tried.error(s)
}

// attempts are the addresses that were tried, and how each failed.
type attempts struct {
	texts                    []string
	denied, timeout, refused int
	last                     *reason.Error
}

func (t *attempts) add(a netip.AddrPort, err error) {
	var e *reason.Error
	var timeout net.Error
	text := err.Error()
	switch {
	case errors.As(err, &e):
		t.denied++
		t.last, text = e, e.Detail
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		t.timeout++
		text = "no answer in time"
	case refused(err):
		t.refused++
		text = "connection refused"
	default:
		var op *net.OpError
		if errors.As(err, &op) {
			text = op.Err.Error()
		}
	}
	t.texts = append(t.texts, a.String()+": "+text)
}

func (t *attempts) error(s *Spec) *reason.Error {
	tried := strings.Join(t.texts, "; ")
	switch {
	case t.denied == len(t.texts) && t.last != nil:
		return t.last
	case t.refused > 0:
		return reason.New(reason.OriginRefused, reason.HopOrigin, "%s refused the connection (tried %s); is the service running, and on this port?", s, tried).Safe()
	case t.timeout > 0:
		return reason.New(reason.OriginTimeout, reason.HopOrigin, "%s did not answer the connection (tried %s); is it reachable from the agent, or does a firewall drop it?", s, tried).Safe()
	}
	return reason.New(reason.OriginRefused, reason.HopOrigin, "%s cannot be reached (tried %s); check the agent's network", s, tried).Safe()
}
