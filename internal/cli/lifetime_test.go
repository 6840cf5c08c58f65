package cli

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"
)

func signalSelf(t *testing.T) {
	t.Helper()
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func closed(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("not closed: " + what)
	}
}

func TestLifetime(t *testing.T) {
	t.Run("L02 the first signal drains, the second forces", func(t *testing.T) {
		ctx, forced, stop := lifetime(context.Background())
		defer stop()
		signalSelf(t)
		closed(t, ctx.Done(), "the life")
		after, cancel := untilForced(forced)
		defer cancel()
		select {
		case <-forced:
			t.Fatal("one signal forces")
		case <-after.Done():
			t.Fatal("the drain is over before it began")
		default:
		}
		signalSelf(t)
		closed(t, forced, "forced")
		closed(t, after.Done(), "the drain")
	})
	t.Run("ends with its parent", func(t *testing.T) {
		parent, cancel := context.WithCancel(context.Background())
		ctx, forced, stop := lifetime(parent)
		defer stop()
		cancel()
		closed(t, ctx.Done(), "the life")
		select {
		case <-forced:
			t.Fatal("nobody forced it")
		default:
		}
	})
}
