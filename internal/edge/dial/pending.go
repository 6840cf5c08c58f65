package dial

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/splice"
)

// Start opens a stream without waiting: what is written (up to Keep bytes) is kept until the
// answer and replayed on another replica if the first left the origin untouched; more blocks
// until the answer. Read reports a final refusal as *reason.Error.
func (d *Dialer) Start(ctx context.Context, r Request) (*Conn, error) {
	rs, refusal := d.expect(ctx, &r)
	if refusal != nil {
		return nil, refusal
	}
	p := &pending{req: r, within: d.within, rest: rs, sent: append([]byte(nil), r.First...), done: make(chan struct{})}
	if refusal = p.openNext(ctx); refusal != nil {
		return nil, refusal
	}
	return &Conn{Stream: p, ReplicaID: p.id}, nil
}

// pending is a stream whose answer may still be on its way. Whoever needs it first, a reader as a rule,
// waits for it and sees to replays; once it has come, reads and writes go straight through.
type pending struct {
	req    Request
	within time.Duration
	// turn is held by who waits for the answer; done is closed when it came or there will be none.
	turn sync.Mutex
	done chan struct{}

	// writing orders writes and replays; it is held while bytes go out, mu never is.
	writing sync.Mutex

	mu   sync.Mutex
	rest []Replica // not tried yet
	cur  link.Outgoing
	id   string // of cur's replica
	sent []byte // everything written, until the answer
	// settled is true once done is closed; err is the final refusal.
	settled     bool
	err         *reason.Error
	closed      bool
	cancel      context.CancelFunc // ends the wait for the answer; nil before it
	writeClosed bool
	readBy      time.Time
	writeBy     time.Time
}

// openNext opens a stream on the next replica that takes it, giving it all that was sent, and
// makes it the current one.
func (p *pending) openNext(ctx context.Context) *reason.Error {
	refusal := NoAgent(p.req.Tunnel)
	for len(p.rest) > 0 {
		replica := p.rest[0]
		p.rest = p.rest[1:]
		p.mu.Lock()
		first := p.sent
		p.mu.Unlock()
		out, err := replica.Open(ctx, p.req.header(), p.req.Tunnel.GetCarrierPolicy(), first)
		if err == nil {
			return p.become(out, replica.ID(), len(first))
		}
		refusal = failure(ctx, err)
		if ctx.Err() != nil || !p.req.replayable(refusal, len(first)) {
			return refusal
		}
	}
	return refusal
}

// become makes out, which was given the first n bytes, the current stream.
func (p *pending) become(out link.Outgoing, id string, n int) *reason.Error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		out.Abort()
		return reason.Wrap(net.ErrClosed, reason.ClientClosed, reason.HopEdge, "the stream was closed while it was opened")
	}
	p.cur, p.id = out, id
	tail, writeClosed := p.sent[n:], p.writeClosed
	readBy, writeBy := p.readBy, p.writeBy
	p.mu.Unlock()
	// Errors show in the answer.
	_ = out.SetReadDeadline(readBy)
	_ = out.SetWriteDeadline(writeBy)
	if len(tail) > 0 {
		_, _ = out.Write(tail)
	}
	if writeClosed {
		_ = out.CloseWrite()
	}
	return nil
}

