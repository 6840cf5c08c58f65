package forward

import (
	"context"
	"io"
	"sync"
)

// side is one of the two connections that Carry joins.
type side interface {
	io.ReadWriteCloser
	CloseWrite() error
	// Abort ends both directions with what the other side sees as a reset.
	Abort()
}

// Carry copies both ways between a and b until both directions have ended. The end of one direction
// is passed on as such; a failure of either, or the end of ctx, aborts both.
func Carry(ctx context.Context, a, b side) {
	abort := sync.OnceFunc(func() { a.Abort(); b.Abort() })
	stop := context.AfterFunc(ctx, abort)
	var wg sync.WaitGroup
	one := func(dst, src side) {
		// ReadFrom and WriteTo of sockets would bypass nothing here: one side is TLS or a stream.
		if _, err := io.Copy(struct{ io.Writer }{dst}, struct{ io.Reader }{src}); err != nil || dst.CloseWrite() != nil {
			abort()
		}
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
	if !stop() {
		abort()
	}
	_, _ = a.Close(), b.Close()
}
