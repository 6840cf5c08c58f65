package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// restAfter is how long a connection is idle before somebody reads from it, to notice its end.
	restAfter = 100 * time.Millisecond
	// maxInterim is how many 1xx answers an origin may send to one request.
	maxInterim = 16
	// directBuffer is what a busy connection holds for each direction.
	directBuffer = 4 << 10
)

var errHeaderTooLarge = errors.New("the header of the answer is too large")

// direct is an HTTP/1.1 connection for requests without a body, spoken by the goroutine that serves
// the visitor. http.Transport hands each request to two goroutines of its connection and back, which
// is needed where something is sent while the answer comes, and else most of what it costs.
type direct struct {
	*conn
	key    string
	home   *replica // whose idle connection it is
	reader *bufio.Reader
	writer *bufio.Writer
	// header is how much more the header of an answer may have; 0 while a body is read.
	header int

	// deadline is that of reads, zero without one.
	deadline time.Time

	// rest begins the watch of an idle connection; watch is that, nil before.
	rest    *time.Timer
	mu      sync.Mutex
	armed   bool // rest will come
	resting bool
	since   time.Time // when the idle time began
	watched chan struct{}
	over    bool // it ended while it was idle
}

var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, directBuffer) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, directBuffer) }}
)

// mayGoDirect reports whether a request on rd may be spoken so. It is sent again where its connection
// ended while that was idle.
func (rd *ride) mayGoDirect() bool {
	return rd.protocol == http1 && !rd.exclusive && rd.x.interim.to != nil
}

// sendDirect is send for such a request.
func (rd *ride) sendDirect(out *http.Request) (*http.Response, error) {
	ctx := out.Context()
	for {
		d := rd.pool.takeDirect(rd.boarded, rd.key)
		idle := d != nil
		if d == nil {
			c, err := rd.pool.connect(ctx, rd)
			if err != nil {
				return nil, err
			}
			d = &direct{conn: c, key: rd.key, home: rd.boarded}
			c.unread = true
		}
		rd.use(d.conn)
		res, err := d.exchange(ctx, rd, out)
		if err == nil {
			return res, nil
		}
		d.give()
		_ = d.Close() // it is busy, so this is an abort
		rd.leave()
		// What ended while it was idle is no answer to this request, which asks for nothing to be done.
		if !idle || ctx.Err() != nil || !errors.Is(err, errStale) {
			return nil, err
		}
	}
}

// errStale marks the failure of a connection before anything of an answer came.
var errStale = errors.New("the connection ended before an answer")

