package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

// udpFlow is one flow with its origin socket. The socket is the flow's own from first to last: a
// change of session does not touch it.
type udpFlow struct {
	s      *flowServer
	flow   link.Flow
	target udpTarget
	// head is the PROXY header for the first datagram on a socket.
	head   []byte
	ctx    context.Context
	cancel context.CancelFunc
	// used is when the last datagram went either way, heard when one last came from the origin;
	// UnixNano.
	used, heard atomic.Int64

	mu   sync.Mutex
	conn *datagram.Socket
	// headed is set once head went out on conn.
	headed       bool
	pending      [][]byte
	pendingBytes int
}

// end ends the flow on both sides; its goroutine does the rest.
func (u *udpFlow) end() {
	u.cancel()
	_ = u.flow.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		_ = u.conn.Close()
	}
}

// run dials the origin and carries its datagrams until the flow ends. An origin that is away is
// dialled again: its name may lead elsewhere by then.
func (u *udpFlow) run() {
	defer u.s.remove(u)
	pause := udpRedialFirst
	for u.ctx.Err() == nil {
		c, err := u.dial()
		if err == nil {
			pause = udpRedialFirst
			u.connected(c)
			u.fromOrigin(c)
			u.disconnected(c)
			continue
		}
		e := reason.Of(err, reason.HopAgent)
		if u.ctx.Err() != nil {
			break
		}
		u.s.m.refused(e)
		u.s.log.Debug("origin of a flow cannot be dialled", "origin", u.target.spec.String(), "reason", e.Code, "detail", e.Refusal().GetDetail())
		wait := time.NewTimer(pause)
		select {
		case <-u.ctx.Done():
		case <-u.flow.Done():
			u.cancel()
		case <-wait.C:
		}
		wait.Stop()
		pause = min(2*pause, udpRedialLongest)
	}
	_ = u.flow.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(dropOriginUnreachable, len(u.pending))
	u.pending = nil
}

func (u *udpFlow) dial() (*datagram.Socket, error) {
	c, err := u.s.dialer.DialUDP(u.ctx, u.target.spec, u.target.port)
	if err != nil {
		return nil, err
	}
	return datagram.Connected(c)
}

func (u *udpFlow) drop(why string, n int) {
	if n > 0 {
		u.s.m.dropped.WithLabelValues(why).Add(float64(n))
	}
}

// connected sends what waited for c and lets receive use it.
func (u *udpFlow) connected(c *datagram.Socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.heard.Store(u.s.now().UnixNano())
	u.headed = false
	for _, b := range u.pending {
		u.write(c, b)
	}
	u.sent(c)
	u.pending, u.pendingBytes = nil, 0
	u.conn = c
	if u.ctx.Err() != nil {
		_ = c.Close()
	}
}

func (u *udpFlow) disconnected(c *datagram.Socket) {
	_ = c.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn = nil
}

// receive takes a datagram of the visitor; flush follows the last of several.
func (u *udpFlow) receive(b []byte) {
	u.used.Store(u.s.now().UnixNano())
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		u.write(u.conn, b)
		return
	}
	if len(u.pending) >= udpPending || u.pendingBytes+len(b) > udpPendingBytes {
		u.drop(dropOriginUnreachable, 1)
		return
	}
	u.pending = append(u.pending, append(make([]byte, 0, len(b)), b...))
	u.pendingBytes += len(b)
}

// write queues b for the origin, the first one behind the PROXY header. The caller holds mu.
func (u *udpFlow) write(c *datagram.Socket, b []byte) {
	u.s.m.toOrigin.Add(float64(len(b)))
	if u.headed || len(u.head) == 0 {
		c.Queue(b, nil, netip.AddrPort{})
		return
	}
	// Until one with the header is on its way, each has it, and goes alone to tell.
	c.Queue(append(append(make([]byte, 0, len(u.head)+len(b)), u.head...), b...), nil, netip.AddrPort{})
	u.headed = u.sent(c)
}

// flush sends what receive left waiting.
func (u *udpFlow) flush() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		u.sent(u.conn)
	}
}

// sent sends what waits, and reports whether all of it went.
func (u *udpFlow) sent(c *datagram.Socket) bool {
	lost := c.Flush()
	u.drop(dropOriginRefused, lost.Refused)
	u.drop(dropWriteFailed, lost.Failed)
	return lost == datagram.Lost{}
}

// fromOrigin carries the origin's datagrams until the flow ends, or until the origin has been
// unreachable for a while.
func (u *udpFlow) fromOrigin(c *datagram.Socket) {
	toVisitor := func(_ netip.AddrPort, _ netip.Addr, b []byte) {
		now := u.s.now().UnixNano()
		u.used.Store(now)
		u.heard.Store(now)
		u.s.m.toVisitor.Add(float64(len(b)))
		_ = u.flow.Queue(b) // Fails only when the flow has ended, which ends us too.
	}
	for {
		lost, err := c.ReadBatch(toVisitor)
		u.flow.Flush()
		u.drop(dropSocketFull, lost)
		switch {
		case u.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.ECONNREFUSED):
			u.drop(dropOriginRefused, 1)
		case err == nil:
			continue
		}
		// "Port unreachable" and the like are news of the moment: the origin may be restarting.
		// Its address may have changed, too.
		if u.s.now().UnixNano()-u.heard.Load() > int64(5*udpRedialFirst) {
			return
		}
	}
}
