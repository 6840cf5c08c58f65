//go:build soak

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// paced lets at most so many bytes a second through.
type paced struct {
	io.Reader
	perSecond int
	start     time.Time
	n         int64
}

func (p *paced) Read(b []byte) (int, error) {
	if p.start.IsZero() {
		p.start = time.Now()
	}
	n, err := p.Reader.Read(b[:min(len(b), max(1, p.perSecond/20))])
	p.n += int64(n)
	due := time.Duration(float64(p.n) / float64(p.perSecond) * float64(time.Second))
	time.Sleep(time.Until(p.start.Add(due)))
	return n, err
}

// peakMemory watches server and agent until stop, which tells how much either rose at most.
func (r rig) peakMemory() (stop func() int64) {
	server, agent := r.RSS(), r.agent.RSS()
	var peak int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
				peak = max(peak, r.RSS()-server, r.agent.RSS()-agent)
			}
		}
	})
	return func() int64 { close(done); wg.Wait(); return peak }
}

// TestSlowAndLong has the transfers in full that TestHTTP and TestUploads have in small.
func TestSlowAndLong(t *testing.T) {
	need.Linux(t, "memory is read from /proc")
	m := http.NewServeMux()
	m.Handle("/", app())
	m.HandleFunc("/slow", func(w http.ResponseWriter, q *http.Request) {
		n, err := io.Copy(io.Discard, &paced{Reader: q.Body, perSecond: 1 << 20})
		fmt.Fprint(w, n, err)
	})
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{stack.HTTP("slow.localhost", "http://"+serveHTTP(t, m, false))}})
	client := func(protocol string) *http.Client {
		c := r.Client(protocol)
		c.Timeout = 0
		return c
	}
	post := func(protocol, path, kind string, body io.Reader, length int64) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL("slow.localhost", path), body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", kind)
		resp, err := client(protocol).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %q, %v", resp.Status, b, err)
		}
		return string(b)
	}
	t.Run("H17 1 GB to a visitor at 5 MB/s", func(t *testing.T) {
		const size = 1 << 30
		stop := r.peakMemory()
		resp, err := client("h1").Get(r.URL("slow.localhost", fmt.Sprint("/bytes?n=", size)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, &paced{Reader: resp.Body, perSecond: 5_000_000})
		if peak := stop(); err != nil || n != size || peak > 32<<20 {
			t.Errorf("%d bytes, %v; memory rose by %d MiB", n, err, peak>>20)
		}
	})
	t.Run("H16 500 MB to an origin that reads 1 MB/s", func(t *testing.T) {
		const size = 500 << 20
		stop, start := r.peakMemory(), time.Now()
		got := post("h1", "/slow", "application/octet-stream", io.LimitReader(zeros{}, size), -1)
		if peak := stop(); got != fmt.Sprint(size, "<nil>") && got != fmt.Sprint(size, " <nil>") || peak > 32<<20 {
			t.Errorf("%s; memory rose by %d MiB", got, peak>>20)
		}
		if d := time.Since(start); d < 8*time.Minute {
			t.Errorf("the upload took %s: the reader did not push back", d)
		}
	})
	t.Run("H18 2 GB by length, chunked and as a form", func(t *testing.T) {
		const size = 2 << 30
		want := fmt.Sprint(size, " ")
		if got := post("h1", "/sum", "application/octet-stream", io.LimitReader(zeros{}, size), size); got[:len(want)] != want {
			t.Errorf("by length: %s", got)
		}
		if got := post("h2", "/sum", "application/octet-stream", io.LimitReader(zeros{}, size), -1); got[:len(want)] != want {
			t.Errorf("chunked: %s", got)
		}
		var head bytes.Buffer
		w := multipart.NewWriter(&head)
		if _, err := w.CreateFormFile("file", "layer.tar"); err != nil {
			t.Fatal(err)
		}
		tail := "\r\n--" + w.Boundary() + "--\r\n"
		want = fmt.Sprint(size+int64(head.Len()+len(tail)), " ")
		got := post("h1", "/sum", w.FormDataContentType(), io.MultiReader(&head, io.LimitReader(zeros{}, size), bytes.NewReader([]byte(tail))), -1)
		if got[:len(want)] != want {
			t.Errorf("as a form: %s", got)
		}
	})
	t.Run("H20 honest and slow for 20 minutes", func(t *testing.T) {
		const size = 20 * 60 * 200_000
		got := post("h1", "/sum", "application/octet-stream", &paced{Reader: io.LimitReader(zeros{}, size), perSecond: 200_000}, size)
		if want := fmt.Sprint(size, " "); got[:len(want)] != want {
			t.Errorf("%s", got)
		}
	})
}
