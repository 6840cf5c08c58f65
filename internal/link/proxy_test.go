package link_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// connectProxy is an HTTP proxy that knows CONNECT and resolves every name to loopback.
type connectProxy struct {
	srv *httptest.Server
	wg  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, user, password string) *connectProxy {
	p := &connectProxy{}
	p.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		basic := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		if u, pw, _ := basic.BasicAuth(); r.Method != http.MethodConnect || u != user || pw != password {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		_, port, _ := net.SplitHostPort(r.Host)
		b, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		a, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(a, "HTTP/1.1 200 OK\r\n\r\n")
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		p.mu.Unlock()
		for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
			p.wg.Go(func() {
				_, _ = io.Copy(d[0], d[1])
				_ = d[0].Close()
				_ = d[1].Close()
			})
		}
	}))
	t.Cleanup(func() {
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.srv.Close()
		p.wg.Wait()
	})
	return p
}

func (p *connectProxy) url(user, password string) *url.URL {
	u, _ := url.Parse(p.srv.URL)
	u.User = url.UserPassword(user, password)
	return u
}

func timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
