package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adit-dev/adit/internal/edge/dial/dialtest"
	"github.com/adit-dev/adit/internal/reason"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestMatrix(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %d %s", r.Method, r.Host, r.RequestURI, r.ProtoMajor, b)
	})
	for _, v := range versions {
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(v+" visitor, "+scheme+" origin", func(t *testing.T) {
				r := newRig(t)
				want := 1
				if scheme == "h2c" {
					want = 2
				}
				r.put("a.example.test", strings.Replace(o, "http", scheme, 1))
				c := r.client(v)
				for range 3 {
					res, err := c.Post("https://a.example.test/x/?q=1;2&%zz", "text/plain", strings.NewReader("body"))
					if err != nil {
						t.Fatal(err)
					}
					b, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if got, want := string(b), fmt.Sprintf("POST a.example.test /x/?q=1;2&%%zz %d body", want); got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
				if n := r.agent.Opened.Load(); n != 1 {
					t.Errorf("%d origin connections for 3 requests in sequence", n)
				}
			})
		}
	}
}

func TestHTTPSOrigin(t *testing.T) {
	for _, h2 := range []bool{true, false} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, r.Proto)
			}))
			s.EnableHTTP2 = h2
			s.StartTLS()
			defer s.Close()
			r := newRig(t)
			defer r.Close()
			r.put("a.example.test", s.URL)
			c := r.client("h2")
			want := "HTTP/1.1"
			if h2 {
				want = "HTTP/2.0"
			}
			for i := range 3 {
				if _, b := get(t, c, "https://a.example.test/"); b != want {
					t.Errorf("origin was spoken to in %q, want %q", b, want)
				}
				if i == 0 && strings.Join(r.agent.Last().GetAlpn(), ",") != "h2,http/1.1" {
					t.Errorf("first offer %v", r.agent.Last().GetAlpn())
				}
			}
			r.giveUpIdle()
			get(t, c, "https://a.example.test/")
			if len(r.agent.Last().GetAlpn()) != 1 {
				t.Errorf("later offer %v, want one protocol", r.agent.Last().GetAlpn())
			}
		})
	}
	t.Run("an origin that changes its protocol", func(t *testing.T) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
		s.EnableHTTP2 = true
		s.StartTLS()
		defer s.Close()
		r := newRig(t)
		defer r.Close()
		r.put("a.example.test", s.URL)
		c := r.client("h1")
		get(t, c, "https://a.example.test/")
		r.giveUpIdle()
		r.agent.Refuse = func(h *wirev1.StreamHeader) *reason.Error {
			if len(h.GetAlpn()) == 1 && h.GetAlpn()[0] == "h2" {
				return reason.New(reason.OriginTLS, reason.HopOrigin, "no application protocol").Safe()
			}
			h.Alpn = []string{"http/1.1"}
			return nil
		}
		if res, b := get(t, c, "https://a.example.test/"); b != "HTTP/1.1" {
			t.Errorf("got %d %q", res.StatusCode, b)
		}
	})
}

func TestStreaming(t *testing.T) {
	for _, v := range versions {
		for _, method := range []string{"GET", "POST"} {
			for _, ct := range []string{"text/event-stream", "Text/Event-Stream ; charset=UTF-8", "application/octet-stream"} {
				id := "H01 each line arrives when it is written"
				if strings.Contains(ct, "charset") {
					id = "H02 whatever the media type's spelling"
				}
				t.Run(fmt.Sprintf("%s: %s %s %s", id, v, method, ct), func(t *testing.T) {
					next := make(chan struct{})
					o := origin(t, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Type", ct)
						for i := range 5 {
							fmt.Fprintf(w, "data: %d\n", i)
							w.(http.Flusher).Flush()
							<-next
						}
					})
					r := newRig(t)
					r.put("a.example.test", o)
					req, _ := http.NewRequest(method, "https://a.example.test/", nil)
					res, err := r.client(v).Do(req)
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					lines := bufio.NewReader(res.Body)
					for i := range 5 {
						within(t, time.Second, "a line", func() {
							if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
								t.Errorf("line %q, %v", line, err)
							}
						})
						next <- struct{}{} // the origin writes the next line only now
					}
				})
			}
		}
	}
}

