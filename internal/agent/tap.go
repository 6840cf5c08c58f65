package agent

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
)

const (
	// tapQueue is how many pipelined requests, and pieces of each direction, a tap follows.
	tapQueue = 64
	// tapHeader is the longest header that it reads.
	tapHeader = 64 << 10
)

// tap listens to one stream of kind http and tells of each HTTP/1 request with its status. It
// changes nothing and never makes the stream wait: what it cannot read, or not in time, it lets
// pass untold. Other streams are told of once. The nil tap does nothing.
type tap struct {
	on       func(Connection)
	base     Connection
	requests chan tapped
	in, out  *tapPipe
	wg       sync.WaitGroup
}

// tapped is a request whose response is awaited.
type tapped struct {
	req   *http.Request
	start time.Time
}

func newTap(on func(Connection), h *wirev1.StreamHeader, s *service, spec *origin.Spec, took time.Duration) *tap {
	if on == nil {
		return nil
	}
	t := &tap{on: on, base: newConnection(h, s, spec, took, nil)}
	if h.GetKind() != wirev1.Kind_KIND_HTTP {
		on(t.base)
		return t
	}
	t.requests = make(chan tapped, tapQueue)
	t.in, t.out = newTapPipe(), newTapPipe()
	t.wg.Go(t.readRequests)
	t.wg.Go(t.readResponses)
	return t
}

func (t *tap) toOrigin(w io.Writer) io.Writer {
	if t == nil || t.in == nil {
		return w
	}
	return tee{w, t.in}
}

func (t *tap) toVisitor(w io.Writer) io.Writer {
	if t == nil || t.out == nil {
		return w
	}
	return tee{w, t.out}
}

// close ends the tap after its stream and waits.
func (t *tap) close() {
	if t == nil || t.in == nil {
		return
	}
	close(t.in.pieces)
	close(t.out.pieces)
	t.wg.Wait()
}

// tee gives the listener, too, what dst took.
type tee struct {
	dst      io.Writer
	listener *tapPipe
}

func (w tee) Write(p []byte) (int, error) {
	n, err := w.dst.Write(p)
	w.listener.offer(p[:n])
	return n, err
}

// tapPipe is a reader of pieces that are offered to it. Once one is lost there are no more.
type tapPipe struct {
	pieces chan []byte
	deaf   atomic.Bool
	rest   []byte
	// left bounds what one header may read.
	left int
}

func newTapPipe() *tapPipe { return &tapPipe{pieces: make(chan []byte, tapQueue)} }

func (p *tapPipe) offer(b []byte) {
	if len(b) == 0 || p.deaf.Load() {
		return
	}
	select {
	case p.pieces <- bytes.Clone(b):
	default:
		p.deaf.Store(true)
	}
}

func (p *tapPipe) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.deaf.Load() || p.left <= 0 {
			return 0, io.EOF
		}
		piece, ok := <-p.pieces
		if !ok {
			return 0, io.EOF
		}
		p.rest = piece
	}
	n := copy(b, p.rest)
	p.rest, p.left = p.rest[n:], p.left-n
	return n, nil
}

// body reads the rest of a message.
func (p *tapPipe) body(r io.Reader) error {
	p.left = math.MaxInt
	_, err := io.Copy(io.Discard, r)
	return err
}

func (t *tap) readRequests() {
	defer t.in.deaf.Store(true)
	defer close(t.requests)
	br := bufio.NewReader(t.in)
	for {
		t.in.left = tapHeader
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if req.ProtoMajor != 1 {
			t.on(t.base)
			return
		}
		select {
		case t.requests <- tapped{req, time.Now()}:
		default:
			return
		}
		if t.in.body(req.Body) != nil {
			return
		}
	}
}

func (t *tap) readResponses() {
	defer t.out.deaf.Store(true)
	br := bufio.NewReader(t.out)
	for q := range t.requests {
		t.out.left = tapHeader
		resp, err := http.ReadResponse(br, q.req)
		for err == nil && resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			resp, err = http.ReadResponse(br, q.req)
		}
		if err != nil {
			return
		}
		c := t.base
		c.Method, c.Target, c.Status, c.Took = q.req.Method, q.req.RequestURI, resp.StatusCode, time.Since(q.start)
		t.on(c)
		if resp.StatusCode == http.StatusSwitchingProtocols || t.out.body(resp.Body) != nil {
			return
		}
	}
}
