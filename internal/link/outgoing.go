package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// outgoing is a stream the edge opened: the agent's answer precedes the origin's bytes.
type outgoing struct {
	rawStream

	answered atomic.Bool
	// sem is held by whoever reads the answer; buf is what was read of it so far, since a
	// deadline may strike in the middle.
	sem    chan struct{}
	buf    []byte
	answer *wirev1.StreamAnswer
	err    error

	// overdue fires when the answer is late.
	overdue *time.Timer
	// end runs once, when the stream is closed or aborted.
	end func()

	mu           sync.Mutex
	readDeadline time.Time
}

// newOutgoing wraps st after its header was sent. late runs if no answer comes in time.
func newOutgoing(st rawStream, answerDue time.Duration, late, end func()) *outgoing {
	return &outgoing{
		rawStream: st, sem: make(chan struct{}, 1), end: sync.OnceFunc(end),
		overdue: time.AfterFunc(answerDue, late),
	}
}

// Answer implements Outgoing.
func (o *outgoing) Answer(ctx context.Context) (*wirev1.StreamAnswer, error) {
	if o.answered.Load() {
		return o.answer, o.err
	}
	select {
	case o.sem <- struct{}{}:
		defer func() { <-o.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		o.mu.Lock()
		defer o.mu.Unlock()
		_ = o.rawStream.SetReadDeadline(time.Unix(1, 0))
	})
	a, err := o.readAnswer()
	if !stop() {
		<-interrupted
		o.mu.Lock()
		_ = o.rawStream.SetReadDeadline(o.readDeadline)
		o.mu.Unlock()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ctx.Err()
		}
	}
	return a, err
}

// Read implements Stream: it waits for the answer first.
func (o *outgoing) Read(p []byte) (int, error) {
	if err := o.await(); err != nil {
		return 0, err
	}
	return o.rawStream.Read(p)
}

// ReadLoan implements buffer.Reader.
func (o *outgoing) ReadLoan(l *buffer.Loan) (int, error) {
	if err := o.await(); err != nil {
		return 0, err
	}
	return o.rawStream.ReadLoan(l)
}

// await waits for the answer; an error is its refusal, or why there is none yet.
func (o *outgoing) await() error {
	if !o.answered.Load() {
		o.sem <- struct{}{}
		_, err := o.readAnswer()
		<-o.sem
		if err != nil {
			return err
		}
	}
	return o.err
}

// readAnswer reads on from where it was interrupted. The caller holds sem.
func (o *outgoing) readAnswer() (*wirev1.StreamAnswer, error) {
	if o.answered.Load() {
		return o.answer, o.err
	}
	for {
		want := 4
		if len(o.buf) >= 4 {
			n := binary.BigEndian.Uint32(o.buf)
			if n > wire.MaxHeader {
				return nil, o.settle(nil, fmt.Errorf("answer of %d bytes: %w", n, wire.ErrTooLarge))
			}
			want = 4 + int(n)
		}
		if len(o.buf) == want && want > 4 || want == 4 && len(o.buf) == 4 {
			return o.decode()
		}
		old := len(o.buf)
		o.buf = append(o.buf, make([]byte, want-old)...)
		n, err := o.rawStream.Read(o.buf[old:])
		o.buf = o.buf[:old+n]
		if n == 0 && err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, err
			}
			return nil, o.settle(nil, err)
		}
	}
}

func (o *outgoing) decode() (*wirev1.StreamAnswer, error) {
	a := &wirev1.StreamAnswer{}
	if err := proto.Unmarshal(o.buf[4:], a); err != nil {
		return nil, o.settle(nil, fmt.Errorf("decode answer: %w", err))
	}
	o.buf = nil
	if r := a.GetRefusal(); r != nil {
		return nil, o.settle(nil, reason.FromRefusal(r))
	}
	return a, o.settle(a, nil)
}

// settle fixes the outcome. A stream that broke before its answer is an error of the agent's
// hop: whether anything reached the origin is unknown.
func (o *outgoing) settle(a *wirev1.StreamAnswer, err error) error {
	var e *reason.Error
	if err != nil && !errors.As(err, &e) {
		err = reason.Wrap(err, reason.NoAgent, reason.HopAgent, "the stream broke before the agent answered")
	}
	o.overdue.Stop()
	o.answer, o.err = a, err
	o.answered.Store(true)
	return err
}

// Aborted reports whether the other side aborted the stream or is lost, for those who do not read
// it now.
func (o *outgoing) Aborted() bool { return o.rawStream.aborted() }

// Abort implements Stream.
func (o *outgoing) Abort() {
	o.overdue.Stop()
	o.end()
	o.rawStream.Abort()
}

// Close implements Stream.
func (o *outgoing) Close() error {
	o.overdue.Stop()
	o.end()
	if o.answered.Load() && o.err != nil {
		if e := new(reason.Error); errors.As(o.err, &e) && e.Err == nil {
			o.rawStream.refused()
			return nil
		}
	}
	return o.rawStream.Close()
}

// SetReadDeadline implements Stream and remembers t for after an interrupted Answer.
func (o *outgoing) SetReadDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readDeadline = t
	return o.rawStream.SetReadDeadline(t)
}

// SetDeadline implements Stream.
func (o *outgoing) SetDeadline(t time.Time) error {
	if err := o.SetReadDeadline(t); err != nil {
		return err
	}
	return o.SetWriteDeadline(t)
}
