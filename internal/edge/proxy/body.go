package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// watchdog bites when one operation takes too long. Progress is what counts: every operation
// begins anew, so a slow transfer is fine and a stalled one is not.
type watchdog struct {
	limit time.Duration
	bite  func()

	mu      sync.Mutex
	timer   *time.Timer
	running bool
	bitten  bool
}

func (d *watchdog) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = true
	if d.timer == nil {
		d.timer = time.AfterFunc(d.limit, d.expire)
		return
	}
	d.timer.Reset(d.limit)
}

// end is called after the operation, and before the handler returns: then what bite would touch
// is the server's again.
func (d *watchdog) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = false
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *watchdog) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running {
		d.bitten = true
		d.bite()
	}
}

// hasBitten reports whether an operation took too long.
func (d *watchdog) hasBitten() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bitten
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
	// reading is held by who reads.
	reading chan struct{}
}

// lastRead is how long the end of an exchange waits for a read of the visitor's body. HTTP/1.1's
// server breaks one off that it finds, and takes the body for a broken one then: it would close the
// connection at once, and the reset for what comes after would overtake the answer. One that waits
// for longer belongs to a visitor who sends nothing that could be answered so.
const lastRead = 100 * time.Millisecond

func newRequestBody(x *exchange, src io.ReadCloser) *requestBody {
	b := &requestBody{src: src, x: x, reading: make(chan struct{}, 1)}
	b.stall.limit, b.stall.bite = x.p.cfg.BodyIdle, func() {
		// An unblocked read is the point; a server without deadlines has its own limits.
		_ = x.w.rc.SetReadDeadline(time.Now())
	}
	return b
}

// watched reports whether the visitor must make progress: not once the answer has begun, nor in
// a conversation, where either side may be silent for as long as it likes.
func (b *requestBody) watched() bool {
	return !b.x.w.begun.Load() && b.x.class != wirev1.Class_CLASS_INTERACTIVE
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading <- struct{}{}
	defer func() { <-b.reading }()
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

func (b *requestBody) end() {
	b.ended.Store(true)
	if b.x.in.ProtoMajor == 1 {
		t := time.NewTimer(lastRead)
		select {
		case b.reading <- struct{}{}:
			<-b.reading
		case <-t.C:
		}
		t.Stop()
	}
	b.stall.end()
}

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
	return b != nil && b.stall.hasBitten() && errors.Is(b.broken(), os.ErrDeadlineExceeded)
}

// untouched reports whether nothing of the body was read yet, so that it can be sent again.
func (b *requestBody) untouched() bool { return b == nil || b.bytes.Load() == 0 && b.broken() == nil }
