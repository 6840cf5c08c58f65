package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// watchdog bites when one operation takes too long. Progress is what counts: every operation
// begins anew, so a slow transfer is fine and a stalled one is not.
type watchdog struct {
	limit  time.Duration
	bite   func()
	timer  *time.Timer
	bitten atomic.Bool
}

func (d *watchdog) begin() {
	if d.timer == nil {
		d.timer = time.AfterFunc(d.limit, func() { d.bitten.Store(true); d.bite() })
		return
	}
	d.timer.Reset(d.limit)
}

func (d *watchdog) end() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// requestBody is a visitor's body on its way to the origin. The transport may close it, which
// does nothing: the server closes it after the handler.
type requestBody struct {
	src      io.ReadCloser
	x        *exchange
	stall    watchdog
	bytes    atomic.Int64
	ended    atomic.Bool
	brokenBy atomic.Pointer[error]
}

func newRequestBody(x *exchange, src io.ReadCloser) *requestBody {
	b := &requestBody{src: src, x: x}
	b.stall = watchdog{limit: x.p.cfg.BodyIdle, bite: func() {
		// An unblocked read is the point; a server without deadlines has its own limits.
		_ = x.w.rc.SetReadDeadline(time.Now())
	}}
	return b
}

// watched reports whether the visitor must make progress: not once the answer has begun, nor in
// a conversation, where either side may be silent for as long as it likes.
func (b *requestBody) watched() bool {
	return !b.x.w.begun.Load() && b.x.class != wirev1.Class_CLASS_INTERACTIVE
}

func (b *requestBody) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	watched := b.watched()
	if watched {
		b.stall.begin()
	}
	n, err := b.src.Read(p)
	if watched {
		b.stall.end()
	}
	b.bytes.Add(int64(n))
	if err != nil && err != io.EOF {
		b.brokenBy.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (b *requestBody) Close() error { return nil }

func (b *requestBody) end() { b.ended.Store(true); b.stall.end() }

// broken is the error that ended the body early, nil if none did.
func (b *requestBody) broken() error {
	if b == nil {
		return nil
	}
	if e := b.brokenBy.Load(); e != nil {
		return *e
	}
	return nil
}

func (b *requestBody) timedOut() bool {
	return b != nil && b.stall.bitten.Load() && errors.Is(b.broken(), os.ErrDeadlineExceeded)
}

// untouched reports whether nothing of the body was read yet, so that it can be sent again.
func (b *requestBody) untouched() bool { return b == nil || b.bytes.Load() == 0 && b.broken() == nil }
