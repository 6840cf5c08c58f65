package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// app is the origin that most HTTP tests visit.
func app() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello over %s from %s host %s\n", r.Proto, r.Header.Get("X-Forwarded-For"), r.Host)
	})
	m.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) { r.Header.Write(w) })
	m.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%d %x %d\n", n, h.Sum(nil), r.ContentLength)
	})
	m.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		var n int64
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		w.Header().Set("Content-Length", fmt.Sprint(n))
		io.CopyN(w, zeros{}, n)
	})
	m.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for i := range 5 {
			fmt.Fprintf(w, "data: %d %d\n\n", i, time.Now().UnixNano())
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	m.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
	})
	m.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(8 << 20)
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	return m
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestHTTP(t *testing.T) {
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{
		stack.HTTP("app.localhost", "http://"+serveHTTP(t, app(), false)),
		stack.HTTP("h2c.localhost", "h2c://"+serveHTTP(t, app(), true)),
		stack.HTTP("down.localhost", "http://127.0.0.1:1"),
		stack.HTTP("closed.localhost", "http://127.0.0.1:1").With("access", "protected"),
	}})
	t.Run("curl speaks HTTP/1.1", func(t *testing.T) { curlHello(t, r, "--http1.1", "app.localhost", "hello over HTTP/1.1") })
	t.Run("curl speaks HTTP/2", func(t *testing.T) { curlHello(t, r, "--http2", "app.localhost", "hello over HTTP/1.1") })
	t.Run("curl reaches an h2c origin", func(t *testing.T) { curlHello(t, r, "--http2", "h2c.localhost", "hello over HTTP/2.0") })
	t.Run("quic-go speaks HTTP/3", func(t *testing.T) { http3Hello(t, r) })
	t.Run("port 80 redirects", func(t *testing.T) {
		curl := need.Program(t, "curl")[0]
		out := run(t, nil, curl, "-sS", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "-H", "Host: app.localhost", "http://"+r.HTTP+"/a?b=c")
		if code, target, _ := strings.Cut(out, " "); (code != "301" && code != "308") || !strings.HasPrefix(target, "https://app.localhost") || !strings.HasSuffix(target, "/a?b=c") {
			t.Fatalf("redirect: %s", out)
		}
	})
	t.Run("a stopped origin is origin_refused", func(t *testing.T) { wantReason(t, r, "down.localhost", http.StatusBadGateway, "origin_refused") })
	t.Run("invariant 10 protected without a gate is access_denied", func(t *testing.T) { wantReason(t, r, "closed.localhost", http.StatusForbidden, "access_denied") })
	t.Run("an unknown name gets unrecognized_name", func(t *testing.T) {
		_, err := tls.Dial("tcp", r.HTTPS, &tls.Config{ServerName: "nobody.localhost", RootCAs: r.Roots()})
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("WebSocket with per-message compression", func(t *testing.T) { webSocket(t, r.Server, "app.localhost") })
	t.Run("H01 events arrive as written, over each protocol", func(t *testing.T) {
		for _, p := range []string{"h1", "h2"} {
			for _, method := range []string{"GET", "POST"} {
				events(t, r.Client(p), method, r.URL("app.localhost", "/events"))
			}
		}
	})
	t.Run("H05 trailers arrive", func(t *testing.T) {
		for _, p := range []string{"h1", "h2"} {
			for _, host := range []string{"app.localhost", "h2c.localhost"} {
				resp, err := r.Client(p).Get(r.URL(host, "/trailers"))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(body) != "body" || resp.Trailer.Get("X-Sum") != "42" {
					t.Errorf("%s %s: body %q, trailer %v", p, host, body, resp.Trailer)
				}
			}
		}
	})
	t.Run("H18 a large upload by length and chunked", func(t *testing.T) {
		uploads(t, r, 256<<20)
	})
	t.Run("H17 a large download leaves memory flat", func(t *testing.T) { flatDownload(t, r, 512<<20) })
}

func curlHello(t *testing.T, r rig, flag, host, want string) {
	curl := need.Program(t, "curl")[0]
	out := run(t, nil, curl, "-sS", "--fail-with-body", flag, "--cacert", r.CAFile(),
		"--resolve", host+":"+r.Port()+":127.0.0.1", "-w", "http %{http_version}", r.URL(host, "/hello"))
	version := map[string]string{"--http1.1": "http 1.1", "--http2": "http 2"}[flag]
	if !strings.Contains(out, want) || !strings.Contains(out, "from 127.0.0.1") || !strings.Contains(out, version) ||
		!strings.Contains(out, "host "+host+":"+r.Port()) {
		t.Fatalf("curl printed %q", out)
	}
}

func http3Hello(t *testing.T, r rig) {
	tr := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: r.Roots()},
		Dial: func(ctx context.Context, _ string, tc *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, r.HTTPS, tc, qc)
		},
	}
	defer tr.Close()
	client := &http.Client{Transport: tr, Timeout: 20 * time.Second}
	got, err := getOK(client, r.URL("app.localhost", "/hello"))
	if err != nil || !strings.Contains(got, "hello over") {
		t.Fatalf("%q %v", got, err)
	}
	body := randomBytes(t, 3<<20)
	resp, err := client.Post(r.URL("app.localhost", "/sum"), "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sum := sha256.Sum256(body)
	if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), hex.EncodeToString(sum[:])) {
		t.Fatalf("upload over HTTP/3: %s", text)
	}
}

