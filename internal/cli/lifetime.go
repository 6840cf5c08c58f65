package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// lifetime is the life of a long-running command: ctx ends with the first SIGINT or SIGTERM (or
// with parent), forced is closed by the second one. stop gives the signals back.
func lifetime(parent context.Context) (ctx context.Context, forced <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	sigs := make(chan os.Signal, 2)
	signal.Notify(sigs, os.Interrupt, syscall.SIGTERM)
	force, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer cancel()
		select {
		case <-sigs:
			cancel()
		case <-done:
			return
		}
		select {
		case <-sigs:
			close(force)
		case <-done:
		}
	}()
	return ctx, force, func() {
		signal.Stop(sigs)
		close(done)
	}
}

// untilForced is a context for what happens after the first signal.
func untilForced(forced <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-forced:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
