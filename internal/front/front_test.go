package front

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"github.com/adit-dev/adit/internal/datagram"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority makes leaf certificates for the tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, cert: cert, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func (a *authority) leaf(name string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Names in the tests: own.test is ours, p.test passes through to whom the test says, q.test is
// terminated, other.edge is another edge's.
type rig struct {
	*Front
	ca   *authority
	addr string
	served,
	passed atomic.Int64
}

const secret = "adit/1"

func start(t *testing.T, cfg Config, change func(*rig, *Roles)) *rig {
	t.Helper()
	if cfg.ListenHTTPS == "" {
		cfg.ListenHTTPS = "127.0.0.1:0"
	}
	f, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Front: f, ca: newAuthority(t), addr: f.HTTPSAddr().String()}
	id, err := r.ca.leaf("identity")
	if err != nil {
		t.Fatal(err)
	}
	roles := Roles{
		Own: func(n string) bool { return n == "own.test" },
		Tunnel: func(_ netip.AddrPort, n string) *Tunnel {
			switch n {
			case "q.test":
				return &Tunnel{}
			case "p.test":
				return &Tunnel{Passthrough: func(_ context.Context, c *Conn) {
					r.passed.Add(1)
					// The origin: ends TLS itself and says who was asked for.
					cert, err := r.ca.leaf("p.test")
					if err != nil {
						return
					}
					tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "foo", alpnACME, secret}})
					if tc.Handshake() == nil {
						fmt.Fprintf(tc, "origin %s", c.ServerName)
						_ = tc.CloseWrite()
					}
				}}
			}
			return nil
		},
		Protocols: []Protocol{{
			ALPN: secret,
			TLS:  &tls.Config{Certificates: []tls.Certificate{*id}, NextProtos: []string{secret}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13},
			TCP:  func(_ context.Context, c *tls.Conn) { _, _ = io.WriteString(c, "session"); _ = c.Close() },
			QUIC: func(ctx context.Context, c *quic.Conn, _ *datagram.Carrier) {
				if s, err := c.OpenUniStream(); err == nil {
					_, _ = io.WriteString(s, "session")
					_ = s.Close()
				}
				select {
				case <-c.Context().Done():
				case <-ctx.Done():
				}
			},
		}},
		Certificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return r.ca.leaf(h.ServerName) },
		HTTP: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.served.Add(1)
			local, _ := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
			fmt.Fprintf(w, "%s %s %s %v", req.Proto, req.Host, req.RemoteAddr, local)
		}),
		PlainHTTP: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "plain %s", req.RemoteAddr) }),
	}
	if change != nil {
		change(r, &roles)
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(context.Background(), roles) }()
	t.Cleanup(func() {
		_ = f.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := f.Conns().Total(); n != 0 {
			t.Errorf("%d places under the caps were not given back", n)
		}
	})
	return r
}

func (r *rig) client(name string, protos ...string) *tls.Config {
	c := &tls.Config{ServerName: name, RootCAs: r.ca.pool, NextProtos: protos}
	if name == "" {
		c.InsecureSkipVerify = true
	}
	return c
}

// ask dials name and returns what comes until the end.
func (r *rig) ask(name string, protos ...string) (string, error) {
	c, err := tls.Dial("tcp", r.addr, r.client(name, protos...))
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

func (r *rig) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: r.ca.pool},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
		},
	}
}

func get(t *testing.T, rt http.RoundTripper, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func wantAlert(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("got %v, want the alert unrecognized_name", err)
	}
}

