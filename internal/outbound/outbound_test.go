package outbound

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proxyServer answers one CONNECT per connection with answer, then echoes.
func proxyServer(t *testing.T, answer string) (*url.URL, <-chan *http.Request) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan *http.Request, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				r, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				got <- r
				if answer == "" {
					_, _ = io.Copy(io.Discard, br)
					return
				}
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(c, br)
			}()
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("u", "p w")}, got
}

func via(u *url.URL) func(*url.URL) (*url.URL, error) {
	return func(*url.URL) (*url.URL, error) { return u, nil }
}

func TestDialThroughProxy(t *testing.T) {
	u, got := proxyServer(t, "HTTP/1.1 200 Connection established\r\n\r\nfirst")
	c, err := Dial(t.Context(), via(u), "hub.example:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := <-got
	if user, pw, _ := parseProxyAuth(r); r.Method != "CONNECT" || r.Host != "hub.example:443" || user != "u" || pw != "p w" {
		t.Errorf("proxy got %s %s as %s", r.Method, r.Host, user)
	}
	if _, err := io.WriteString(c, " echo"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len("first echo"))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "first echo" {
		t.Errorf("read %q, %v", b, err)
	}
}

func parseProxyAuth(r *http.Request) (string, string, bool) {
	q := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	return q.BasicAuth()
}

func TestDialRefusedByProxy(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"407":            {"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407"},
		"endless header": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxAnswer), "more than"},
		"no http":        {"SSH-2.0-x\r\n\r\n", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			u, _ := proxyServer(t, c.answer)
			if conn, err := Dial(t.Context(), via(u), "h:1"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want an error with %q", conn, err, c.want)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		u, _ := proxyServer(t, "")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Dial(ctx, via(u), "h:1"); err == nil {
			t.Error("a silent proxy connected")
		}
	})
	t.Run("scheme", func(t *testing.T) {
		if _, err := Dial(t.Context(), via(&url.URL{Scheme: "socks4", Host: "127.0.0.1:1"}), "h:1"); err == nil || !strings.Contains(err.Error(), "socks4") {
			t.Error(err)
		}
	})
	t.Run("setting", func(t *testing.T) {
		bad := errors.New("bad setting")
		if _, err := Dial(t.Context(), func(*url.URL) (*url.URL, error) { return nil, bad }, "h:1"); !errors.Is(err, bad) {
			t.Error(err)
		}
	})
}

func TestLoopbackNamesNeedNoResolver(t *testing.T) {
	for in, want := range map[string]string{
		"hub.localhost:8443": "127.0.0.1:8443", "HUB.LocalHost.:1": "127.0.0.1:1", "localhost:2": "127.0.0.1:2",
		"hub.example.com:443": "hub.example.com:443", "notlocalhost:1": "notlocalhost:1", "[::1]:5": "[::1]:5", "odd": "odd",
	} {
		if got := Loopback(in); got != want {
			t.Errorf("Loopback(%q) = %q, want %q", in, got, want)
		}
	}
}
