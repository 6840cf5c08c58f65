package linktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

func testOpen(t *testing.T, s *suite) {
	headers := make(chan *wirev1.StreamHeader, 1)
	h := s.serve(func(ctx context.Context, in link.Incoming) {
		headers <- in.Header()
		st, err := in.Accept("h2")
		if err != nil {
			return
		}
		defer st.Close()
		_, _ = io.WriteString(st, "220 first")
		echo(ctx, st)
	})
	h.Alpn, h.Origin, h.VisitorAddress, h.EdgeAddress = []string{"h2", "http/1.1"}, 3, "192.0.2.7:4711", "198.51.100.1:443"
	h.ServerName, h.TraceContext = "a.example.com", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, first := range []string{"", "payload at hand"} {
		c := proto.Clone(h).(*wirev1.StreamHeader)
		st, err := s.pair.Open(t.Context(), c, []byte(first))
		if err != nil {
			t.Fatal(err)
		}
		// The origin speaks first: nothing waits for the visitor's payload.
		buf := make([]byte, len("220 first"))
		if _, err := io.ReadFull(st, buf); err != nil || string(buf) != "220 first" {
			t.Fatalf("first bytes %q, %v", buf, err)
		}
		if a, err := st.Answer(t.Context()); err != nil || a.Alpn != "h2" {
			t.Fatalf("answer %v, %v", a, err)
		}
		if got := <-headers; !proto.Equal(got, c) || got.StreamId == 0 {
			t.Fatalf("header %v, want %v", got, c)
		}
		_ = st.CloseWrite()
		if rest, err := io.ReadAll(st); err != nil || string(rest) != first {
			t.Fatalf("rest %q, %v", rest, err)
		}
		_ = st.Close()
	}
}

func testRefusal(t *testing.T, s *suite) {
	h := s.serve(func(_ context.Context, in link.Incoming) {
		in.Refuse(reason.New(reason.OriginRefused, reason.HopOrigin, "10.0.0.5:3000 refused").Safe())
	})
	for range 20 {
		st := s.open(t, h, "GET / HTTP/1.1")
		_, err := st.Answer(t.Context())
		var e *reason.Error
		if !errors.As(err, &e) || e.Code != reason.OriginRefused || e.Hop != reason.HopOrigin || !e.Untouched || e.Detail == "" {
			t.Fatalf("answer: %v", err)
		}
		if _, err := st.Read(make([]byte, 1)); !reason.Is(err, reason.OriginRefused) {
			t.Fatalf("read: %v", err)
		}
		_ = st.Close()
	}
	silent := s.serve(func(context.Context, link.Incoming) {})
	st := s.open(t, silent, "")
	if _, err := st.Answer(t.Context()); !reason.Is(err, reason.Internal) {
		t.Fatalf("a handler that forgot to answer: %v", err)
	}
	_ = st.Close()
}

func testHalfClose(t *testing.T, s *suite) {
	const after = 1 << 20
	t.Run("edge first", func(t *testing.T) {
		h := s.accept(func(_ context.Context, st link.Stream) {
			if b, err := io.ReadAll(st); err != nil || string(b) != "request" {
				st.Abort()
				return
			}
			_, _ = st.Write(make([]byte, after))
			_ = st.CloseWrite()
		})
		st := s.open(t, h, "request")
		defer st.Close()
		if err := st.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, st); err != nil || n != after {
			t.Fatalf("%d bytes after the half-close, %v", n, err)
		}
		if _, err := st.Write([]byte("x")); err == nil {
			t.Fatal("a write after CloseWrite succeeded")
		}
	})
	t.Run("agent first", func(t *testing.T) {
		got := make(chan int64, 1)
		h := s.accept(func(_ context.Context, st link.Stream) {
			_, _ = io.WriteString(st, "bye")
			_ = st.CloseWrite()
			n, err := io.Copy(io.Discard, st)
			if err != nil {
				n = -1
			}
			got <- n
		})
		st := s.open(t, h, "")
		defer st.Close()
		if b, err := io.ReadAll(st); err != nil || string(b) != "bye" {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := st.Write(make([]byte, after)); err != nil {
			t.Fatal(err)
		}
		if err := st.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n := within(t, 20*time.Second, got, "agent"); n != after {
			t.Fatalf("agent got %d bytes", n)
		}
	})
}