func TestTrailersAndInformational(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s", b, r.Trailer.Get("X-Request-Sum"))
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "announced")
		w.Header().Set(http.TrailerPrefix+"X-Late", "unannounced")
	})
	for _, v := range versions {
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(fmt.Sprintf("H05 trailers both ways and 1xx: %s visitor, %s origin", v, scheme), func(t *testing.T) {
				r := newRig(t)
				r.put("a.example.test", strings.Replace(o, "http", scheme, 1))
				req, _ := http.NewRequest("POST", "https://a.example.test/", struct{ io.Reader }{strings.NewReader("body")})
				if v != "h3" { // its client sends no trailers
					req.Trailer = http.Header{"X-Request-Sum": {"7"}}
				}
				var hints atomic.Int32
				req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
						if code == 103 && h.Get("Link") != "" {
							hints.Add(1)
						}
						return nil
					},
				}))
				res, err := r.client(v).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				want := "body 7"
				if v == "h3" {
					want = "body "
				}
				if string(b) != want || err != nil {
					t.Errorf("body %q, %v", b, err)
				}
				if res.Trailer.Get("X-Sum") != "announced" || res.Trailer.Get("X-Late") != "unannounced" {
					t.Errorf("trailers %v", res.Trailer)
				}
				if hints.Load() != 1 {
					t.Errorf("%d early hints", hints.Load())
				}
				if res.Header.Get("Link") != "" {
					t.Error("the hint's header came again with the answer")
				}
			})
		}
	}
}

func TestFraming(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/len":
			fmt.Fprintf(w, "%d %v", r.ContentLength, r.TransferEncoding)
		case "/head":
			w.Header().Set("Content-Length", "12345")
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		}
	})
	for _, v := range versions {
		t.Run("H28 framing is kept: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", o)
			c := r.client(v)
			res, err := c.Post("https://a.example.test/len", "text/plain", strings.NewReader("12345"))
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if string(b) != "5 []" {
				t.Errorf("a POST of 5 bytes arrived as %q", b)
			}
			if _, b := get(t, c, "https://a.example.test/len"); b != "0 []" {
				t.Errorf("a GET arrived as %q", b)
			}
			res, err = c.Head("https://a.example.test/head")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.ContentLength != 12345 {
				t.Errorf("HEAD has content length %d", res.ContentLength)
			}
			for _, status := range []int{204, 304} {
				res, b := get(t, c, fmt.Sprintf("https://a.example.test/%d", status))
				if res.StatusCode != status || b != "" || len(res.TransferEncoding) > 0 || res.Header.Get("Content-Length") != "" {
					t.Errorf("%d became %d, %q, %v, %v", status, res.StatusCode, b, res.TransferEncoding, res.Header)
				}
			}
		})
	}
}

func TestBigBodies(t *testing.T) {
	const size = 32 << 20
	var peak atomic.Int64
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			peak.Store(-1)
		}
		w.Header().Set("X-Got", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, zeros{}, size)
	})
	for _, v := range versions {
		for _, length := range []int64{size, -1} {
			t.Run(fmt.Sprintf("H18 %s: %d bytes up (length %d) and down", v, size, length), func(t *testing.T) {
				r := newRig(t)
				r.put("a.example.test", o)
				req, _ := http.NewRequest("POST", "https://a.example.test/", io.LimitReader(zeros{}, size))
				req.ContentLength = length
				res, err := r.client(v).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				n, err := io.Copy(io.Discard, res.Body)
				if n != size || err != nil || res.Header.Get("X-Got") != strconv.Itoa(size) {
					t.Errorf("down %d, %v; up %s\n%s", n, err, res.Header.Get("X-Got"), r.logs)
				}
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestRetry(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	for _, scheme := range []string{"http", "h2c"} {
		t.Run("H19 a refused first replica costs nothing, the body arrives whole: "+scheme, func(t *testing.T) {
			o := origin(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				if string(b) == body {
					fmt.Fprint(w, "whole")
				}
			})
			r := newRig(t)
			r.put("a.example.test", strings.Replace(o, "http", scheme, 1))
			r.agent.Name = "r0" // so that it is first among equals only by chance
			bad := &dialtest.Replica{Name: "bad", Refuse: func(*wirev1.StreamHeader) *reason.Error {
				return reason.New(reason.OriginRefused, reason.HopOrigin, "refused").Safe()
			}}
			r.source.Set(bad, r.agent)
			for range 20 {
				res, err := r.client("h1").Post("https://a.example.test/", "text/plain", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if string(b) != "whole" {
					t.Fatalf("got %d %q", res.StatusCode, b)
				}
				r.pool.close()
			}
			if bad.Opened.Load() == 0 {
				t.Error("the refusing replica was never tried")
			}
			if bad.Opened.Load() > 3 {
				t.Errorf("the refusing replica was tried %d times in a row", bad.Opened.Load())
			}
		})
	}
	t.Run("H19 a request that reached the origin is not sent again", func(t *testing.T) {
		var n atomic.Int32
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				n.Add(1)
				go func() {
					_, _ = http.ReadRequest(bufio.NewReader(c))
					_ = c.Close()
				}()
			}
		}()
		r := newRig(t)
		r.put("a.example.test", "http://"+l.Addr().String())
		res, err := r.client("h1").Post("https://a.example.test/", "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 502 || res.Header.Get("Adit-Error") != "origin_refused" || n.Load() != 1 {
			t.Errorf("status %d %s after %d connections", res.StatusCode, res.Header.Get("Adit-Error"), n.Load())
		}
	})
	t.Run("all replicas gone", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", "http://127.0.0.1:1")
		r.source.Set()
		res, _ := get(t, r.client("h2"), "https://a.example.test/")
		if res.StatusCode != 503 || res.Header.Get("Adit-Error") != "no_agent" || res.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
	})
	t.Run("origin refuses", func(t *testing.T) {
		l, _ := net.Listen("tcp", "127.0.0.1:0")
		dead := l.Addr().String()
		l.Close()
		r := newRig(t)
		r.put("a.example.test", "http://"+dead)
		res, _ := get(t, r.client("h2"), "https://a.example.test/")
		if res.StatusCode != 502 || res.Header.Get("Adit-Error") != "origin_refused" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
	})
	t.Run("origin speaks something else", func(t *testing.T) {
		l, _ := net.Listen("tcp", "127.0.0.1:0")
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n"))
				go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
			}
		}()
		r := newRig(t)
		r.put("a.example.test", "http://"+l.Addr().String())
		res, _ := get(t, r.client("h2"), "https://a.example.test/")
		if res.StatusCode != 502 || res.Header.Get("Adit-Error") != "origin_protocol" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
	})
}

