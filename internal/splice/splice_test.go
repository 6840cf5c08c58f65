//go:build linux

package splice_test

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/adit-dev/adit/internal/splice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

type result struct{ read, write error }

// copying runs a copy between a writer's and a reader's connection.
func copying(t *testing.T, p splice.Progress) (in, out, src, dst *net.TCPConn, done chan result) {
	in, src = pair(t)
	dst, out = pair(t)
	done = make(chan result, 1)
	go func() {
		var r result
		r.read, r.write = splice.Copy(dst, src, p)
		done <- r
	}()
	return in, out, src, dst, done
}

func wait(t *testing.T, done chan result) result {
	t.Helper()
	select {
	case r := <-done:
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("the copy goes on")
		return result{}
	}
}

func TestCopy(t *testing.T) {
	t.Run("bulk, then an end", func(t *testing.T) {
		const size = 200 << 20
		var moved atomic.Int64
		in, out, _, dst, done := copying(t, splice.Progress{Moved: func(n int) { moved.Add(int64(n)) }})
		sent := make(chan [32]byte, 1)
		go func() {
			h := sha256.New()
			_, _ = io.CopyN(io.MultiWriter(in, h), rand.NewChaCha8([32]byte{1}), size)
			_ = in.CloseWrite()
			sent <- [32]byte(h.Sum(nil))
		}()
		got := make(chan [32]byte, 1)
		go func() {
			h := sha256.New()
			_, _ = io.Copy(h, struct{ io.Reader }{out})
			got <- [32]byte(h.Sum(nil))
		}()
		if r := wait(t, done); r != (result{}) {
			t.Fatalf("%+v", r)
		}
		_ = dst.CloseWrite()
		if <-sent != <-got || moved.Load() != size {
			t.Fatalf("other bytes arrived; %d counted", moved.Load())
		}
	})
	t.Run("reset of the source", func(t *testing.T) {
		in, _, _, _, done := copying(t, splice.Progress{})
		_ = in.SetLinger(0)
		_ = in.Close()
		if r := wait(t, done); !errors.Is(r.read, syscall.ECONNRESET) || r.write != nil {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("reset of the destination", func(t *testing.T) {
		in, out, _, _, done := copying(t, splice.Progress{})
		_ = out.SetLinger(0)
		_ = out.Close()
		go func() {
			for {
				if _, err := in.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}()
		r := wait(t, done)
		_ = in.Close()
		if r.write == nil || r.read != nil {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("deadlines", func(t *testing.T) {
		_, _, src, _, done := copying(t, splice.Progress{})
		_ = src.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if r := wait(t, done); !errors.Is(r.read, os.ErrDeadlineExceeded) {
			t.Fatalf("%+v", r)
		}
		var writing atomic.Bool
		in, _, _, dst, done := copying(t, splice.Progress{Writing: &writing})
		go func() {
			for {
				if _, err := in.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}()
		for end := time.Now().Add(10 * time.Second); !writing.Load() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		_ = dst.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		r := wait(t, done)
		_ = in.Close()
		if !errors.Is(r.write, os.ErrDeadlineExceeded) {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("what a closed destination did not take reaches nobody else", func(t *testing.T) {
		for range 40 {
			in, _, _, dst, done := copying(t, splice.Progress{})
			_ = dst.Close()
			if _, err := in.Write([]byte("secret")); err != nil {
				t.Fatal(err)
			}
			if r := wait(t, done); r.write == nil {
				t.Fatalf("%+v", r)
			}
			in, out, _, _, done := copying(t, splice.Progress{})
			_, _ = in.Write([]byte("public"))
			got := make([]byte, 6)
			if _, err := io.ReadFull(out, got); err != nil || string(got) != "public" {
				t.Fatalf("%q, %v", got, err)
			}
			_ = in.Close()
			wait(t, done)
		}
	})
	t.Run("more copies than pipes", func(t *testing.T) {
		before := descriptors(t)
		t.Run("stalled", func(t *testing.T) {
			const n = 160
			var dones []chan result
			for range n {
				var writing atomic.Bool
				in, out, _, _, done := copying(t, splice.Progress{Writing: &writing})
				_ = out.SetReadBuffer(4 << 10)
				dones = append(dones, done)
				_, _ = in.Write(make([]byte, 64<<10))
				t.Cleanup(func() { _ = out.SetLinger(0); _ = out.Close() })
				go func() { _, _ = io.CopyN(io.Discard, out, 64<<10); _ = in.Close() }()
			}
			for _, d := range dones {
				if r := wait(t, d); r != (result{}) {
					t.Errorf("%+v", r)
				}
			}
		})
		// Idle pipes stay, at most 24.
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			n := descriptors(t)
			if n <= before+2*24 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d descriptors, before %d", n, before)
			}
		}
	})
}

func TestIdleHoldsNoPipe(t *testing.T) {
	before := descriptors(t)
	var dones []chan result
	var ins []*net.TCPConn
	for range 100 {
		in, out, _, _, done := copying(t, splice.Progress{})
		_, _ = in.Write([]byte("x"))
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		ins, dones = append(ins, in), append(dones, done)
	}
	if n := descriptors(t) - before - 400; n > 2*24 {
		t.Errorf("%d descriptors beside the sockets", n)
	}
	for i := range ins {
		_ = ins[i].Close()
		wait(t, dones[i])
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}
