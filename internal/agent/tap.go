package agent

import (
	"bufio"
	"io"
	"net/http"
	"sync"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
)

// tapQueue is how many pipelined requests a tap follows.
const tapQueue = 64

// tap listens to one stream of kind http and tells of each HTTP/1 request with its status. It
// changes nothing: what it cannot read, it lets pass. Other streams are told of once. The nil tap
// does nothing.
type tap struct {
	on       func(Connection)
	base     Connection
	requests chan tapped
	in, out  *io.PipeWriter
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
	var in, out *io.PipeReader
	in, t.in = io.Pipe()
	out, t.out = io.Pipe()
	t.wg.Go(func() { t.readRequests(in) })
	t.wg.Go(func() { t.readResponses(out) })
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
	t.in.Close()
	t.out.Close()
	t.wg.Wait()
}

// tee writes what dst took to the listener, too.
type tee struct {
	dst      io.Writer
	listener *io.PipeWriter
}

func (w tee) Write(p []byte) (int, error) {
	n, err := w.dst.Write(p)
	// The listener reads to the end of its pipe, whatever comes.
	_, _ = w.listener.Write(p[:n])
	return n, err
}

func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }

func (t *tap) readRequests(r *io.PipeReader) {
	defer drain(r)
	defer close(t.requests)
	br := bufio.NewReader(r)
	for {
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
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
	}
}

func (t *tap) readResponses(r *io.PipeReader) {
	defer drain(r)
	br := bufio.NewReader(r)
	for {
		// Responses wait for bytes, so that one before its request is not taken for its answer.
		if _, err := br.Peek(1); err != nil {
			return
		}
		q, ok := <-t.requests
		if !ok {
			return
		}
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
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return
		}
	}
}
