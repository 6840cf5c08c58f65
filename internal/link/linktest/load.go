package linktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
)

func testSmallWrites(t *testing.T, s *suite) {
	n := 20_000
	if Race {
		n = 3_000
	}
	st := s.open(t, s.accept(echo), "")
	defer st.Close()
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i * 7)
	}
	go func() {
		for i := range want {
			if _, err := st.Write(want[i : i+1]); err != nil {
				return
			}
		}
		_ = st.CloseWrite()
	}()
	if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d of %d bytes, %v", len(got), n, err)
	}
}

// stream of random bytes and its checksum.
func random(n int64, r *rand.ChaCha8, w io.Writer) ([32]byte, error) {
	h := sha256.New()
	_, err := io.CopyN(io.MultiWriter(w, h), r, n)
	return [32]byte(h.Sum(nil)), err
}

// testBulk sends 100 MB both ways at once over one stream and compares checksums.
func testBulk(t *testing.T, s *suite) {
	size := int64(100_000_000)
	if Race {
		size = 5_000_000
	}
	type sums struct{ sent, got [32]byte }
	both := func(st link.Stream, seed byte) (sums, error) {
		var out sums
		var werr error
		var wg sync.WaitGroup
		wg.Go(func() {
			if out.sent, werr = random(size, rand.NewChaCha8([32]byte{seed}), st); werr == nil {
				werr = st.CloseWrite()
			}
		})
		h := sha256.New()
		n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{st}, make([]byte, 64<<10))
		wg.Wait()
		if err == nil && n != size {
			err = fmt.Errorf("%d of %d bytes", n, size)
		}
		out.got = [32]byte(h.Sum(nil))
		return out, errors.Join(err, werr)
	}
	agent, agentErr := make(chan sums, 1), make(chan error, 1)
	st := s.open(t, s.accept(func(_ context.Context, st link.Stream) {
		o, err := both(st, 1)
		agent <- o
		agentErr <- err
	}), "")
	defer st.Close()
	edge, err := both(st, 2)
	if err != nil {
		t.Fatalf("edge: %v", err)
	}
	if err := within(t, 20*time.Second, agentErr, "agent"); err != nil {
		t.Fatalf("agent: %v", err)
	}
	if a := <-agent; a.sent != edge.got || a.got != edge.sent {
		t.Fatal("checksums differ")
	}
}

// testConcurrent has many streams open at once, all alive.
func testConcurrent(t *testing.T, s *suite) {
	n := 2_000
	if s.pair.AtOnce > 0 {
		n = 800 // each is a handshake
	}
	if Race {
		n /= 4
	}
	h := s.accept(echo)
	enter, leave := s.pair.limiter()
	streams := make([]link.Outgoing, n)
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for i := range streams {
		enter()
		wg.Go(func() {
			defer leave()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			st, err := s.pair.Open(ctx, &wirev1.StreamHeader{TunnelId: h.TunnelId, Kind: h.Kind, Class: h.Class}, fmt.Appendf(nil, "%08d", i))
			if err != nil {
				errs <- fmt.Errorf("stream %d: %w", i, err)
				return
			}
			streams[i] = st
			_ = st.SetDeadline(time.Now().Add(50 * time.Second))
			var buf [8]byte
			if _, err := io.ReadFull(st, buf[:]); err != nil || string(buf[:]) != fmt.Sprintf("%08d", i) {
				errs <- fmt.Errorf("stream %d: %q, %w", i, buf, err)
			}
		})
	}
	wg.Wait()
	for i, st := range streams {
		if st == nil {
			continue
		}
		wg.Go(func() {
			defer st.Close()
			if _, err := st.Write([]byte("again")); err != nil {
				errs <- fmt.Errorf("stream %d: %w", i, err)
				return
			}
			_ = st.CloseWrite()
			if b, err := io.ReadAll(st); err != nil || string(b) != "again" {
				errs <- fmt.Errorf("stream %d: %q, %w", i, b, err)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatalf("%d streams failed, first: %v", len(errs)+1, err)
	default:
	}
}

// testStalled has streams whose reader stopped, with full windows, beside live ones.
func testStalled(t *testing.T, s *suite) {
	n := 300
	if Race || s.pair.AtOnce > 0 {
		n = 40
	}
	release := make(chan struct{})
	source := s.accept(func(ctx context.Context, st link.Stream) {
		go func() {
			<-ctx.Done()
			st.Abort()
		}()
		var err error
		for err == nil {
			_, err = st.Write(make([]byte, 64<<10))
		}
	})
	sink := s.accept(func(ctx context.Context, st link.Stream) {
		select {
		case <-ctx.Done():
		case <-release:
		}
	})
	var stalled []link.Outgoing
	var writers sync.WaitGroup
	for i := range n {
		h := source
		if i%2 == 1 {
			h = sink
		}
		st := s.open(t, h, "")
		stalled = append(stalled, st)
		if i%2 == 1 {
			writers.Go(func() {
				var err error
				for err == nil {
					_, err = st.Write(make([]byte, 64<<10))
				}
			})
		}
	}
	live := s.accept(echo)
	for i := range 50 {
		st := s.open(t, live, "")
		_ = st.SetDeadline(time.Now().Add(10 * time.Second))
		want := bytes.Repeat([]byte{byte(i)}, 200<<10)
		go func() {
			_, _ = st.Write(want)
			_ = st.CloseWrite()
		}()
		if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, want) {
			t.Errorf("live stream %d beside stalled ones: %d bytes, %v", i, len(got), err)
		}
		_ = st.Close()
	}
	for _, st := range stalled {
		st.Abort()
	}
	close(release)
	writers.Wait()
}
