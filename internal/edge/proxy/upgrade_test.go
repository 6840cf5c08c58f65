package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"
	xhttp2 "golang.org/x/net/http2"

	"github.com/adit-dev/adit/internal/edge/route"
)

// echoWS is an origin that sends WebSocket messages back.
func echoWS(t *testing.T, seen ...func(*http.Request)) string {
	return origin(t, func(w http.ResponseWriter, r *http.Request) {
		for _, f := range seen {
			f(r)
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{
			InsecureSkipVerify: true, CompressionMode: websocket.CompressionContextTakeover, Subprotocols: []string{"echo"},
		})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			typ, b, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if err := c.Write(context.Background(), typ, b); err != nil {
				return
			}
		}
	})
}

func (r *rig) ws(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	c, res, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{
		HTTPClient: r.client("h1"), CompressionMode: websocket.CompressionContextTakeover, Subprotocols: []string{"echo"},
	})
	if err != nil {
		t.Fatalf("%v %v", err, res)
	}
	c.SetReadLimit(-1)
	t.Cleanup(func() { _ = c.CloseNow() })
	return c
}

func echoes(t *testing.T, c *websocket.Conn, msg string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(ctx); err != nil || string(b) != msg {
		t.Fatalf("echo of %d bytes: %d bytes, %v", len(msg), len(b), err)
	}
}

func TestWebSocket(t *testing.T) {
	t.Run("H08 with logs, metrics, filters and limits in the way", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", echoWS(t))
		c := r.ws(t, "wss://a.example.test/x")
		if c.Subprotocol() != "echo" {
			t.Errorf("subprotocol %q", c.Subprotocol())
		}
		for _, n := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
			echoes(t, c, strings.Repeat("a", n))
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
		eventually(t, "a count", func() bool {
			return testutil.ToFloat64(r.metrics.requests.WithLabelValues("101")) == 1
		})
		eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
	})
	t.Run("H25 Connection is a list in any case", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", echoWS(t))
		for _, v := range []string{"keep-alive, Upgrade", "keep-alive,UPGRADE", "upgrade , foo"} {
			c := r.dialTLS(t)
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: %s\r\nUpgrade: WebSocket\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", v)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != 101 {
				t.Errorf("%q: %v %v", v, res, err)
			}
			_ = c.Close()
		}
	})
	t.Run("H27 Origin and Host reach the service", func(t *testing.T) {
		r := newRig(t)
		var host, from string
		r.put("a.example.test", echoWS(t, func(q *http.Request) { host, from = q.Host, q.Header.Get("Origin") }))
		c, _, err := websocket.Dial(t.Context(), "wss://a.example.test/", &websocket.DialOptions{
			HTTPClient: r.client("h1"), HTTPHeader: http.Header{"Origin": {"https://a.example.test"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.CloseNow()
		if host != "a.example.test" || from != "https://a.example.test" {
			t.Errorf("Host %q, Origin %q", host, from)
		}
	})
	t.Run("to an h2c origin over HTTP/1.1", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", h2c(echoWS(t)))
		echoes(t, r.ws(t, "wss://a.example.test/"), "hello")
	})
	t.Run("a refused upgrade is passed on", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", origin(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) }))
		_, res, err := websocket.Dial(t.Context(), "wss://a.example.test/", &websocket.DialOptions{HTTPClient: r.client("h1")})
		if err == nil || res.StatusCode != 418 {
			t.Errorf("%v %v", res, err)
		}
	})
}

func (r *rig) dialTLS(t *testing.T, protos ...string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", r.addr, &tls.Config{RootCAs: r.roots, ServerName: "a.example.test", NextProtos: protos})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSegmentation(t *testing.T) {
	// An origin that speaks raw bytes after the switch, in the pieces the test wants.
	pieces := make(chan []byte)
	o := rawUpgrade(t, "websocket", func(c net.Conn, _ *bufio.Reader) {
		for p := range pieces {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	})
	r := newRig(t)
	r.put("a.example.test", o)
	c, br := r.upgrade(t, "websocket")
	defer c.Close()
	frames := append(serverFrame(make([]byte, 300)), serverFrame(make([]byte, 70000))...)
	frames = append(frames, serverFrame([]byte("x"))...)
	t.Run("H15 one byte at a time", func(t *testing.T) {
		go func() {
			for _, b := range frames[:400] {
				pieces <- []byte{b}
			}
			pieces <- frames[400:]
		}()
		got := make([]byte, len(frames))
		if _, err := io.ReadFull(br, got); err != nil || !bytes.Equal(got, frames) {
			t.Errorf("bytes changed: %v", err)
		}
	})
	t.Run("H15 three frames at once", func(t *testing.T) {
		go func() { pieces <- frames }()
		got := make([]byte, len(frames))
		if _, err := io.ReadFull(br, got); err != nil || !bytes.Equal(got, frames) {
			t.Errorf("bytes changed: %v", err)
		}
	})
	close(pieces)
}

func serverFrame(payload []byte) []byte {
	b := []byte{0x82}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload...)
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x82, 1, 'x', 0x82, 126, 0, 2, 'a', 'b'}, uint8(1))
	f.Add(append(serverFrame(make([]byte, 70000)), 0x88, 0), uint8(7))
	f.Add([]byte{0x82, 0x81, 1, 2, 3, 4, 'x'}, uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		// Any segmentation finds the same frame ends.
		ends := func(size int) (out []int) {
			var fr frames
			for at := 0; at < len(b); {
				n, done := fr.next(b[at:min(len(b), at+size)])
				if n <= 0 || n > size {
					t.Fatalf("took %d of %d", n, size)
				}
				at += n
				if done {
					if !fr.between() {
						t.Fatal("a frame ended inside another")
					}
					out = append(out, at)
				}
			}
			return out
		}
		whole, pieces := ends(len(b)+1), ends(int(step)+1)
		if fmt.Sprint(whole) != fmt.Sprint(pieces) {
			t.Fatalf("ends %v, in pieces %v", whole, pieces)
		}
	})
}