// testCloseWithData closes with bytes in flight, each side first, with and without answers
// still coming.
func testCloseWithData(t *testing.T, s *suite) {
	const size = 3 << 20
	t.Run("edge closes", func(t *testing.T) {
		got := make(chan error, 1)
		h := s.accept(func(_ context.Context, st link.Stream) {
			var n int64
			buf := make([]byte, 32<<10)
			for {
				m, err := st.Read(buf)
				n += int64(m)
				if errors.Is(err, io.EOF) && n == size {
					got <- nil
					return
				}
				if err != nil {
					got <- fmt.Errorf("%d of %d bytes: %w", n, size, err)
					return
				}
				if n%(1<<20) < 32<<10 {
					time.Sleep(time.Millisecond) // a slow reader
				}
			}
		})
		st := s.open(t, h, "")
		if _, err := st.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		_ = st.CloseWrite()
		_ = st.Close()
		if err := within(t, 30*time.Second, got, "agent"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("agent closes", func(t *testing.T) {
		h := s.accept(func(_ context.Context, st link.Stream) {
			_, _ = st.Write(make([]byte, size))
			_ = st.CloseWrite()
		})
		st := s.open(t, h, "never read")
		defer st.Close()
		if n, err := io.Copy(io.Discard, st); err != nil || n != size {
			t.Fatalf("%d of %d bytes, %v", n, size, err)
		}
	})
	t.Run("the closer stops the other's writes", func(t *testing.T) {
		got := make(chan error, 1)
		h := s.accept(func(_ context.Context, st link.Stream) {
			_, err := io.Copy(io.Discard, st)
			for err == nil {
				_, err = st.Write(make([]byte, 64<<10))
			}
			got <- err
		})
		st := s.open(t, h, "")
		if _, err := st.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, _ = st.Write(make([]byte, size))
		_ = st.CloseWrite()
		_ = st.Close()
		if err := within(t, 20*time.Second, got, "agent"); !broken(err) {
			t.Fatalf("agent's write: %v", err)
		}
	})
}

func testAbort(t *testing.T, s *suite) {
	t.Run("by the agent", func(t *testing.T) {
		h := s.accept(func(_ context.Context, st link.Stream) {
			_, _ = io.ReadFull(st, make([]byte, 4))
			st.Abort()
		})
		st := s.open(t, h, "")
		defer st.Close()
		if _, err := st.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, _ = st.Write([]byte("ping"))
		if _, err := io.ReadAll(st); !broken(err) {
			t.Fatalf("read: %v", err)
		}
		var err error
		for err == nil {
			_, err = st.Write(make([]byte, 1<<10))
		}
		if !broken(err) {
			t.Fatalf("write: %v", err)
		}
	})
	for name, end := range map[string]func(link.Stream){
		"by the edge":      func(st link.Stream) { st.Abort() },
		"close unfinished": func(st link.Stream) { _ = st.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			accepted, ended, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			h := s.accept(func(ctx context.Context, st link.Stream) {
				close(accepted)
				<-ctx.Done() // noticed without reading
				close(ended)
				_, err := io.ReadAll(st)
				read <- err
			})
			st := s.open(t, h, "")
			within(t, 10*time.Second, accepted, "accept")
			end(st)
			within(t, 10*time.Second, ended, "context of the stream")
			if err := within(t, 10*time.Second, read, "read"); !broken(err) {
				t.Fatalf("agent's read: %v", err)
			}
			if _, err := st.Write([]byte("x")); err == nil {
				t.Fatal("write after the end succeeded")
			}
		})
	}
	t.Run("before the answer", func(t *testing.T) {
		begun, ended := make(chan struct{}), make(chan struct{})
		h := s.serve(func(ctx context.Context, in link.Incoming) {
			close(begun)
			<-ctx.Done()
			close(ended)
			in.Refuse(reason.New(reason.OriginTimeout, reason.HopOrigin, "cancelled").Safe())
		})
		st := s.open(t, h, "")
		within(t, 10*time.Second, begun, "handler")
		st.Abort()
		within(t, 10*time.Second, ended, "context of the dial")
	})
}

// testAbortStuck aborts while the peer's write waits for a reader that never reads.
func testAbortStuck(t *testing.T, s *suite) {
	full, failed := make(chan struct{}, 1), make(chan error, 1)
	h := s.accept(func(_ context.Context, st link.Stream) {
		var err error
		for n := 0; err == nil; n++ {
			_, err = st.Write(make([]byte, 64<<10))
			if n == 3 {
				full <- struct{}{}
			}
		}
		failed <- err
	})
	st := s.open(t, h, "")
	within(t, 10*time.Second, full, "writer")
	st.Abort()
	if err := within(t, 5*time.Second, failed, "stuck writer"); !broken(err) {
		t.Fatalf("stuck write: %v", err)
	}
}

func testCancel(t *testing.T, s *suite) {
	t.Run("before open", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := s.pair.Open(ctx, s.accept(echo), nil)
		var e *reason.Error
		if !errors.As(err, &e) || !e.Untouched || !errors.Is(err, context.Canceled) {
			t.Fatalf("open: %v", err)
		}
	})
	t.Run("waiting for the answer", func(t *testing.T) {
		answer := make(chan struct{})
		h := s.serve(func(ctx context.Context, in link.Incoming) {
			<-answer
			if st, err := in.Accept("late"); err == nil {
				echo(ctx, st)
				_ = st.Close()
			}
		})
		st := s.open(t, h, "x")
		defer st.Close()
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() { _, err := st.Answer(ctx); got <- err }()
		cancel()
		if err := within(t, 5*time.Second, got, "Answer"); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled answer: %v", err)
		}
		// The stream itself is unharmed.
		close(answer)
		if a, err := st.Answer(t.Context()); err != nil || a.Alpn != "late" {
			t.Fatalf("answer afterwards: %v, %v", a, err)
		}
		_ = st.CloseWrite()
		if b, err := io.ReadAll(st); err != nil || string(b) != "x" {
			t.Fatalf("%q, %v", b, err)
		}
	})
	t.Run("reading", func(t *testing.T) {
		st := s.open(t, s.accept(echo), "")
		if _, err := st.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { _, err := st.Read(make([]byte, 1)); got <- err }()
		_ = st.Close()
		if err := within(t, 5*time.Second, got, "Read"); err == nil {
			t.Fatal("read went on after Close")
		}
	})
}

