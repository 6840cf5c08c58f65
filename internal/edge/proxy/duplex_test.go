package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestDuplex(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, q *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.WriteHeader(200)
		_ = rc.Flush()
		b := make([]byte, 100)
		for {
			n, err := q.Body.Read(b)
			if n > 0 {
				_, _ = w.Write(b[:n])
				_ = rc.Flush()
			}
			if err != nil {
				return
			}
		}
	})
	for _, v := range []string{"h2", "h3"} { // net/http's client waits with HTTP/1.1; see below
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(fmt.Sprintf("H04 request and answer at the same time: %s, %s", v, scheme), func(t *testing.T) {
				r := newRig(t)
				r.put("a.example.test", strings.Replace(o, "http", scheme, 1))
				pr, pw := io.Pipe()
				res, err := r.client(v).Post("https://a.example.test/", "text/plain", pr)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				for i := range 10 {
					msg := fmt.Sprintf("message %d", i)
					_, _ = io.WriteString(pw, msg)
					got := make([]byte, len(msg))
					within(t, time.Second, "the echo", func() {
						if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != msg {
							t.Errorf("%q %v", got, err)
						}
					})
				}
				_ = pw.Close()
				if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
					t.Errorf("%q %v", rest, err)
				}
			})
		}
	}
	t.Run("H04 request and answer at the same time: h1", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		c := r.dialTLS(t)
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a.example.test\r\nTransfer-Encoding: chunked\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			msg := fmt.Sprintf("message %d", i)
			fmt.Fprintf(c, "%x\r\n%s\r\n", len(msg), msg)
			got := make([]byte, len(msg))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != msg {
				t.Fatalf("%q %v", got, err)
			}
		}
		fmt.Fprint(c, "0\r\n\r\n")
		if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
			t.Errorf("%q %v", rest, err)
		}
	})
}

func TestAbortedUpload(t *testing.T) {
	for _, v := range versions {
		t.Run("H22 an upload that breaks off is the visitor's doing: "+v, func(t *testing.T) {
			var failed atomic.Bool
			began := make(chan struct{})
			o := origin(t, func(_ http.ResponseWriter, q *http.Request) {
				close(began)
				_, err := io.Copy(io.Discard, q.Body)
				failed.Store(err != nil)
			})
			r := newRig(t)
			r.put("a.example.test", o)
			pr, pw := io.Pipe()
			go func() {
				_, _ = pw.Write(make([]byte, 1000))
				<-began
				pw.CloseWithError(io.ErrClosedPipe)
			}()
			if res, err := r.client(v).Post("https://a.example.test/", "text/plain", pr); err == nil {
				t.Errorf("half an upload got %d", res.StatusCode)
			}
			eventually(t, "the origin's error", failed.Load)
			eventually(t, "a log line with 499", func() bool { return strings.Contains(r.logs.String(), `"status":499`) })
		})
	}
	t.Run("a malformed body is a bad request", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", origin(t, func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) }))
		res := r.raw(t, "POST / HTTP/1.1\r\nHost: a.example.test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
		if res.StatusCode != 400 || res.Header.Get("Adit-Error") != "bad_request" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
	})
}

func TestNoHTTPInside(t *testing.T) {
	var mu sync.Mutex
	var upgrade string
	o := origin(t, func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		upgrade = q.Header.Get("Upgrade") + q.Header.Get("Connection")
		w.Header().Set("Alt-Svc", `h3=":9999"`)
	})
	r := newRig(t)
	r.put("a.example.test", o)
	for _, u := range []string{"h2c", "H2C", "foo, h2c", "HTTP/2.0", "TLS/1.2"} {
		res := r.raw(t, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nUpgrade: "+u+"\r\n\r\n")
		mu.Lock()
		if res.StatusCode != 200 || upgrade != "" {
			t.Errorf("Upgrade %q: %d, origin saw %q", u, res.StatusCode, upgrade)
		}
		mu.Unlock()
		if res.Header.Get("Alt-Svc") != "" {
			t.Error("the origin's Alt-Svc reached the visitor")
		}
	}
	for _, v := range []string{"h2", "h3"} {
		if res, _, err := r.extended(t, v, "h2c"); err != nil || res.StatusCode != 400 {
			t.Errorf("extended CONNECT to h2c over %s: %v %v", v, res, err)
		}
	}
}

func TestRollingReplicas(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		t.Run("replicas that come and go lose no request: "+scheme, func(t *testing.T) {
			o := strings.Replace(origin(t, func(w http.ResponseWriter, q *http.Request) {
				n, _ := io.Copy(io.Discard, q.Body)
				fmt.Fprint(w, n)
			}), "http", scheme, 1)
			r := newRig(t)
			r.put("a.example.test", o)
			r.replicate(3, o)
			stop := make(chan struct{})
			var done sync.WaitGroup
			var served atomic.Int32
			for range 4 {
				c := r.client("h1")
				done.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						res, err := c.Post("https://a.example.test/", "text/plain", strings.NewReader("12345"))
						if err != nil {
							t.Error(err)
							return
						}
						b, _ := io.ReadAll(res.Body)
						res.Body.Close()
						if string(b) != "5" {
							t.Errorf("%d %q", res.StatusCode, b)
							return
						}
						served.Add(1)
					}
				})
			}
			for i := range 30 {
				gone := r.agents[i%3]
				r.source.Set(r.agents[(i+1)%3], r.agents[(i+2)%3])
				r.CloseReplica(gone.Name)
				at := served.Load()
				eventually(t, "more requests", func() bool { return served.Load() > at+8 || t.Failed() })
			}
			close(stop)
			done.Wait()
			eventually(t, "the idle connections' end", func() bool {
				for _, a := range r.agents {
					r.CloseReplica(a.Name)
				}
				return r.agents[0].Active()+r.agents[1].Active()+r.agents[2].Active() == 0
			})
		})
	}
}

func TestHTTP10(t *testing.T) {
	r := newRig(t)
	r.put("a.example.test", origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "old") }))
	c, err := net.Dial("tcp", r.plain)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.0\r\nHost: a.example.test\r\n\r\n")
	b, err := io.ReadAll(c)
	if err != nil || !strings.HasSuffix(string(b), "old") {
		t.Errorf("%q %v", b, err)
	}
}