// rawUpgrade is an origin that switches to protocol and then hands the connection to f.
func rawUpgrade(t *testing.T, protocol string, f func(net.Conn, *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				if _, err := http.ReadRequest(br); err != nil {
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
				f(c, br)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// upgrade asks for protocol over HTTP/1.1.
func (r *rig) upgrade(t *testing.T, protocol string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c := r.dialTLS(t)
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != protocol {
		t.Fatalf("%v %v", res, err)
	}
	return c, br
}

func TestOtherUpgrades(t *testing.T) {
	o := rawUpgrade(t, "foo", func(c net.Conn, br *bufio.Reader) { _, _ = io.Copy(c, br) })
	t.Run("H13 an unknown upgrade is tunnelled as bytes, half-close included", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		c, br := r.upgrade(t, "foo")
		data := make([]byte, 1<<20)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		go func() { _, _ = c.Write(data); _ = c.CloseWrite() }()
		got, err := io.ReadAll(br)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
	})
	t.Run("H13 bytes sent together with the request are not lost", func(t *testing.T) {
		r := newRig(t)
		r.put("a.example.test", o)
		c := r.dialTLS(t)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\nearly")
		br := bufio.NewReader(c)
		if _, err := http.ReadResponse(br, nil); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(br, got); err != nil || string(got) != "early" {
			t.Errorf("%q %v", got, err)
		}
	})
}

// extended opens an extended CONNECT over h2 or h3.
func (r *rig) extended(t *testing.T, version, protocol string) (*http.Response, *io.PipeWriter, error) {
	t.Helper()
	pr, pw := io.Pipe()
	t.Cleanup(func() { _ = pw.Close() })
	req, err := http.NewRequest(http.MethodConnect, "https://a.example.test/chat?x=1", pr)
	if err != nil {
		t.Fatal(err)
	}
	if version == "h2" {
		req.Header.Set(":protocol", protocol)
	} else {
		req.Proto = protocol
	}
	req.Header.Set("Sec-Websocket-Version", "13")
	req.Header.Set("Sec-Websocket-Protocol", "echo")
	var tr http.RoundTripper
	if version == "h2" { // net/http's own client refuses the header
		//nolint:staticcheck // what is advised instead cannot send the header
		h2 := &xhttp2.Transport{DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) {
			return r.dialTLS(t, "h2"), nil
		}}
		t.Cleanup(h2.CloseIdleConnections) //nolint:staticcheck // as above
		tr = h2
	} else {
		tr = r.client(version).Transport
	}
	res, err := tr.RoundTrip(req)
	if err == nil {
		t.Cleanup(func() { _ = res.Body.Close() })
	}
	return res, pw, err
}

func TestExtendedConnect(t *testing.T) {
	for _, v := range []string{"h2", "h3"} {
		t.Run("H13 a WebSocket over extended CONNECT: "+v, func(t *testing.T) {
			r := newRig(t)
			paths := make(chan string, 1)
			r.put("a.example.test", echoWS(t, func(q *http.Request) { paths <- q.RequestURI }))
			res, pw, err := r.extended(t, v, "websocket")
			if err != nil {
				t.Fatal(err)
			}
			if path := <-paths; res.StatusCode != 200 || res.Header.Get("Sec-Websocket-Protocol") != "echo" || res.Header.Get("Upgrade") != "" || path != "/chat?x=1" {
				t.Errorf("%d %v, path %s", res.StatusCode, res.Header, path)
			}
			for range 3 {
				_, _ = pw.Write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}) // masked with zeros
				got := make([]byte, 4)
				within(t, 2*time.Second, "the echo", func() {
					if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "\x81\x02hi" {
						t.Errorf("%q %v", got, err)
					}
				})
			}
			_, _ = pw.Write([]byte{0x88, 0x82, 0, 0, 0, 0, 3, 232}) // close 1000
			rest, err := io.ReadAll(res.Body)
			if err != nil || !bytes.HasPrefix(rest, []byte{0x88, 2, 3, 232}) {
				t.Errorf("close answered by %v, %v", rest, err)
			}
			eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
		})
		t.Run("H13 an origin that does not switch: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", origin(t, func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Query().Get("x") == "1" {
					fmt.Fprint(w, "a page")
				}
			}))
			res, _, err := r.extended(t, v, "websocket")
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != 502 || res.Header.Get("Adit-Error") != "origin_protocol" {
				t.Errorf("%d %v", res.StatusCode, res.Header)
			}
		})
		t.Run("H13 another protocol over extended CONNECT: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", rawUpgrade(t, "foo", func(c net.Conn, br *bufio.Reader) { _, _ = io.Copy(c, br) }))
			res, pw, err := r.extended(t, v, "foo")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = pw.Write([]byte("bytes"))
			got := make([]byte, 5)
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "bytes" || res.StatusCode != 200 {
				t.Errorf("%d %q %v", res.StatusCode, got, err)
			}
		})
	}
}

