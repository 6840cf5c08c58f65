package proxy

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// serverBuffer is what net/http's servers keep before they write anything.
const serverBuffer = 2 << 10

// writer is the visitor's http.ResponseWriter with what the exchange wants to know of it. It
// supports everything that http.ResponseController can do with the one below.
type writer struct {
	http.ResponseWriter
	x      *exchange
	rc     *http.ResponseController // of the writer below
	bridge *bridge                  // set for an extended CONNECT
	stall  watchdog

	// status is the final one, 0 before; begun says the same across goroutines.
	status int
	headed time.Time // when it was
	begun  atomic.Bool
	bytes  atomic.Int64
	// empty: the answer has no body. It goes out as a whole then, because a header that says
	// everything (a gRPC status) must be the end of its stream too.
	empty bool
	// lazy: the body is delivered before somebody waits for more of it, not with each write.
	lazy    atomic.Bool
	pending int         // bytes that may not have been delivered yet
	failed  atomic.Bool // a write failed
	lost    atomic.Bool // the way to the origin of an upgraded connection broke
}

func newWriter(x *exchange, w http.ResponseWriter) *writer {
	out := &writer{ResponseWriter: w, x: x, rc: http.NewResponseController(w)}
	out.stall.limit, out.stall.bite = x.p.cfg.BodyIdle, func() {
		_ = out.rc.SetWriteDeadline(time.Now()) // as for reads
	}
	return out
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if status == http.StatusContinue && w.x.body != nil && w.x.in.ProtoMajor < 3 {
		return // the visitor's server says so when the body is read, which may be now
	}
	if status >= 200 || status == http.StatusSwitchingProtocols {
		if w.status == 0 {
			w.status, w.headed = status, time.Now()
			w.begun.Store(true)
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	// What the server's buffer takes waits for nobody.
	w.pending += len(b)
	waits := w.pending > serverBuffer || !w.lazy.Load()
	if waits {
		w.stall.begin()
	}
	n, err := w.ResponseWriter.Write(b)
	if waits {
		w.stall.end()
	}
	w.bytes.Add(int64(n))
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		w.failed.Store(true)
	}
	return n, err
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	if w.empty || w.lazy.Load() {
		return nil
	}
	return w.flush()
}

// beLazy is called before the header goes out, by who calls deliver and whole.
func (w *writer) beLazy() { w.lazy.Store(w.x.in.ProtoMajor < 3) }

// deliver sends what was written so far.
func (w *writer) deliver() {
	if w.lazy.Load() && w.begun.Load() {
		w.pending = 0
		_ = w.flush() // the next write tells
	}
}

// whole is called with the end of the body, before its last bytes are written. Trailers go after
// what was delivered.
func (w *writer) whole(res *http.Response) {
	if len(res.Trailer) > 0 {
		w.lazy.Store(false)
	}
}

func (w *writer) flush() error {
	w.stall.begin()
	err := w.rc.Flush()
	w.stall.end()
	if err != nil {
		w.failed.Store(true)
	}
	return err
}

// Hijack hands the visitor's connection to an upgraded protocol. An extended CONNECT has no
// connection of its own: its stream takes that place.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.bridge != nil {
		return w.x.p.upgrades.bridge(w)
	}
	return w.x.p.upgrades.hijack(w)
}

func (w *writer) stop() { w.stall.end() }

func (w *writer) timedOut() bool { return w.stall.hasBitten() && w.failed.Load() }