// exchange sends a request and reads the header of its answer.
func (d *direct) exchange(ctx context.Context, rd *ride, out *http.Request) (*http.Response, error) {
	d.take()
	b := &directBody{d: d, rd: rd}
	b.stop = context.AfterFunc(ctx, d.Abort)
	if err := out.Write(d.writer); err != nil {
		b.stop()
		return nil, err
	}
	if err := d.writer.Flush(); err != nil {
		b.stop()
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	d.limit(rd.x.responseLimit())
	res, err := d.answer(rd.x, out)
	if err != nil {
		b.stop()
		return nil, err
	}
	if n := res.ContentLength; res.Body != http.NoBody && (n < 0 || n > int64(d.reader.Buffered())) {
		d.limit(0)
	}
	b.ReadCloser, b.res = res.Body, res
	rd.x.w.beLazy()
	if res.Body == http.NoBody {
		b.finish()
		return res, nil
	}
	res.Body = b
	return res, nil
}

// limit bounds reads from now on; 0 = no limit. It lets an answer take up to an eighth longer, so that
// not every request of a connection in steady use sets a deadline.
func (d *direct) limit(l time.Duration) {
	var deadline time.Time
	if l > 0 {
		now := time.Now()
		if left := d.deadline.Sub(now); left >= l && left <= l+l/8 {
			return
		}
		deadline = now.Add(l + l/8)
	}
	d.deadline = deadline
	_ = d.SetReadDeadline(deadline) // the read tells
}

// answer reads the header of the final answer, and tells of those before it.
func (d *direct) answer(x *exchange, out *http.Request) (*http.Response, error) {
	d.header = maxAnswerHeader
	defer func() { d.header = 0 }()
	if _, err := d.reader.Peek(1); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	for range maxInterim {
		res, err := http.ReadResponse(d.reader, out)
		if err != nil {
			return nil, err
		}
		if res.StatusCode >= 200 {
			return res, nil
		}
		if res.StatusCode == http.StatusSwitchingProtocols {
			return nil, errors.New("the origin switches to a protocol that nobody asked for")
		}
		if err := x.interim.pass(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the origin sent too many 1xx answers")
}

// Read is for the buffer: it bounds the header of an answer.
func (d *direct) Read(b []byte) (int, error) {
	if d.header == 0 {
		return d.conn.Read(b)
	}
	if d.header == 1 {
		return 0, errHeaderTooLarge
	}
	n, err := d.conn.Read(b[:min(len(b), d.header-1)])
	d.header -= n
	return n, err
}

// take lends the buffers that a busy connection needs, give returns them.
func (d *direct) take() {
	if d.reader == nil {
		d.reader, d.writer = readers.Get().(*bufio.Reader), writers.Get().(*bufio.Writer)
		d.reader.Reset(d)
		d.writer.Reset(d.conn)
	}
}

func (d *direct) give() {
	if d.reader != nil {
		d.reader.Reset(nil)
		d.writer.Reset(nil)
		readers.Put(d.reader)
		writers.Put(d.writer)
		d.reader, d.writer = nil, nil
	}
}

// directBody is the body of an answer. With its end the connection is idle, without it lost.
type directBody struct {
	io.ReadCloser
	d    *direct
	rd   *ride
	res  *http.Response
	stop func() bool
	done bool
}

// Read delivers what the visitor was written so far before it waits for more.
func (b *directBody) Read(p []byte) (int, error) {
	if b.done {
		return 0, http.ErrBodyReadAfterClose
	}
	if !b.atHand() {
		b.rd.x.w.deliver()
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.finish()
	} else if err != nil {
		b.fail()
	}
	return n, err
}

// atHand reports whether the next read takes what has come already: of a body of known length any
// bytes, of chunks all that are left.
func (b *directBody) atHand() bool {
	r := b.d.reader
	if b.res.ContentLength >= 0 {
		return r.Buffered() > 0
	}
	rest, _ := r.Peek(r.Buffered())
	return bytes.HasSuffix(rest, lastChunk)
}

var lastChunk = []byte("0\r\n\r\n")

func (b *directBody) Close() error {
	if !b.done {
		b.fail()
	}
	return nil
}

// finish is called with the end of the answer.
func (b *directBody) finish() {
	b.done = true
	d := b.d
	b.rd.x.w.whole(b.res)
	clean := b.stop() && !b.res.Close && d.reader.Buffered() == 0 && d.ended() == nil
	d.give()
	b.rd.leave()
	if !clean || !b.rd.pool.putDirect(d) {
		_ = d.Close() // cleanly: nothing runs on it
	}
}

func (b *directBody) fail() {
	b.done = true
	b.stop()
	_ = b.d.Close() // it is busy, so this is an abort
	b.d.give()
	b.rd.leave()
}

// takeDirect returns an idle connection of a replica that lives, the one used last; nil when there is
// none.
func (p *pool) takeDirect(r *replica, key string) *direct {
	for {
		p.mu.Lock()
		ds := r.direct[key]
		n := len(ds)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		d := ds[n-1]
		ds[n-1] = nil
		if n == 1 {
			delete(r.direct, key)
		} else {
			r.direct[key] = ds[:n-1]
		}
		r.idle--
		p.mu.Unlock()
		if d.wake() {
			return d
		}
		_ = d.Close()
	}
}

// putDirect keeps an idle connection, unless there are enough or its replica leaves.
func (p *pool) putDirect(d *direct) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := d.home
	if r.leaving || r.idle >= maxIdle || d.owner != r || d.closing.Load() || p.replicas[r.id] != r {
		return false
	}
	if r.direct == nil {
		r.direct = map[string][]*direct{}
	}
	r.direct[d.key] = append(r.direct[d.key], d)
	r.idle++
	d.sleep()
	return true
}

// dropDirect takes the idle connections of a replica, for the caller to close.
func (p *pool) dropDirect(r *replica) {
	p.mu.Lock()
	all := r.direct
	r.direct, r.idle = nil, 0
	p.mu.Unlock()
	for _, ds := range all {
		for _, d := range ds {
			_ = d.Close()
		}
	}
}

// forgetDirect takes one that ended out of the idle ones, and reports whether it was there.
func (p *pool) forgetDirect(d *direct) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ds := d.home.direct[d.key]
	i := slices.Index(ds, d)
	if i < 0 {
		return false
	}
	d.home.idle--
	if d.home.direct[d.key] = slices.Delete(ds, i, i+1); len(ds) == 1 {
		delete(d.home.direct, d.key)
	}
	return true
}

// sleep begins the idle time. A connection in steady use is never watched; its timer is not touched
// by every request either.
func (d *direct) sleep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resting, d.since = true, time.Now()
	if !d.armed {
		d.arm(restAfter)
	}
}

// arm lets watch be called. The caller holds mu.
func (d *direct) arm(after time.Duration) {
	d.armed = true
	if d.rest == nil {
		d.rest = time.AfterFunc(after, d.watch)
		return
	}
	d.rest.Reset(after)
}

// wake ends the idle time and reports whether the connection can be used.
func (d *direct) wake() bool {
	d.mu.Lock()
	d.resting = false
	watched := d.watched
	d.mu.Unlock()
	if watched != nil {
		_ = d.conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
		d.limit(0)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.over && !d.closing.Load()
}

// watch waits for the end of an idle connection, or of its idle time.
func (d *direct) watch() {
	d.mu.Lock()
	d.armed = false
	if !d.resting || d.watched != nil {
		d.mu.Unlock()
		return
	}
	if left := restAfter - time.Since(d.since); left > 0 {
		d.arm(left)
		d.mu.Unlock()
		return
	}
	d.watched = make(chan struct{})
	_ = d.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	d.mu.Unlock()
	var b [1]byte
	n, err := d.conn.Conn.Read(b[:])
	var timeout interface{ Timeout() bool }
	interrupted := n == 0 && errors.As(err, &timeout) && timeout.Timeout()
	d.mu.Lock()
	mine := d.resting // nobody took it meanwhile
	d.over = !interrupted || mine
	close(d.watched)
	d.watched = nil
	d.mu.Unlock()
	if mine && d.pool.forgetDirect(d) {
		_ = d.Close()
	}
}