func TestExtendedConnectIsAnnounced(t *testing.T) {
	t.Run("H13 SETTINGS_ENABLE_CONNECT_PROTOCOL is in the server's SETTINGS", func(t *testing.T) {
		r := newRig(t)
		c := r.dialTLS(t, "h2")
		_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		var h [9]byte
		if _, err := io.ReadFull(c, h[:]); err != nil || h[3] != 4 {
			t.Fatalf("first frame %v %v", h, err)
		}
		b := make([]byte, int(h[0])<<16|int(h[1])<<8|int(h[2]))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		for ; len(b) >= 6; b = b[6:] {
			if binary.BigEndian.Uint16(b) == 8 && binary.BigEndian.Uint32(b[2:]) == 1 {
				return
			}
		}
		t.Error("it is not")
	})
}

func TestUpgradedLives(t *testing.T) {
	t.Run("H10 changes of other tunnels do not touch a WebSocket, its own removal closes it", func(t *testing.T) {
		r := newRig(t)
		o := echoWS(t)
		r.put("b.example.test", o)
		r.put("a.example.test", o)
		c := r.ws(t, "wss://a.example.test/")
		for i := range 50 {
			r.put(fmt.Sprintf("b%d.example.test", i%3), o)
			r.remove("b.example.test")
			r.CloseTunnel("t-b.example.test")
			echoes(t, c, "still here")
		}
		r.remove("a.example.test")
		go r.CloseTunnel("t-a.example.test")
		_, _, err := c.Read(t.Context())
		if websocket.CloseStatus(err) != websocket.StatusGoingAway {
			t.Errorf("closed with %v, want 1001", err)
		}
	})
	t.Run("H11 open WebSockets keep no old configuration", func(t *testing.T) {
		r := newRig(t)
		o := echoWS(t)
		r.put("a.example.test", o)
		freed := make(chan struct{})
		type table [1 << 20]byte
		current := &table{}
		runtime.SetFinalizer(current, func(*table) { close(freed) })
		lookup := r.cfg.Lookup
		r.cfg.Lookup = func(a netip.AddrPort, h string) *route.Rules { _ = current; return lookup(a, h) }
		c := r.ws(t, "wss://a.example.test/")
		echoes(t, c, "x")
		current = nil // the configuration changes
		r.cfg.Lookup = lookup
		eventually(t, "the old table's end", func() bool {
			runtime.GC()
			select {
			case <-freed:
				return true
			default:
				return false
			}
		})
		echoes(t, c, "x")
	})
	t.Run("H12 sockets reset from both sides leave no goroutine", func(t *testing.T) {
		r := newRig(t)
		o := rawUpgrade(t, "foo", func(c net.Conn, br *bufio.Reader) {
			b, _ := br.ReadByte()
			if b == 'r' {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
		})
		r.put("a.example.test", o)
		warm, _ := r.upgrade(t, "foo")
		_ = warm.Close()
		eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
		before := runtime.NumGoroutine()
		for range 300 {
			c, _ := r.upgrade(t, "foo")
			_, _ = c.Write([]byte("r"))
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.NetConn().Close()
		}
		eventually(t, "the baseline", func() bool { return runtime.NumGoroutine() <= before+2 && r.agent.Active() == 0 })
		if n := len(r.upgrades.set); n != 0 {
			t.Errorf("%d upgraded connections are still listed", n)
		}
	})
	t.Run("H09 draining tells WebSockets 1001, between two frames", func(t *testing.T) {
		r := newRig(t)
		half := make(chan struct{})
		o := rawUpgrade(t, "websocket", func(c net.Conn, br *bufio.Reader) {
			f := serverFrame(bytes.Repeat([]byte("a"), 1000))
			_, _ = c.Write(f[:500])
			<-half
			_, _ = c.Write(f[500:])
			_, _ = c.Write(serverFrame([]byte("never")))
			_, _ = io.Copy(io.Discard, br)
		})
		r.put("a.example.test", o)
		c, br := r.upgrade(t, "websocket")
		if _, err := br.Peek(500); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		drained := make(chan struct{})
		go func() { defer close(drained); r.Drain(ctx) }()
		eventually(t, "the drain", func() bool {
			r.upgrades.mu.Lock()
			defer r.upgrades.mu.Unlock()
			for u := range r.upgrades.set {
				u.mu.Lock()
				ending := u.ending
				u.mu.Unlock()
				return ending
			}
			return false
		})
		close(half)
		frame := make([]byte, 1004)
		if _, err := io.ReadFull(br, frame); err != nil {
			t.Fatal(err)
		}
		var head [4]byte
		if _, err := io.ReadFull(br, head[:]); err != nil || head[0] != 0x88 || binary.BigEndian.Uint16(head[2:]) != 1001 {
			t.Errorf("after the frame came %v, %v", head, err)
		}
		_ = c.Close()
		within(t, 3*time.Second, "the drain", func() { <-drained })
	})
	for _, v := range []string{"h1", "h2", "h3"} {
		t.Run("H09 a WebSocket whose agent ends is told 1001: "+v, func(t *testing.T) {
			r := newRig(t)
			r.put("a.example.test", echoWS(t))
			var from io.Reader
			if v == "h1" {
				c := r.dialTLS(t)
				fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
					"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
				br := bufio.NewReader(c)
				if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 101 {
					t.Fatalf("%v %v", res, err)
				}
				from = br
			} else {
				res, _, err := r.extended(t, v, "websocket")
				if err != nil || res.StatusCode != 200 {
					t.Fatalf("%v %v", res, err)
				}
				from = res.Body
			}
			r.agent.Kill()
			within(t, 3*time.Second, "the close frame", func() {
				var head [4]byte
				if _, err := io.ReadFull(from, head[:]); err != nil || head[0] != 0x88 || binary.BigEndian.Uint16(head[2:]) != 1001 {
					t.Errorf("%v %v", head, err)
				}
			})
		})
	}
	t.Run("draining does not wait for a visitor that takes nothing", func(t *testing.T) {
		r := newRig(t)
		var sent atomic.Int64
		r.put("a.example.test", rawUpgrade(t, "websocket", func(c net.Conn, _ *bufio.Reader) {
			for {
				if _, err := c.Write(serverFrame(make([]byte, 60000))); err != nil {
					return
				}
				sent.Add(1)
			}
		}))
		c, _ := r.upgrade(t, "websocket")
		defer c.Close()
		settled(t, &sent) // all buffers are full
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		within(t, 4*time.Second, "the drain", func() { r.Drain(ctx) })
		eventually(t, "no stream", func() bool { return r.agent.Active() == 0 })
	})
}

func TestManySockets(t *testing.T) {
	r := newRig(t)
	r.put("a.example.test", echoWS(t))
	var wg sync.WaitGroup
	var failed atomic.Int32
	for i := range 50 {
		wg.Go(func() {
			c, _, err := websocket.Dial(context.Background(), "wss://a.example.test/", &websocket.DialOptions{
				HTTPClient: r.client("h1"), CompressionMode: websocket.CompressionContextTakeover,
			})
			if err != nil {
				failed.Add(1)
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(-1)
			for j := range 20 {
				msg := strings.Repeat(fmt.Sprint(i, j), 1+j*50)
				err := c.Write(context.Background(), websocket.MessageText, []byte(msg))
				_, b, rerr := c.Read(context.Background())
				if errors.Join(err, rerr) != nil || string(b) != msg {
					failed.Add(1)
					return
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() != 0 {
		t.Errorf("%d of 50 failed", failed.Load())
	}
}