func testDeadlines(t *testing.T, s *suite) {
	release := make(chan struct{})
	h := s.serve(func(ctx context.Context, in link.Incoming) {
		<-release
		if st, err := in.Accept(""); err == nil {
			echo(ctx, st)
			_ = st.Close()
		}
	})
	st := s.open(t, h, "")
	defer st.Close()
	for range 3 {
		_ = st.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read before the answer: %v", err)
		}
	}
	close(release)
	_ = st.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := st.Answer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		_ = st.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d: %v", i, err)
		}
		_ = st.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := st.Write([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 3)
		if _, err := io.ReadFull(st, buf); err != nil || string(buf) != "abc" {
			t.Fatalf("after a deadline: %q, %v", buf, err)
		}
	}
}

func testVanish(t *testing.T, s *suite) {
	ended := make(chan struct{}, 16)
	h := s.accept(func(ctx context.Context, st link.Stream) {
		_, _ = io.Copy(io.Discard, st)
		ended <- struct{}{}
	})
	var streams []link.Outgoing
	for range 5 {
		st := s.open(t, h, "")
		if _, err := st.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, st)
	}
	s.pair.Vanish()
	for _, st := range streams {
		if _, err := st.Read(make([]byte, 1)); !broken(err) {
			t.Fatalf("read from an agent that vanished: %v", err)
		}
		_ = st.Close()
	}
	for range streams {
		within(t, 20*time.Second, ended, "agent's stream")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := s.pair.Open(ctx, h, nil)
	if !reason.Is(err, reason.NoAgent) || !reason.Of(err, "").Untouched {
		t.Fatalf("open towards an agent that vanished: %v", err)
	}
}