// wantReason checks that page, header and status of an error say the same reason.
func wantReason(t *testing.T, r rig, host string, status int, code string) {
	t.Helper()
	req, err := http.NewRequest("GET", r.URL(host, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := r.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status || resp.Header.Get("Adit-Error") != code || !strings.Contains(string(body), code) ||
		resp.Header.Get("Adit-Request-Id") == "" {
		t.Fatalf("%s %v\n%s", resp.Status, resp.Header, body)
	}
}

func webSocket(t *testing.T, s *stack.Server, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+host+":"+s.Port()+"/ws", &websocket.DialOptions{
		HTTPClient: s.Client("h1"), CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	for _, size := range []int{1, 125, 126, 65536, 1 << 20} {
		msg := bytes.Repeat([]byte("adit "), size/5+1)[:size]
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			t.Fatal(err)
		}
		_, got, err := c.Read(ctx)
		if err != nil || !bytes.Equal(got, msg) {
			t.Fatalf("%d bytes: got %d, %v", size, len(got), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Fatal(err)
	}
}

// events wants each event soon after the origin wrote it, and not at the end all at once.
func events(t *testing.T, client *http.Client, method, url string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines, late := 0, 0
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		var i int
		var at int64
		if _, err := fmt.Sscanf(s.Text(), "data: %d %d", &i, &at); err != nil {
			continue
		}
		lines++
		// The writer pauses 200 ms: buffering would show as a delay of at least that.
		if time.Since(time.Unix(0, at)) > 150*time.Millisecond {
			late++
		}
	}
	if lines != 5 || late > 1 {
		t.Fatalf("%s %s: %d of 5 events, %d of them late", method, url, lines, late)
	}
}

func uploads(t *testing.T, r rig, size int64) {
	curl := need.Program(t, "curl")[0]
	file := filepath.Join(t.TempDir(), "body")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), zeros{}, size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	want := fmt.Sprintf("%d %x", size, h.Sum(nil))
	for name, extra := range map[string][]string{
		"by length": {"--http1.1", "-T", file},
		"chunked":   {"--http1.1", "-H", "Transfer-Encoding: chunked", "-T", file},
		"HTTP/2":    {"--http2", "-T", file},
	} {
		args := append([]string{"-sS", "--fail-with-body", "--cacert", r.CAFile(), "--resolve",
			"app.localhost:" + r.Port() + ":127.0.0.1", r.URL("app.localhost", "/sum")}, extra...)
		if out := run(t, nil, curl, args...); !strings.HasPrefix(out, want) {
			t.Errorf("%s: origin got %q, want %q", name, out, want)
		}
	}
}

func flatDownload(t *testing.T, r rig, size int64) {
	need.Linux(t, "resident memory is read from /proc")
	before := []int64{r.RSS(), r.agent.RSS()}
	resp, err := r.Client("h1").Get(r.URL("app.localhost", fmt.Sprintf("/bytes?n=%d", size)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got, peakServer, peakAgent int64
	buf := make([]byte, 1<<20)
	for {
		n, err := resp.Body.Read(buf)
		if next := got + int64(n); next>>25 != got>>25 {
			peakServer, peakAgent = max(peakServer, r.RSS()), max(peakAgent, r.agent.RSS())
		}
		got += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got != size {
		t.Fatalf("got %d of %d bytes", got, size)
	}
	const limit = 32 << 20
	if peakServer-before[0] > limit || peakAgent-before[1] > limit {
		t.Errorf("memory rose by %d MiB at the server, %d MiB at the agent", (peakServer-before[0])>>20, (peakAgent-before[1])>>20)
	}
}