// wait returns when the answer came, when there will be none, or when the stream was closed.
func (p *pending) wait() {
	select {
	case <-p.done:
		return
	default:
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.mu.Lock()
	over := p.settled || p.closed
	p.cancel = cancel
	p.mu.Unlock()
	if !over {
		p.await(ctx)
	}
}

// await waits for the answer, moving to other replicas where that is safe. The caller has the turn.
func (p *pending) await(ctx context.Context) {
	for {
		p.mu.Lock()
		cur := p.cur
		p.mu.Unlock()
		_, err := answer(ctx, cur, p.within)
		if err == nil {
			p.settle(nil)
			return
		}
		refusal := failure(ctx, err)
		cur.Abort() // before the replay: it may hold a writer up
		p.mu.Lock()
		sent := len(p.sent)
		p.mu.Unlock()
		if ctx.Err() != nil || len(p.rest) == 0 || !p.req.replayable(refusal, sent) {
			p.settle(refusal)
			return
		}
		if next := p.openNext(ctx); next != nil {
			// The first refusal says more than the lack of another replica.
			p.settle(refusal)
			return
		}
	}
}

func (p *pending) settle(err *reason.Error) {
	p.mu.Lock()
	p.settled, p.err, p.sent = true, err, nil
	p.req.First, p.rest = nil, nil
	p.mu.Unlock()
	close(p.done)
}

func (p *pending) replicaID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// current waits for the answer and returns the stream.
func (p *pending) current() (link.Outgoing, error) {
	p.wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.cur, nil
}

func (p *pending) Read(b []byte) (int, error) {
	s, err := p.current()
	if err != nil {
		return 0, err
	}
	return s.Read(b)
}

// ReadLoan implements buffer.Reader.
func (p *pending) ReadLoan(l *buffer.Loan) (int, error) {
	s, err := p.current()
	if err != nil {
		return 0, err
	}
	return s.ReadLoan(l)
}

func (p *pending) Write(b []byte) (int, error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	kept, s, err := p.keep(b)
	if err != nil {
		return 0, err
	}
	if s != nil {
		return s.Write(b)
	}
	if kept == len(b) {
		return kept, nil
	}
	// No more may be kept: the rest waits for the answer. A replay needs the lock.
	p.writing.Unlock()
	s, err = p.current()
	p.writing.Lock()
	if err != nil {
		return kept, err
	}
	n, err := s.Write(b[kept:])
	return kept + n, err
}

// keep hands b, as far as it can be kept, to a stream that is not answered yet. It returns the
// stream instead when it is.
func (p *pending) keep(b []byte) (int, link.Outgoing, error) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return 0, nil, net.ErrClosed
	case p.err != nil:
		p.mu.Unlock()
		return 0, nil, p.err
	case p.settled:
		defer p.mu.Unlock()
		return 0, p.cur, nil
	}
	b = b[:min(len(b), Keep-min(Keep, len(p.sent)))]
	p.sent = append(p.sent, b...)
	cur := p.cur
	p.mu.Unlock()
	if len(b) > 0 {
		// A failure here is told by the answer, and b is kept for the replay.
		_, _ = cur.Write(b)
	}
	return len(b), nil, nil
}

// HasSocket implements link.Splicer. Until the answer has come, what is written must be kept.
func (p *pending) HasSocket() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settled && p.err == nil && !p.closed && p.cur.HasSocket()
}

// SpliceTo implements link.Splicer; it waits for the answer.
func (p *pending) SpliceTo(dst *net.TCPConn, w splice.Progress) (ok bool, readErr, writeErr error) {
	p.wait()
	if !p.HasSocket() {
		return false, nil, nil
	}
	return p.stream().SpliceTo(dst, w)
}

// SpliceFrom implements link.Splicer.
func (p *pending) SpliceFrom(src *net.TCPConn, w splice.Progress) (ok bool, readErr, writeErr error) {
	if !p.HasSocket() {
		return false, nil, nil
	}
	return p.stream().SpliceFrom(src, w)
}

// Aborted reports whether the agent aborted the stream, or is lost, after its answer.
func (p *pending) Aborted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.cur.(interface{ Aborted() bool })
	return ok && p.settled && p.err == nil && s.Aborted()
}

func (p *pending) CloseWrite() error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	p.writeClosed = true
	cur, settled := p.cur, p.settled
	p.mu.Unlock()
	err := cur.CloseWrite()
	if !settled {
		return nil
	}
	return err
}

func (p *pending) end() link.Outgoing {
	p.mu.Lock()
	p.closed = true
	cur := p.cur
	if p.cancel != nil {
		p.cancel()
	}
	p.mu.Unlock()
	return cur
}

func (p *pending) Close() error { return p.end().Close() }

func (p *pending) Abort() { p.end().Abort() }

func (p *pending) LocalAddr() net.Addr { return p.stream().LocalAddr() }

func (p *pending) RemoteAddr() net.Addr { return p.stream().RemoteAddr() }

func (p *pending) stream() link.Outgoing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur
}

func (p *pending) SetDeadline(t time.Time) error {
	if err := p.SetReadDeadline(t); err != nil {
		return err
	}
	return p.SetWriteDeadline(t)
}

// SetReadDeadline takes effect once the answer has come, which has a limit of its own.
func (p *pending) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	p.readBy = t
	cur := p.cur
	p.mu.Unlock()
	return cur.SetReadDeadline(t)
}

func (p *pending) SetWriteDeadline(t time.Time) error {
	p.mu.Lock()
	p.writeBy = t
	cur := p.cur
	p.mu.Unlock()
	return cur.SetWriteDeadline(t)
}
