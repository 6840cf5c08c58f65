package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestReplicas(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		t.Run("requests spread over replicas by what they do now: "+scheme, func(t *testing.T) {
			var running sync.WaitGroup
			release := make(chan struct{})
			o := strings.Replace(origin(t, func(http.ResponseWriter, *http.Request) { running.Done(); <-release }), "http", scheme, 1)
			r := newRig(t)
			r.put("a.example.test", o)
			r.replicate(2, o)
			c := r.client("h1")
			for round := range 2 {
				// In the second round both have idle connections, which are no load.
				var done sync.WaitGroup
				for range 12 {
					running.Add(1)
					done.Go(func() { get(t, c, "https://a.example.test/") })
					running.Wait()
				}
				r.pool.mu.Lock()
				for id, rep := range r.pool.replicas {
					if rep.requests != 6 {
						t.Errorf("round %d: %s has %d requests of 12", round, id, rep.requests)
					}
				}
				r.pool.mu.Unlock()
				close(release)
				done.Wait()
				eventually(t, "the end of the requests", func() bool {
					r.pool.mu.Lock()
					defer r.pool.mu.Unlock()
					n := 0
					for _, rep := range r.pool.replicas {
						n += rep.requests
					}
					return n == 0
				})
				release = make(chan struct{})
			}
			close(release)
		})
		t.Run("a replica that dies takes its own requests only: "+scheme, func(t *testing.T) {
			slow := make(chan struct{})
			var waiting atomic.Int32
			o := strings.Replace(origin(t, func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/slow" {
					waiting.Add(1)
					<-slow
				}
				fmt.Fprint(w, "ok")
			}), "http", scheme, 1)
			r := newRig(t)
			r.put("a.example.test", o)
			r.replicate(2, o)
			var failed, served atomic.Int32
			var done sync.WaitGroup
			for range 10 {
				c := r.client("h1")
				done.Go(func() {
					res, err := c.Post("https://a.example.test/slow", "text/plain", strings.NewReader("x"))
					if err != nil {
						t.Error(err)
						return
					}
					defer res.Body.Close()
					if res.StatusCode == 200 {
						served.Add(1)
					} else {
						failed.Add(1)
					}
				})
			}
			eventually(t, "all requests at the origin", func() bool { return waiting.Load() == 10 })
			r.source.Set(r.agents[0])
			r.agents[1].Kill()
			r.CloseReplica(r.agents[1].Name)
			c := r.client("h2")
			for range 20 {
				if res, b := get(t, c, "https://a.example.test/"); b != "ok" {
					t.Errorf("a new request got %d", res.StatusCode)
				}
			}
			close(slow)
			done.Wait()
			if failed.Load() == 0 || served.Load() == 0 || failed.Load() > 8 {
				t.Errorf("%d failed, %d served", failed.Load(), served.Load())
			}
		})
		t.Run("idle connections through a draining replica are given up: "+scheme, func(t *testing.T) {
			o := strings.Replace(origin(t, func(http.ResponseWriter, *http.Request) {}), "http", scheme, 1)
			r := newRig(t)
			r.put("a.example.test", o)
			r.replicate(1, o)
			get(t, r.client("h1"), "https://a.example.test/")
			eventually(t, "the end of its streams", func() bool {
				r.CloseReplica("r0")
				return r.agents[0].Active() == 0
			})
		})
	}
}

func TestBackPressure(t *testing.T) {
	// What may be on its way: windows of HTTP/2 or HTTP/3 and the kernel's buffers of two hops.
	const offered, bound = 256 << 20, 64 << 20
	for _, v := range versions {
		t.Run("H16 an origin that does not read holds the upload back: "+v, func(t *testing.T) {
			stop := make(chan struct{})
			o := origin(t, func(_ http.ResponseWriter, q *http.Request) { <-stop })
			r := newRig(t)
			r.put("a.example.test", o)
			var sent atomic.Int64
			body := counted{io.LimitReader(zeros{}, offered), &sent}
			done := make(chan struct{})
			c := r.client(v)
			go func() {
				defer close(done)
				res, err := c.Post("https://a.example.test/", "text/plain", body)
				if err == nil {
					res.Body.Close()
				}
			}()
			settled(t, &sent)
			if n := sent.Load(); n > bound {
				t.Errorf("%d MiB were taken from the visitor", n>>20)
			}
			close(stop)
			<-done
		})
		t.Run("H17 a visitor that does not read holds the download back: "+v, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var sent atomic.Int64
			o := origin(t, func(w http.ResponseWriter, q *http.Request) {
				_, _ = io.Copy(w, counted{io.LimitReader(zeros{}, offered), &sent})
			})
			r := newRig(t)
			r.put("a.example.test", o)
			res, err := r.client(v).Get("https://a.example.test/")
			if err != nil {
				t.Fatal(err)
			}
			settled(t, &sent)
			runtime.ReadMemStats(&after)
			if n := sent.Load(); n > bound {
				t.Errorf("%d MiB were taken from the origin", n>>20)
			}
			if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 32<<20 {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
			res.Body.Close()
		})
	}
}

type counted struct {
	r io.Reader
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// settled waits until n has not grown for a while.
func settled(t *testing.T, n *atomic.Int64) {
	t.Helper()
	last, still := int64(-1), 0
	eventually(t, "a standstill", func() bool {
		time.Sleep(10 * time.Millisecond)
		if now := n.Load(); now != last || now == 0 {
			last, still = now, 0
		} else {
			still++
		}
		return still > 15
	})
}

func TestContinue(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/refuse" {
			w.WriteHeader(413)
			return
		}
		b, _ := io.ReadAll(q.Body)
		fmt.Fprintf(w, "%s", b)
	})
	r := newRig(t)
	r.put("a.example.test", o)
	for path, want := range map[string]string{"/": "HTTP/1.1 100 Continue", "/refuse": "HTTP/1.1 413 Request Entity Too Large"} {
		c := r.dialTLS(t)
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: a.example.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", path)
		br := bufio.NewReader(c)
		line, err := br.ReadString('\n')
		if strings.TrimSpace(line) != want || err != nil {
			t.Errorf("%s: %q %v", path, line, err)
		}
		if path != "/" {
			continue
		}
		_, _ = br.ReadString('\n')
		fmt.Fprint(c, "body")
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(res.Body); string(b) != "body" {
			t.Errorf("%d %q", res.StatusCode, b)
		}
	}
}

func TestRefusedH2(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	_ = l.Close()
	r := newRig(t)
	r.put("a.example.test", "h2c://"+dead)
	for range 3 {
		if res, _ := get(t, r.client("h2"), "https://a.example.test/"); res.StatusCode != 502 || res.Header.Get("Adit-Error") != "origin_refused" {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
	}
	eventually(t, "three answers of 502 being counted", func() bool { return testutil.ToFloat64(r.metrics.requests.WithLabelValues("502")) == 3 })
}
