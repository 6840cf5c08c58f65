package front

import (
	"context"
	"sync/atomic"
)

// Visitor is one visitor connection, whatever HTTP version it speaks. HTTP servers put it in the
// context of their connections (http.Server.ConnContext, http3.Server.ConnContext) so that
// handlers can tie things to the connection's life.
type Visitor struct {
	// ID is unique within the process.
	ID   uint64
	done chan struct{}
}

// Done is closed when the connection ended.
func (v *Visitor) Done() <-chan struct{} { return v.done }

type visitorKey struct{}

var visitors atomic.Uint64

// WithVisitor returns a context that carries a new Visitor, and the function that says once that
// its connection ended.
func WithVisitor(ctx context.Context) (context.Context, func()) {
	v := &Visitor{ID: visitors.Add(1), done: make(chan struct{})}
	var ended atomic.Bool
	return context.WithValue(ctx, visitorKey{}, v), func() {
		if ended.CompareAndSwap(false, true) {
			close(v.done)
		}
	}
}

// VisitorFrom returns the visitor connection of a request's context, nil if its server set none.
func VisitorFrom(ctx context.Context) *Visitor {
	v, _ := ctx.Value(visitorKey{}).(*Visitor)
	return v
}
