package e2e

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

// muteProxy stands in front of an edge. mute has the connections of now carry nothing any more; their
// sockets stay open, as behind a router that drops everything.
type muteProxy struct {
	addr   string
	target string
	// cut is closed when the sockets of muted connections close.
	cut   chan struct{}
	mu    sync.Mutex
	muted chan struct{}
}

func newMuteProxy(t *testing.T, target string) *muteProxy {
	t.Helper()
	l := listen(t)
	p := &muteProxy{addr: l.Addr().String(), target: target, muted: make(chan struct{}), cut: make(chan struct{})}
	end := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() { close(end); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.target)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			muted := p.muted
			p.mu.Unlock()
			wg.Go(func() { p.carry(in, out, muted, end) })
			wg.Go(func() { p.carry(out, in, muted, end) })
		}
	})
	return p
}

// carry copies until an end. Once muted it holds both sockets open until they are cut.
func (p *muteProxy) carry(from, to net.Conn, muted, end <-chan struct{}) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		_ = from.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := from.Read(buf)
		select {
		case <-muted:
			select {
			case <-p.cut:
			case <-end:
			}
			return
		case <-end:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if ne, ok := err.(net.Error); err != nil && (!ok || !ne.Timeout()) {
			return
		}
	}
}

func (p *muteProxy) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.muted)
	p.muted = make(chan struct{})
}

// TestMutedHolder has everything of a holder dropped on the way: it lives, and nobody hears it.
func TestMutedHolder(t *testing.T) {
	t.Parallel()
	https := net.JoinHostPort("127.0.0.1", fmt.Sprint(freeport.One(t)))
	p := newMuteProxy(t, https)
	l := newLease(t, stack.ServerConfig{HTTPS: https, Args: []string{"--advertise", p.addr}})
	first := l.agent(t, "--carriers", "tls")
	first.WaitReady(30 * time.Second)
	l.serves(t, 10*time.Second)
	p.mute()
	start := time.Now()
	second := l.agent(t, "--carriers", "tls")
	second.WaitReady(20 * time.Second)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took over after %v", took)
	}
	l.serves(t, 10*time.Second)
	// The first one finds out, and waits: no fight.
	close(p.cut)
	waitStandby(t, first)
	if code, _ := second.Readyz(); code != 200 {
		t.Error("the second one lost the enrolment again")
	}
}
