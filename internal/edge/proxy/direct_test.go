package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// script is an origin that does what serve says with each connection, after its number from 1 on.
func script(t *testing.T, serve func(n int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func nextRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err == nil {
		_, err = io.Copy(io.Discard, req.Body)
	}
	return err == nil
}

const short = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func (r *rig) get(t *testing.T, c *http.Client, method, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://a.example.test/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = nil, 0
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestDirect(t *testing.T) {
	t.Run("one connection serves request after request, and is noticed to end", func(t *testing.T) {
		r := newRig(t)
		var conns atomic.Int64
		end := make(chan struct{})
		r.put("a.example.test", script(t, func(_ int, c net.Conn, br *bufio.Reader) {
			conns.Add(1)
			for range 5 {
				if !nextRequest(br) {
					return
				}
				_, _ = io.WriteString(c, short)
			}
			<-end
		}))
		c := r.client("h1")
		for range 5 {
			if code, body := r.get(t, c, "GET", ""); code != 200 || body != "ok" {
				t.Fatal(code, body)
			}
		}
		if n := conns.Load(); n != 1 || r.agent.Active() != 1 {
			t.Errorf("%d connections, %d streams", n, r.agent.Active())
		}
		time.Sleep(2 * restAfter) // it is watched now; both cases must do
		close(end)
		eventually(t, "the end of the stream", func() bool { return r.agent.Active() == 0 })
	})
	t.Run("H19 a request on a connection that ended meanwhile is sent again", func(t *testing.T) {
		for _, wait := range []time.Duration{0, 2 * restAfter} {
			r := newRig(t)
			r.put("a.example.test", script(t, func(n int, c net.Conn, br *bufio.Reader) {
				if !nextRequest(br) {
					return
				}
				_, _ = io.WriteString(c, short)
				if n == 1 && wait == 0 {
					nextRequest(br) // taken, and no answer
					return
				}
				for n > 1 && nextRequest(br) {
					_, _ = io.WriteString(c, short)
				}
			}))
			c := r.client("h1")
			for range 3 {
				if code, body := r.get(t, c, "GET", ""); code != 200 || body != "ok" {
					t.Fatal(code, body)
				}
				time.Sleep(wait)
			}
			r.giveUpIdle()
		}
	})
	t.Run("a connection that was watched serves on", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", script(t, func(n int, c net.Conn, br *bufio.Reader) {
			for nextRequest(br) {
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
			}
		}))
		c := r.client("h2")
		for range 3 {
			if code, body := r.get(t, c, "GET", ""); code != 200 || body != "1" {
				t.Error(code, body)
			}
			time.Sleep(2 * restAfter)
		}
		r.giveUpIdle()
	})
	t.Run("an origin that says more than it was asked is not used again", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", script(t, func(n int, c net.Conn, br *bufio.Reader) {
			if nextRequest(br) {
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%dHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", n)
				_, _ = io.Copy(io.Discard, c)
			}
		}))
		c := r.client("h1")
		for want := range 3 {
			if code, body := r.get(t, c, "GET", ""); code != 200 || body != fmt.Sprint(want+1) {
				t.Error(code, body)
			}
		}
		r.giveUpIdle()
	})
	for name, head := range map[string]string{
		"known length": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n%s", "chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n%s\r\n",
		"until the end": "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s",
	} {
		for _, v := range []string{"h1", "h2"} {
			t.Run("every part is delivered as it comes: "+name+" "+v, func(t *testing.T) {
				r := newRig(t)
				next := make(chan struct{})
				r.put("a.example.test", script(t, func(_ int, c net.Conn, br *bufio.Reader) {
					if !nextRequest(br) {
						return
					}
					_, _ = fmt.Fprintf(c, head, "one")
					for _, part := range []string{"two", "six"} {
						<-next
						if name == "chunked" {
							part = "3\r\n" + part + "\r\n"
						}
						_, _ = io.WriteString(c, part)
					}
					<-next
					if name == "chunked" {
						_, _ = io.WriteString(c, "0\r\n\r\n")
						nextRequest(br)
					}
				}))
				resp, err := r.client(v).Get("https://a.example.test/")
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				for _, want := range []string{"one", "two", "six"} {
					b := make([]byte, 3)
					within(t, 5*time.Second, "a part", func() { _, err = io.ReadFull(resp.Body, b) })
					if err != nil || string(b) != want {
						t.Fatalf("%q, %v", b, err)
					}
					next <- struct{}{}
				}
				if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
					t.Errorf("%q, %v", rest, err)
				}
				r.giveUpIdle()
			})
		}
	}
	t.Run("the header is delivered before the body", func(t *testing.T) {
		r := newRig(t)
		next := make(chan struct{})
		r.put("a.example.test", script(t, func(_ int, c net.Conn, br *bufio.Reader) {
			if nextRequest(br) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
				<-next
				_, _ = io.WriteString(c, "ok")
				nextRequest(br)
			}
		}))
		within(t, 5*time.Second, "the header", func() {
			resp, err := r.client("h1").Get("https://a.example.test/")
			if err != nil {
				t.Error(err)
				return
			}
			close(next)
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(b) != "ok" {
				t.Errorf("%q", b)
			}
		})
		r.giveUpIdle()
	})
	t.Run("interim answers are passed on", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", script(t, func(_ int, c net.Conn, br *bufio.Reader) {
			for nextRequest(br) {
				_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"+short)
			}
		}))
		var hints atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == 103 && h.Get("Link") == "</a>" {
				hints.Add(1)
			}
			return nil
		}})
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://a.example.test/", nil)
		resp, err := r.client("h1").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || hints.Load() != 1 {
			t.Errorf("%s after %d hints", resp.Status, hints.Load())
		}
		r.giveUpIdle()
	})
	for name, c := range map[string]struct{ answer, want string }{
		"a header without end":           {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20), "origin_protocol"},
		"interim answers without end":    {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100), "origin_protocol"},
		"a switch that nobody asked for": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "origin_protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", script(t, func(_ int, conn net.Conn, br *bufio.Reader) {
				if nextRequest(br) {
					_, _ = io.WriteString(conn, c.answer)
					_, _ = io.Copy(io.Discard, br)
				}
			}))
			resp, err := r.client("h1").Get("https://a.example.test/")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != 502 || resp.Header.Get("Adit-Error") != c.want {
				t.Errorf("%s %s", resp.Status, resp.Header.Get("Adit-Error"))
			}
			eventually(t, "the connection given up", func() bool { return r.agent.Active() == 0 })
		})
	}
}
