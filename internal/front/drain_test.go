package front

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// slow is a handler that reports when it began and ends when told.
type slow struct {
	began chan struct{}
	end   chan struct{}
}

func newSlow() *slow { return &slow{began: make(chan struct{}, 10), end: make(chan struct{})} }

func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.began <- struct{}{}
	select {
	case <-s.end:
		_, _ = io.WriteString(w, "done")
	case <-r.Context().Done():
	}
}

func TestShutdown(t *testing.T) {
	t.Run("a running HTTP/1.1 request ends well, with Connection: close", func(t *testing.T) {
		h := newSlow()
		r := start(t, Config{}, func(_ *rig, roles *Roles) { roles.HTTP = h })
		c, err := tls.Dial("tcp", r.addr, r.client("q.test", "http/1.1"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: q.test\r\n\r\n")
		<-h.began
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(context.Background()) }()
		<-r.tlsFeed.done // the server knows
		close(h.end)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if string(b) != "done" || !resp.Close {
			t.Errorf("%q, close %v", b, resp.Close)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := tls.Dial("tcp", r.addr, r.client("q.test")); err == nil {
			t.Error("accepts after the shutdown")
		}
	})
	t.Run("running HTTP/2 and HTTP/3 requests end well, idle connections are closed", func(t *testing.T) {
		h := newSlow()
		r := start(t, Config{}, func(_ *rig, roles *Roles) { roles.HTTP = h })
		h2 := r.transport()
		defer h2.CloseIdleConnections()
		h3 := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: r.ca.pool}, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, r.addr, c, q)
		}}
		defer h3.Close()
		answers := make(chan string, 2)
		for _, rt := range []http.RoundTripper{h2, h3} {
			go func() {
				req, _ := http.NewRequest(http.MethodGet, "https://q.test/", nil)
				resp, err := rt.RoundTrip(req)
				if err != nil {
					answers <- err.Error()
					return
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				answers <- string(b)
			}()
		}
		<-h.began
		<-h.began
		idle, err := quic.DialAddr(t.Context(), r.addr, r.client("q.test", "h3"), nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(context.Background()) }()
		select {
		case <-idle.Context().Done():
		case <-time.After(10 * time.Second):
			t.Error("an idle HTTP/3 connection stays")
		}
		close(h.end)
		for range 2 {
			if a := <-answers; a != "done" {
				t.Errorf("%q", a)
			}
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the shutdown does not end")
		}
	})
	t.Run("passthrough and hijacked connections are waited for, then ended with a word", func(t *testing.T) {
		var cause atomic.Value
		r := start(t, Config{}, func(_ *rig, roles *Roles) {
			roles.HTTP = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				<-req.Context().Done()
				cause.Store(context.Cause(req.Context()))
				_, _ = io.WriteString(c, "goodbye")
				_ = c.Close()
			})
		})
		c, err := tls.Dial("tcp", r.addr, r.client("q.test", "http/1.1"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: q.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		br := bufio.NewReader(c)
		for line := ""; line != "\r\n"; {
			if line, err = br.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(ctx) }()
		<-r.closing
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		cancel()
		if b, _ := io.ReadAll(br); string(b) != "goodbye" {
			t.Errorf("read %q", b)
		}
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err, _ := cause.Load().(error); !errors.Is(err, ErrDrained) {
			t.Errorf("cause %v", err)
		}
	})
	t.Run("sessions go on until Close", func(t *testing.T) {
		r := start(t, Config{}, nil)
		c, err := quic.DialAddr(t.Context(), r.addr, &tls.Config{ServerName: "own.test", InsecureSkipVerify: true, NextProtos: []string{secret}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.OpenUniStreamSync(t.Context()); err != nil {
			t.Errorf("the session ended with the visitors: %v", err)
		}
		_ = r.Close()
		select {
		case <-c.Context().Done():
		case <-time.After(10 * time.Second):
			t.Error("the session outlives Close")
		}
	})
	t.Run("a connection that is handed over is neither counted nor waited for", func(t *testing.T) {
		release := make(chan struct{})
		r := start(t, Config{MaxConns: 1}, func(_ *rig, roles *Roles) {
			roles.HTTP = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				HandOver(req.Context())
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "x")
				<-release
				_ = c.Close()
			})
		})
		c, err := tls.Dial("tcp", r.addr, r.client("q.test", "http/1.1"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: q.test\r\n\r\n")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if n := r.Conns().Total(); n != 0 {
			t.Errorf("%d connections count", n)
		}
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		close(release)
	})
	t.Run("a front that was closed does not begin to serve", func(t *testing.T) {
		f, err := Listen(Config{ListenHTTPS: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if err := f.Serve(context.Background(), Roles{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("the end of the context closes everything", func(t *testing.T) {
		f, err := Listen(Config{ListenHTTPS: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- f.Serve(ctx, Roles{}) }()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		<-f.closed
	})
}

func TestServesWithoutHandlers(t *testing.T) {
	f, err := Listen(Config{ListenHTTPS: "127.0.0.1:0", ListenHTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = f.Serve(context.Background(), Roles{}) }()
	defer f.Close()
	if _, err := tls.Dial("tcp", f.HTTPSAddr().String(), &tls.Config{ServerName: "x.test"}); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("%v", err)
	}
}
