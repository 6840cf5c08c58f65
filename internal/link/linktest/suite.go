package linktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
)

// Pair is an edge's way to open streams at an agent.
type Pair struct {
	// Open opens a stream of the kind under test.
	Open func(ctx context.Context, h *wirev1.StreamHeader, first []byte) (link.Outgoing, error)
	// AtOnce is how many streams may wait to be opened, where each needs a new connection; 0 = any
	// number.
	AtOnce int
	// Vanish makes the agent fall silent as if its host lost power. Streams must fail within a
	// few seconds.
	Vanish func()
	// Close ends both sides and waits.
	Close func()
}

// Dial makes a pair whose agent serves streams with h.
type Dial func(t testing.TB, h link.Handler) *Pair

// Run is what every carrier and kind of stream must pass.
func Run(t *testing.T, dial Dial) {
	before := baseline()
	// Members run in parallel; the groups wait for them before they close their pair.
	t.Run("all", func(t *testing.T) {
		t.Run("vanish", func(t *testing.T) {
			t.Parallel()
			s := newSuite(t, dial)
			testVanish(t, s)
			s.pair.Close()
		})
		t.Run("streams", func(t *testing.T) {
			t.Parallel()
			s := newSuite(t, dial)
			t.Run("group", func(t *testing.T) { runStreams(t, s) })
			s.pair.Close()
		})
	})
	t.Run("baseline", func(t *testing.T) { before.check(t) })
}

func runStreams(t *testing.T, s *suite) {
	for name, f := range map[string]func(*testing.T, *suite){
		"open":                            testOpen,
		"refusal":                         testRefusal,
		"half-close":                      testHalfClose,
		"D02 close with data":             testCloseWithData,
		"reset and abort":                 testAbort,
		"abort of a stuck write":          testAbortStuck,
		"1-byte writes":                   testSmallWrites,
		"bulk both ways":                  testBulk,
		"concurrent streams":              testConcurrent,
		"T12 invariant 7 stalled streams": testStalled,
		"cancel":                          testCancel,
		"deadlines":                       testDeadlines,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f(t, s) })
	}
}

// suite runs the agent's half of each stream by the tunnel id in its header.
type suite struct {
	pair  *Pair
	mu    sync.Mutex
	agent map[string]func(context.Context, link.Incoming)
	next  int
}

func newSuite(t *testing.T, dial Dial) *suite {
	t.Helper()
	s := &suite{agent: map[string]func(context.Context, link.Incoming){}}
	s.pair = dial(t, HandlerFunc(func(ctx context.Context, in link.Incoming) {
		s.mu.Lock()
		f := s.agent[in.Header().TunnelId]
		s.mu.Unlock()
		if f != nil {
			f(ctx, in)
		}
	}))
	return s
}

// serve makes the agent run f for the streams of the header returned.
func (s *suite) serve(f func(ctx context.Context, in link.Incoming)) *wirev1.StreamHeader {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	id := fmt.Sprintf("tunnel-%d", s.next)
	s.agent[id] = f
	return &wirev1.StreamHeader{TunnelId: id, Kind: wirev1.Kind_KIND_TCP, Class: wirev1.Class_CLASS_BULK}
}

// accept is serve for streams that are accepted.
func (s *suite) accept(f func(ctx context.Context, st link.Stream)) *wirev1.StreamHeader {
	return s.serve(func(ctx context.Context, in link.Incoming) {
		st, err := in.Accept("")
		if err != nil {
			return
		}
		defer st.Close()
		f(ctx, st)
	})
}

// open opens a stream; it must succeed.
func (s *suite) open(t *testing.T, h *wirev1.StreamHeader, first string) link.Outgoing {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := &wirev1.StreamHeader{TunnelId: h.TunnelId, Kind: h.Kind, Class: h.Class}
	st, err := s.pair.Open(ctx, c, []byte(first))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	_ = st.SetDeadline(time.Now().Add(50 * time.Second))
	return st
}

// echo copies back what comes and ends when the other side does.
func echo(_ context.Context, st link.Stream) {
	if _, err := io.Copy(st, st); err == nil {
		_ = st.CloseWrite()
	}
}

// within waits for c.
func within[T any](t *testing.T, d time.Duration, c <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing within %v", what, d)
		panic(what)
	}
}

func broken(err error) bool { return errors.Is(err, link.ErrAborted) || errors.Is(err, link.ErrLost) }

// state counts what must return to where it was.
type state struct{ goroutines, descriptors int }

func baseline() state {
	entries, _ := os.ReadDir("/proc/self/fd")
	return state{goroutines: runtime.NumGoroutine(), descriptors: len(entries)}
}

func (b state) check(t *testing.T) {
	t.Helper()
	var now state
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now = baseline(); now.goroutines <= b.goroutines+1 && now.descriptors <= b.descriptors+1 {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Fatalf("goroutines %d, descriptors %d; before: %d, %d\n%s", now.goroutines, now.descriptors,
		b.goroutines, b.descriptors, buf[:runtime.Stack(buf, true)])
}

// limiter bounds how many streams are being opened. The bound is on what waits, not on a rate: a
// slow machine would fall behind any rate, and what waits behind it would wait too long.
func (p *Pair) limiter() (enter, leave func()) {
	if p.AtOnce == 0 {
		return func() {}, func() {}
	}
	places := make(chan struct{}, p.AtOnce)
	return func() { places <- struct{}{} }, func() { <-places }
}
