package load

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const short = 100 * time.Millisecond

func start(t *testing.T) *Origin {
	t.Helper()
	o, err := ListenOrigin("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { o.Serve(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	return o
}

func TestTCP(t *testing.T) {
	o := start(t)
	dial := TCP(o.TCP.Addr().String())
	for name, r := range map[string]Result{
		"download":       Bulk(t.Context(), dial, 2, short, false),
		"upload":         Bulk(t.Context(), dial, 2, short, true),
		"echo":           Echo(t.Context(), dial, 2, 128, short, false),
		"new connection": Echo(t.Context(), dial, 4, 128, short, true),
	} {
		if r.Failed != 0 || r.Rate == 0 {
			t.Errorf("%s: %+v", name, r)
		}
		if r.Seconds > 5 {
			t.Errorf("%s took %.1f s", name, r.Seconds)
		}
	}
}

// A record in front of the command is skipped, as a passthrough tunnel's origin must.
func TestOriginSkipsHello(t *testing.T) {
	o := start(t)
	c, err := net.Dial("tcp", o.TCP.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("\x16\x03\x01\x00\x05helloEhi")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if got, err := bufio.NewReader(c).ReadString('i'); err != nil || got != "hi" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHold(t *testing.T) {
	o := start(t)
	h := Hold(t.Context(), TCP(o.TCP.Addr().String()), 50)
	if h.Open() != 50 {
		t.Errorf("%d open", h.Open())
	}
	h.Exchange()
	h.Exchange()
	if failed, first := h.Close(); failed != 0 {
		t.Errorf("%d failed, first: %s", failed, first)
	}
}

func TestUDP(t *testing.T) {
	o := start(t)
	addr := o.UDP.LocalAddr().String()
	window, err := UDPWindow(addr, 1200, 4, short)
	if err != nil || window.Count == 0 || window.P50 <= 0 {
		t.Errorf("window: %+v, %v", window, err)
	}
	paced, err := UDPRate(addr, 200, 1000, short)
	if err != nil || paced.Count == 0 || paced.Count > 110 {
		t.Errorf("1000/s for %s: %+v, %v", short, paced, err)
	}
}

func TestHTTP(t *testing.T) {
	serve := func(body int, status int) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "a.example" {
				t.Errorf("host %q", r.Host)
			}
			w.WriteHeader(status)
			fmt.Fprint(w, strings.Repeat("x", body))
		}))
		t.Cleanup(s.Close)
		return s
	}
	for _, fresh := range []bool{false, true} {
		s := serve(BodySize, 200)
		conns := 0
		s.Config.ConnState = func(_ net.Conn, c http.ConnState) {
			if c == http.StateNew {
				conns++ // the server calls this from its accept loop alone
			}
		}
		s.Start()
		r := HTTP(t.Context(), TCP(s.Listener.Addr().String()), "a.example", 2, short, fresh)
		s.Close()
		if r.Failed != 0 || r.Count == 0 || r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("fresh=%v: %+v", fresh, r)
		}
		if want := map[bool]int{false: 2, true: int(r.Count)}[fresh]; conns != want {
			t.Errorf("fresh=%v: %d connections for %d requests", fresh, conns, r.Count)
		}
	}
	for name, s := range map[string]*httptest.Server{"status": serve(BodySize, 503), "body": serve(BodySize-1, 200)} {
		s.Start()
		if r := HTTP(t.Context(), TCP(s.Listener.Addr().String()), "a.example", 1, short, false); r.Count != 0 || r.Failed == 0 {
			t.Errorf("wrong %s: %+v", name, r)
		}
	}
	t.Run("TLS", func(t *testing.T) {
		s := serve(BodySize, 200)
		s.StartTLS()
		cfg := s.Client().Transport.(*http.Transport).TLSClientConfig
		dial := TLS(s.Listener.Addr().String(), "example.com", &tls.Config{RootCAs: cfg.RootCAs, NextProtos: []string{"http/1.1"}})
		if r := HTTP(t.Context(), dial, "a.example", 2, short, false); r.Failed != 0 || r.Count == 0 {
			t.Errorf("%+v", r)
		}
	})
}

// Where nothing answers, a run ends at its time and says why nothing was measured.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	if r := Echo(t.Context(), TCP(addr), 1, 8, short, true); r.Count != 0 || r.Failed == 0 || !strings.Contains(r.FirstErr, "refused") {
		t.Errorf("%+v", r)
	}
	if h := Hold(t.Context(), TCP(addr), 3); h.Open() != 0 {
		t.Errorf("%d open", h.Open())
	}
}
