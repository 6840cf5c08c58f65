package agent

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adit-dev/adit/internal/buffer"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/splice"
)

const (
	// resetDelay lets bytes that an origin sent right before its reset arrive: on some carriers an
	// abort overtakes them.
	resetDelay = time.Second
	// lingerTime is how long a visitor may go on sending to an origin that is gone.
	lingerTime = 5 * time.Second
)

// carry copies both ways between a visitor's stream and its origin until both directions ended.
// The end of one direction is passed on as such; a reset or a failure ends both as an abort. An
// origin that answers early and closes is heard to the end: a failed write to it is no abort.
func (s *sweeper) carry(ctx context.Context, st link.Stream, c *origin.Conn, m *metrics, t *tap) {
	abort := sync.OnceFunc(func() {
		st.Abort()
		c.Abort()
	})
	stop := context.AfterFunc(ctx, abort)
	out := &outward{origin: c, abort: abort}
	defer s.track(out)()
	upDone, deaf := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(upDone)
		_, rerr, werr := pump(t.toOrigin(c), st, m.toOrigin, nil)
		switch {
		case rerr != nil:
			abort()
		case werr != nil:
			close(deaf)
			if _, err := io.Copy(io.Discard, st); err != nil {
				abort()
			}
		default:
			// If the origin is gone already, the other direction finds out.
			_ = c.CloseWrite()
		}
	}()
	last, rerr, werr := pump(t.toVisitor(st), c, m.toVisitor, out)
	switch {
	case rerr != nil:
		if d := resetDelay - time.Since(last); d > 0 {
			wait(ctx, upDone, d)
		}
		abort()
	case werr != nil || st.CloseWrite() != nil:
		abort()
	}
	select {
	case <-upDone:
	case <-deaf:
		wait(ctx, upDone, lingerTime)
		abort()
		<-upDone
	}
	if !stop() {
		// ctx ended: wait for its abort, so that nothing outlives this call.
		abort()
	}
	_ = c.Close()
	_ = st.Close()
}

func wait(ctx context.Context, done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-done:
	case <-t.C:
	}
}

// pump copies until the end of src and returns when it last wrote. While it waits it holds no
// buffer: memory follows what flows, not how many connections there are. w, if not nil, is told how
// it goes.
func pump(dst io.Writer, src source, count prometheus.Counter, w *outward) (last time.Time, readErr, writeErr error) {
	if w == nil {
		w = &outward{}
	}
	if ok, last, readErr, writeErr := spliced(dst, src, count, w); ok {
		return last, readErr, writeErr
	}
	var buf buffer.Loan
	defer buf.Return()
	for {
		n, err := src.ReadLoan(&buf)
		if n > 0 {
			w.writing.Store(true)
			_, werr := dst.Write(buf.Bytes()[:n])
			w.writing.Store(false)
			if werr != nil {
				return last, nil, werr
			}
			buf.Return()
			w.moved.Add(int64(n))
			last = time.Now()
			count.Add(float64(n))
		}
		switch {
		case errors.Is(err, io.EOF):
			return last, nil, nil
		case err != nil:
			return last, err, nil
		}
	}
}

// source is what pump reads.
type source interface {
	io.Reader
	buffer.Reader
}

// spliced is pump within the kernel, where stream and origin both have a TCP socket of their own;
// ok is false otherwise.
func spliced(dst io.Writer, src source, count prometheus.Counter, w *outward) (ok bool, last time.Time, readErr, writeErr error) {
	p := splice.Progress{Writing: &w.writing, Moved: func(n int) {
		last = time.Now()
		w.moved.Add(int64(n))
		count.Add(float64(n))
	}}
	if st, is := src.(link.Splicer); is && st.HasSocket() {
		c, is := dst.(*origin.Conn)
		if !is {
			return false, last, nil, nil
		}
		sock := c.Socket()
		if sock == nil {
			return false, last, nil, nil
		}
		if ok, readErr, writeErr = st.SpliceTo(sock, p); writeErr != nil {
			c.WriteFailed(writeErr)
		}
		return ok, last, readErr, writeErr
	}
	st, is := dst.(link.Splicer)
	c, from := src.(*origin.Conn)
	if !is || !from || !st.HasSocket() {
		return false, last, nil, nil
	}
	sock := c.Socket()
	if sock == nil {
		return false, last, nil, nil
	}
	if ok, readErr, writeErr = st.SpliceFrom(sock, p); ok && readErr == nil && writeErr == nil {
		// The origin knows an end from a reset that a write heard of.
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			readErr = err
		}
	}
	return ok, last, readErr, writeErr
}