func TestWhoGetsAConnection(t *testing.T) {
	var other atomic.Int64
	r := start(t, Config{}, func(_ *rig, roles *Roles) {
		roles.OtherEdge = func(_ context.Context, c *Conn) bool {
			if c.ServerName != "other.edge" {
				return false
			}
			other.Add(1)
			_ = c.Close()
			return true
		}
	})
	t.Run("a tls tunnel takes everything under its name, whatever the ALPN", func(t *testing.T) {
		for _, protos := range [][]string{nil, {"h2"}, {"foo"}, {alpnACME}, {secret}} {
			if got, err := r.ask("p.test", protos...); err != nil || got != "origin p.test" {
				t.Errorf("%v: %q, %v", protos, got, err)
			}
		}
	})
	t.Run("a terminated tunnel takes HTTP only", func(t *testing.T) {
		tr := r.transport()
		defer tr.CloseIdleConnections()
		resp, body := get(t, tr, "https://q.test/")
		if resp.ProtoMajor != 2 || !strings.HasPrefix(body, "HTTP/2.0 q.test 127.0.0.1:") {
			t.Errorf("%s: %q", resp.Proto, body)
		}
		if got := resp.Header.Get("Alt-Svc"); got != `h3=":443"; ma=86400` {
			t.Errorf("Alt-Svc %q", got)
		}
		if _, err := r.ask("q.test", "foo"); err == nil || !strings.Contains(err.Error(), "no application protocol") {
			t.Errorf("foreign ALPN: %v", err)
		}
	})
	t.Run("HTTP/1.1 without ALPN", func(t *testing.T) {
		tr := &http.Transport{TLSClientConfig: r.client("q.test"), DialContext: r.transport().DialContext}
		defer tr.CloseIdleConnections()
		if resp, body := get(t, tr, "https://q.test:8443/"); resp.ProtoMajor != 1 || resp.Header.Get("Alt-Svc") != `h3=":8443"; ma=86400` {
			t.Errorf("%s %q %v", resp.Proto, body, resp.Header)
		}
	})
	t.Run("our protocol on our name and without a name", func(t *testing.T) {
		for _, name := range []string{"", "own.test"} {
			c := r.client(name, secret)
			c.InsecureSkipVerify = true
			conn, err := tls.Dial("tcp", r.addr, c)
			if err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(conn); string(b) != "session" {
				t.Errorf("%q: %q", name, b)
			}
			_ = conn.Close()
		}
	})
	t.Run("visitors' HTTP on our name", func(t *testing.T) {
		tr := r.transport()
		defer tr.CloseIdleConnections()
		if _, body := get(t, tr, "https://own.test/"); !strings.Contains(body, "own.test") {
			t.Errorf("%q", body)
		}
	})
	t.Run("acme-tls/1 on a name we serve ends after the handshake", func(t *testing.T) {
		if got, err := r.ask("q.test", alpnACME); err != nil || got != "" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("unrecognized_name for everything else", func(t *testing.T) {
		for _, c := range []struct{ name, proto string }{{"nobody.test", "h2"}, {"", "h2"}, {"", ""}, {"nobody.test", secret}, {"xp.test", ""}, {"p.test.x", ""}} {
			var protos []string
			if c.proto != "" {
				protos = []string{c.proto}
			}
			_, err := r.ask(c.name, protos...)
			wantAlert(t, err)
		}
	})
	t.Run("another edge's name", func(t *testing.T) {
		_, _ = r.ask("other.edge", secret)
		if other.Load() != 1 {
			t.Error("was not offered to the other edge")
		}
		_, err := r.ask("other.edge", "h2")
		wantAlert(t, err)
	})
}

// rawHello is the first flight of a client for name.
func rawHello(t *testing.T, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); _ = tls.Client(a, cfg).Handshake() }()
	buf := make([]byte, 64<<10)
	n, err := b.Read(buf)
	_, _ = a.Close(), b.Close()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// splitter sends a client's first flight in two segments of two TLS records.
type splitter struct {
	net.Conn
	records bool
	done    bool
}

func (s *splitter) Write(b []byte) (int, error) {
	if s.done {
		return s.Conn.Write(b)
	}
	s.done = true
	first, second := b[:20], b[20:]
	if s.records {
		body := b[5:]
		rec := func(p []byte) []byte { return append([]byte{22, 3, 1, byte(len(p) >> 8), byte(len(p))}, p...) }
		first, second = rec(body[:40]), rec(body[40:])
	}
	if _, err := s.Conn.Write(first); err != nil {
		return 0, err
	}
	time.Sleep(20 * time.Millisecond) // two segments, whatever the kernel merges
	if _, err := s.Conn.Write(second); err != nil {
		return 0, err
	}
	return len(b), nil
}

func TestSharedPort(t *testing.T) {
	r := start(t, Config{HelloTimeout: 300 * time.Millisecond}, nil)
	var many []string
	for i := range 40 {
		many = append(many, strings.Repeat(string(rune('a'+i%26)), 100))
	}
	both := func(t *testing.T, wrap func(net.Conn) net.Conn, protos ...string) {
		for _, name := range []string{"p.test", "q.test"} {
			raw, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(wrap(raw), r.client(name, protos...))
			if err := c.Handshake(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			_ = c.Close()
		}
	}
	plain := func(c net.Conn) net.Conn { return c }
	t.Run("D16 hello split over two segments", func(t *testing.T) {
		both(t, func(c net.Conn) net.Conn { return &splitter{Conn: c} }, "h2")
	})
	t.Run("D16 hello split over two TLS records", func(t *testing.T) {
		both(t, func(c net.Conn) net.Conn { return &splitter{Conn: c, records: true} }, "h2")
	})
	t.Run("D16 hello of 4 KB", func(t *testing.T) { both(t, plain, append(many, "h2")...) })
	t.Run("D16 without SNI", func(t *testing.T) { _, err := r.ask(""); wantAlert(t, err) })
	t.Run("D16 a silent client is closed at the deadline", func(t *testing.T) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 3*time.Second {
			t.Errorf("still open after %v: %v", time.Since(begin), err)
		}
	})
	t.Run("D16 half a hello is closed at the deadline", func(t *testing.T) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		h := rawHello(t, &tls.Config{ServerName: "p.test"})
		_, _ = c.Write(h[:len(h)/2])
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("still open: %v", err)
		}
	})
	t.Run("D16 a hello over the size cap is closed", func(t *testing.T) {
		if _, err := r.ask("p.test", append(many, slicesRepeat(strings.Repeat("x", 250), 60)...)...); err == nil {
			t.Error("was served")
		}
	})
	t.Run("plain HTTP is closed", func(t *testing.T) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: q.test\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if b, err := io.ReadAll(c); len(b) != 0 {
			t.Errorf("answered %q, %v", b, err)
		}
	})
}

func slicesRepeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func TestQUIC(t *testing.T) {
	r := start(t, Config{}, nil)
	tr := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: r.ca.pool}, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return quic.DialAddr(ctx, r.addr, c, q)
	}}
	defer tr.Close()
	t.Run("HTTP/3 on a terminated tunnel", func(t *testing.T) {
		resp, body := get(t, tr, "https://q.test/")
		if resp.ProtoMajor != 3 || !strings.HasPrefix(body, "HTTP/3.0 q.test 127.0.0.1:") || !strings.HasSuffix(body, " "+r.addr) {
			t.Errorf("%s %q", resp.Proto, body)
		}
	})
	dial := func(t *testing.T, name, proto string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := quic.DialAddr(ctx, r.addr, &tls.Config{ServerName: name, RootCAs: r.ca.pool, NextProtos: []string{proto}, InsecureSkipVerify: proto == secret}, nil)
		if err != nil {
			return err
		}
		defer func() { _ = c.CloseWithError(0, "") }()
		if proto == secret {
			s, err := c.AcceptUniStream(ctx)
			if err != nil {
				return err
			}
			if b, err := io.ReadAll(s); string(b) != "session" {
				return fmt.Errorf("read %q: %w", b, err)
			}
		}
		return nil
	}
	t.Run("sessions on our name and without one", func(t *testing.T) {
		for _, name := range []string{"", "own.test"} {
			if err := dial(t, name, secret); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
	t.Run("D16 unrecognized_name for tls tunnels and strangers, so that browsers go to TCP", func(t *testing.T) {
		for _, c := range [][2]string{{"p.test", "h3"}, {"nobody.test", "h3"}, {"", "h3"}, {"nobody.test", secret}} {
			err := dial(t, c[0], c[1])
			var te *quic.TransportError
			if !errors.As(err, &te) || te.ErrorCode != 0x100+112 {
				t.Errorf("%v: %v", c, err)
			}
		}
	})
}

func TestExtendedConnectIsOn(t *testing.T) {
	r := start(t, Config{}, nil)
	c, err := tls.Dial("tcp", r.addr, r.client("q.test", "h2"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	f, err := fr.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := f.(*http2.SettingsFrame).Value(http2.SettingEnableConnectProtocol); !ok || v != 1 {
		t.Errorf("SETTINGS_ENABLE_CONNECT_PROTOCOL is %d, %v; WebSockets over HTTP/2 need it", v, ok)
	}
}
