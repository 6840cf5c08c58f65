package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/outbound"
	"github.com/adit-dev/adit/internal/reason"
)

// dialled is a connection whose opening was accepted.
type dialled struct {
	binding
	number uint64
	reply  *wirev1.OpeningReply
}

// attempt is one way to reach the edge.
type attempt struct {
	carrier string
	addr    string
	x25519  bool          // a hello that fits one datagram
	after   time.Duration // since the start of the race, unless all before failed
	dial    func(ctx context.Context) (*binding, error)
}

func (a attempt) String() string {
	if a.x25519 {
		return a.carrier + " " + a.addr + " (small hello)"
	}
	return a.carrier + " " + a.addr
}

// attempts lists what to try and when: each carrier gets a head start before the next, each
// address a smaller one.
func (c *Connector) attempts(ctx context.Context, carriers []string) ([]attempt, error) {
	addrs, err := c.resolve(ctx)
	if len(addrs) == 0 && c.cfg.Proxy == nil {
		return nil, err
	}
	var out []attempt
	start := time.Duration(0)
	for _, carrier := range carriers {
		at := start
		add := func(addr string, small bool, dial func(context.Context) (*binding, error)) {
			out = append(out, attempt{carrier: carrier, addr: addr, x25519: small, after: at, dial: dial})
			at += c.timing.nextAddress
		}
		switch carrier {
		case CarrierQUIC:
			for _, a := range addrs {
				add(a, false, func(ctx context.Context) (*binding, error) { return c.dialQUIC(ctx, a, false) })
			}
			// Some paths drop a hello of two datagrams, as the post-quantum one is.
			at = max(at, start+c.timing.headStart/2)
			for _, a := range addrs {
				add(a, true, func(ctx context.Context) (*binding, error) { return c.dialQUIC(ctx, a, true) })
			}
		case CarrierTLS, CarrierWS:
			targets, err := c.tcpTargets(addrs)
			if err != nil {
				return nil, err
			}
			for _, t := range targets {
				add(t.String(), false, func(ctx context.Context) (*binding, error) { return c.dialTCP(ctx, t, carrier) })
			}
		default:
			return nil, fmt.Errorf("carrier %q is unknown; carriers are quic, tls and ws", carrier)
		}
		start += c.timing.headStart
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// resolve gives the edge's addresses, IPv6 and IPv4 in turn.
func (c *Connector) resolve(ctx context.Context) ([]string, error) {
	var out []string
	var firstErr error
	for _, hp := range c.cfg.Edge.GetAddresses() {
		host, port, err := net.SplitHostPort(outbound.Loopback(hp))
		if err != nil {
			firstErr = errors.Join(firstErr, fmt.Errorf("edge address %q: want host:port", hp))
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			firstErr = errors.Join(firstErr, err)
			continue
		}
		var v6, v4 []string
		for _, ip := range ips {
			if ip = ip.Unmap(); ip.Is4() {
				v4 = append(v4, net.JoinHostPort(ip.String(), port))
			} else {
				v6 = append(v6, net.JoinHostPort(ip.String(), port))
			}
		}
		for i := range max(len(v6), len(v4)) {
			if i < len(v6) {
				out = append(out, v6[i])
			}
			if i < len(v4) {
				out = append(out, v4[i])
			}
		}
	}
	if len(out) == 0 && firstErr == nil {
		firstErr = errors.New("the edge has no address")
	}
	return out, firstErr
}

// dial races the attempts. Handshakes overlap, openings do not: the first connection that is
// ready opens, and only if that fails for reasons of the path does another one.
func (c *Connector) dial(ctx context.Context, carriers []string, mode wirev1.SessionMode) (*dialled, error) {
	attempts, err := c.attempts(ctx, carriers)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	r := &race{c: c, mode: mode, turn: make(chan struct{}, 1), results: make(chan error, len(attempts))}
	next, pending, hurry := 0, 0, false
	began := time.Now()
	var errs []error
	for {
		var start <-chan time.Time
		if next < len(attempts) {
			wait := attempts[next].after - time.Since(began)
			if hurry {
				wait = 0
			}
			start = time.After(max(0, wait))
		}
		select {
		case <-start:
			a := attempts[next]
			wg.Add(1)
			go func() { defer wg.Done(); r.results <- r.run(ctx, a) }()
			next++
			pending++
			hurry = false
		case err := <-r.results:
			pending--
			var e *reason.Error
			switch {
			case err == nil:
				return r.won, nil
			case errors.As(err, &e) && e.Code != reason.WrongEdge:
				return nil, err // the edge has spoken; another carrier changes nothing
			}
			errs = append(errs, err)
			hurry = true
			if pending == 0 && next == len(attempts) {
				return nil, errors.Join(errs...)
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// race is what the attempts of one dial share.
type race struct {
	c       *Connector
	mode    wirev1.SessionMode
	turn    chan struct{} // held while opening
	won     *dialled      // guarded by turn
	results chan error
}

// run makes one attempt.
func (r *race) run(ctx context.Context, a attempt) error {
	ctx, stop := context.WithTimeout(ctx, r.c.timing.dial)
	defer stop()
	b, err := a.dial(ctx)
	if err != nil {
		return fmt.Errorf("%v: %w", a, err)
	}
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.won != nil || ctx.Err() != nil {
		b.close(nil)
		return fmt.Errorf("%v: %w", a, context.Canceled)
	}
	d, err := r.c.open(ctx, b, r.mode)
	if err != nil {
		r.c.mu.Lock()
		r.c.spoke = a.carrier
		r.c.mu.Unlock()
		return fmt.Errorf("%v: %w", a, err)
	}
	r.won = d
	return nil
}

// open makes the opening on a fresh connection.
func (c *Connector) open(ctx context.Context, b *binding, mode wirev1.SessionMode) (*dialled, error) {
	d := &dialled{binding: *b, number: c.nextNumber()}
	stop := context.AfterFunc(ctx, func() { b.close(ctx.Err()) })
	defer stop()
	reply, err := c.cfg.Dialler.Open(ctx, b.ctl, b.cs, &wirev1.Opening{Session: d.number, Mode: mode})
	if err != nil {
		b.close(err)
		return nil, err
	}
	d.reply = reply
	return d, nil
}

// Windows of QUIC streams: small at first, larger for who reads fast.
const (
	streamWindow    = 256 << 10
	maxStreamWindow = 8 << 20
)

// quicConfig is the agent's; the edge's, shared with HTTP/3, is the front's.
func quicConfig() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           opening.Timeout,
		MaxIdleTimeout:                 60 * time.Second,
		InitialStreamReceiveWindow:     streamWindow,
		MaxStreamReceiveWindow:         maxStreamWindow,
		InitialConnectionReceiveWindow: 4 << 30, // never binds: a stalled stream harms no other
		MaxConnectionReceiveWindow:     4 << 30,
		MaxIncomingStreams:             1 << 20, // the edge opens all streams
		MaxIncomingUniStreams:          -1,
		InitialPacketSize:              1200,
		EnableDatagrams:                true,
	}
}

// dialQUIC connects from a socket of its own, so that a session does not depend on the NAT
// binding of an earlier one.
func (c *Connector) dialQUIC(ctx context.Context, addr string, small bool) (*binding, error) {
	ua, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, err
	}
	network := "udp4"
	if ua.AddrPort().Addr().Unmap().Is6() {
		network = "udp6"
	}
	sock, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, err
	}
	conn, shared := datagram.Share(sock)
	tr := &quic.Transport{Conn: conn}
	end := func() {
		_ = tr.Close()
		_ = sock.Close()
	}
	conf := c.tlsConfig()
	conf.ClientSessionCache = nil // sessions are few; lanes resume
	if small {
		conf.CurvePreferences = []tls.CurveID{tls.X25519}
	}
	qc, err := tr.Dial(ctx, ua, conf, quicConfig())
	if err != nil {
		end()
		return nil, err
	}
	st, err := qc.OpenStreamSync(ctx)
	if err != nil {
		_ = qc.CloseWithError(quicCodeClosed, "")
		end()
		return nil, err
	}
	context.AfterFunc(qc.Context(), end)
	return &binding{
		carrier: CarrierQUIC, ctl: st, qc: qc, shared: shared, cs: qc.ConnectionState().TLS, local: qc.LocalAddr(), remote: qc.RemoteAddr(),
		close: func(err error) { _ = qc.CloseWithError(closeCode(err), closeText(err)) },
	}, nil
}