func TestTimeouts(t *testing.T) {
	short := func(c *Config) { c.ResponseHeader, c.BodyIdle = 200*time.Millisecond, 200*time.Millisecond }
	for _, v := range versions {
		t.Run("H20 a silent origin: "+v, func(t *testing.T) {
			stop := make(chan struct{})
			o := origin(t, func(http.ResponseWriter, *http.Request) { <-stop })
			defer close(stop)
			r := newRig(t, short)
			r.put("a.example.test", o)
			res, _ := get(t, r.client(v), "https://a.example.test/")
			if res.StatusCode != 504 || res.Header.Get("Adit-Error") != "origin_timeout" {
				t.Errorf("%d %v", res.StatusCode, res.Header)
			}
		})
		t.Run("H20 a stalled upload ends, a slow one does not: "+v, func(t *testing.T) {
			o := origin(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, n)
			})
			r := newRig(t, short)
			r.put("a.example.test", o)
			c := r.client(v)
			pr, pw := io.Pipe()
			go func() {
				for range 8 { // 400 ms in all, never silent for 200
					time.Sleep(50 * time.Millisecond)
					_, _ = pw.Write([]byte("x"))
				}
				pw.Close()
			}()
			res, err := c.Post("https://a.example.test/", "text/plain", pr)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if string(b) != "8" {
				t.Errorf("slow upload: %d %s", res.StatusCode, b)
			}
			pr, pw = io.Pipe()
			defer pw.Close()
			go func() { _, _ = pw.Write([]byte("x")) }()
			res, err = c.Post("https://a.example.test/", "text/plain", pr)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 408 || res.Header.Get("Adit-Error") != "visitor_timeout" {
				t.Errorf("stalled upload: %d %v", res.StatusCode, res.Header)
			}
		})
		t.Run("H20 a visitor that takes nothing is given up: "+v, func(t *testing.T) {
			gone := make(chan struct{})
			o := origin(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, zeros{})
				close(gone)
			})
			r := newRig(t, short)
			r.put("a.example.test", o)
			res, err := r.client(v).Get("https://a.example.test/")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			within(t, 5*time.Second, "giving the visitor up", func() { <-gone })
		})
	}
}

func TestAbort(t *testing.T) {
	for _, v := range versions {
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(fmt.Sprintf("H22 the origin sees a visitor's abort: %s, %s", v, scheme), func(t *testing.T) {
				cancelled := make(chan struct{})
				o := origin(t, func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprintln(w, "begin")
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					close(cancelled)
				})
				r := newRig(t)
				r.put("a.example.test", strings.Replace(o, "http", scheme, 1))
				ctx, cancel := context.WithCancel(t.Context())
				req, _ := http.NewRequestWithContext(ctx, "GET", "https://a.example.test/", nil)
				res, err := r.client(v).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				_, _ = bufio.NewReader(res.Body).ReadString('\n')
				cancel()
				within(t, time.Second, "the origin's cancellation", func() { <-cancelled })
				eventually(t, "a log line with 499", func() bool { return strings.Contains(r.logs.String(), `"status":499`) })
				if strings.Contains(r.logs.String(), "origin_") {
					t.Errorf("counted as the origin's fault: %s", r.logs.String())
				}
			})
		}
	}
	t.Run("H22 before the answer", func(t *testing.T) {
		reached, cancelled := make(chan struct{}), make(chan struct{})
		o := origin(t, func(_ http.ResponseWriter, r *http.Request) {
			close(reached)
			<-r.Context().Done()
			close(cancelled)
		})
		r := newRig(t)
		r.put("a.example.test", o)
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://a.example.test/", nil)
		go func() { <-reached; cancel() }()
		if _, err := r.client("h1").Do(req); err == nil {
			t.Fatal("an answer to an aborted request")
		}
		within(t, time.Second, "the origin's cancellation", func() { <-cancelled })
		eventually(t, "a log line with 499", func() bool { return strings.Contains(r.logs.String(), `"status":499`) })
	})
	t.Run("an origin that dies in the middle", func(t *testing.T) {
		o := origin(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		r := newRig(t)
		r.put("a.example.test", o)
		for _, v := range versions {
			res, err := r.client(v).Get("https://a.example.test/")
			if err != nil {
				continue // the reset of a stream of HTTP/3 may overtake the header
			}
			if _, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("%s: half an answer looks whole", v)
			}
			res.Body.Close()
		}
		eventually(t, "a log line", func() bool { return strings.Count(r.logs.String(), "origin_refused") == 3 })
	})
}

func TestEarlyAnswer(t *testing.T) {
	for _, v := range versions {
		t.Run("H23 an early refusal of a large body arrives: "+v, func(t *testing.T) {
			var requests atomic.Int32
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						requests.Add(1)
						_, _ = http.ReadRequest(bufio.NewReader(c))
						_, _ = c.Write([]byte("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"))
						_ = c.(*net.TCPConn).CloseWrite()
						_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
						_, _ = io.CopyN(io.Discard, c, 1<<20)
						_ = c.Close()
					}()
				}
			}()
			r := newRig(t)
			r.put("a.example.test", "http://"+l.Addr().String())
			res, err := r.client(v).Post("https://a.example.test/", "text/plain", io.LimitReader(zeros{}, 100<<20))
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 413 || string(b) != "no\n" || requests.Load() != 1 {
				t.Errorf("got %d %q after %d requests", res.StatusCode, b, requests.Load())
			}
		})
	}
}

func TestSequence(t *testing.T) {
	t.Run("H29 many transfers in sequence leave nothing behind", func(t *testing.T) {
		o := origin(t, func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		})
		r := newRig(t)
		r.put("a.example.test", o)
		c := r.client("h1")
		for range 100 {
			res, err := c.Post("https://a.example.test/", "text/plain", io.LimitReader(zeros{}, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if n := r.agent.Opened.Load(); n != 1 {
			t.Errorf("%d origin connections", n)
		}
		r.pool.close()
		eventually(t, "an empty pool", func() bool {
			r.pool.mu.Lock()
			defer r.pool.mu.Unlock()
			for _, rep := range r.pool.replicas {
				if rep.requests+len(rep.conns) > 0 {
					return false
				}
			}
			return len(r.pool.slots) == 0
		})
		eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
	})
}

func TestSlots(t *testing.T) {
	release := make(chan struct{})
	var running sync.WaitGroup
	o := origin(t, func(http.ResponseWriter, *http.Request) { running.Done(); <-release })
	r := newRig(t)
	r.put("a.example.test", h2c(o))
	var done sync.WaitGroup
	ask := func(c *http.Client, n int) {
		for range n {
			running.Add(1)
			done.Go(func() { get(t, c, "https://a.example.test/") })
		}
		running.Wait()
	}
	one := r.client("h2")
	ask(one, 1)
	ask(one, 19)
	if n := r.agent.Opened.Load(); n != 1 {
		t.Errorf("20 requests of one visitor use %d connections", n)
	}
	for range 9 {
		ask(r.client("h1"), 1)
	}
	if n := r.agent.Opened.Load(); n != 3 {
		t.Errorf("9 more visitors made it %d connections, want 3 (8 to one)", n)
	}
	close(release)
	done.Wait()
}
