package origin

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"go.uber.org/goleak"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dialer(t *testing.T, cfg Config) *Dialer {
	t.Helper()
	cfg.Getenv = laptop
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// listen serves each connection of a loopback listener with serve.
func listen(t *testing.T, addr string, serve func(net.Conn)) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr)
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func spec(scheme, host string, a *net.TCPAddr) *Spec {
	return &Spec{Scheme: scheme, Host: host, Port: uint16(a.Port), Declared: true}
}

func roundTrip(t *testing.T, c *Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil || string(b) != "hello" {
		t.Fatalf("got %q, %v, want the echo", b, err)
	}
}

func TestLocalhost(t *testing.T) {
	t.Run("T28 localhost with the service on IPv4 only", func(t *testing.T) {
		a := listen(t, "127.0.0.1:0", echo)
		c, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeHTTP, "localhost", a), &wirev1.StreamHeader{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		roundTrip(t, c)
	})
	t.Run("T28 localhost with the service on IPv6 only", func(t *testing.T) {
		need.Kernel(t, need.IPv6)
		a := listen(t, "[::1]:0", echo)
		start := time.Now()
		c, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeHTTP, "app.localhost", a), &wirev1.StreamHeader{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if d := time.Since(start); d > headStart/2 {
			t.Errorf("took %v: a refusal must start the other family at once", d)
		}
		roundTrip(t, c)
	})
	t.Run("T28 the error lists each attempt", func(t *testing.T) {
		_, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeHTTP, "localhost", free(t)), &wirev1.StreamHeader{})
		var e *reason.Error
		if !errors.As(err, &e) || e.Code != reason.OriginRefused || !e.Untouched {
			t.Fatalf("got %v, want origin_refused, untouched", err)
		}
		for _, want := range []string{"127.0.0.1:", "[::1]:"} {
			if !strings.Contains(e.Detail, want) {
				t.Errorf("%q lacks %q", e.Detail, want)
			}
		}
	})
}

// free is a port that refuses.
func free(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr)
}

// blackHole is a listener whose backlog is full: the kernel drops further SYNs.
func blackHole(t *testing.T) *net.TCPAddr {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	a := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*syscall.SockaddrInet4).Port}
	for range 8 {
		c, err := net.DialTimeout("tcp", a.String(), 200*time.Millisecond)
		if err != nil {
			return a
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the backlog does not fill")
	return nil
}

func TestDialTimeout(t *testing.T) {
	hole := blackHole(t)
	t.Run("D03 a black-holed target ends at the dial timeout", func(t *testing.T) {
		start := time.Now()
		_, err := dialer(t, Config{Timeout: 400 * time.Millisecond}).Dial(t.Context(), spec(SchemeTCP, "127.0.0.1", hole), &wirev1.StreamHeader{})
		if !reason.Is(err, reason.OriginTimeout) {
			t.Fatalf("got %v, want origin_timeout", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("took %v", d)
		}
	})
	t.Run("D03 the defaults are 5 s and 30 s", func(t *testing.T) {
		if d := dialer(t, Config{}); d.cfg.Timeout != 5*time.Second || d.cfg.KeepAlive != 30*time.Second {
			t.Errorf("timeout %v, keep-alive %v", d.cfg.Timeout, d.cfg.KeepAlive)
		}
	})
	t.Run("D03 an idle target is kept alive", func(t *testing.T) {
		a := listen(t, "127.0.0.1:0", echo)
		c, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeTCP, "127.0.0.1", a), &wirev1.StreamHeader{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		raw, err := c.raw.tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var on, idle int
		_ = raw.Control(func(fd uintptr) {
			on, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
			idle, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		})
		if on != 1 || idle != 30 {
			t.Errorf("SO_KEEPALIVE %d, TCP_KEEPIDLE %d, want 1, 30", on, idle)
		}
	})
	t.Run("a black-holed address does not hold up the next one", func(t *testing.T) {
		live, err := net.Listen("tcp", "127.0.0.2:"+itoa(hole.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = live.Close() }()
		d := dialer(t, Config{Lookup: func(context.Context, string) ([]net.IPAddr, error) {
			return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}, {IP: net.IPv4(127, 0, 0, 2)}}, nil
		}})
		c, err := d.Dial(t.Context(), spec(SchemeTCP, "two.example", hole), &wirev1.StreamHeader{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if got := c.RemoteAddr().String(); !strings.HasPrefix(got, "127.0.0.2:") {
			t.Errorf("connected to %s", got)
		}
	})
	t.Run("a visitor that left ends the dial at once", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		start := time.Now()
		_, err := dialer(t, Config{}).Dial(ctx, spec(SchemeTCP, "127.0.0.1", hole), &wirev1.StreamHeader{})
		if !reason.Is(err, reason.ClientClosed) || time.Since(start) > 2*time.Second {
			t.Errorf("got %v after %v, want client_closed at once", err, time.Since(start))
		}
	})
}

func itoa(n int) string { return big.NewInt(int64(n)).String() }

func TestUnresolved(t *testing.T) {
	for name, lookup := range map[string]func(context.Context, string) ([]net.IPAddr, error){
		"not found": func(_ context.Context, h string) ([]net.IPAddr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: h, IsNotFound: true}
		},
		"no address": func(context.Context, string) ([]net.IPAddr, error) { return nil, nil },
		"DNS silent": func(ctx context.Context, _ string) ([]net.IPAddr, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			d := dialer(t, Config{Lookup: lookup, Timeout: 200 * time.Millisecond})
			_, err := d.Dial(t.Context(), &Spec{Scheme: SchemeTCP, Host: "gone.example", Port: 1}, &wirev1.StreamHeader{})
			var e *reason.Error
			if !errors.As(err, &e) || e.Code != reason.OriginUnresolved || !strings.Contains(e.Detail, "gone.example") {
				t.Errorf("got %v, want origin_unresolved that names the host", err)
			}
		})
	}
}

// authority is a CA for tests, with one leaf.
func authority(t *testing.T, name string) (ca []byte, leaf tls.Certificate) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey, leafKey := key(), key()
	caTmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, caTmpl, caTmpl, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	leafTmpl := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	leafDER, err := x509.CreateCertificate(rand.Reader, leafTmpl, caTmpl, leafKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
}

func TestTLSOrigins(t *testing.T) {
	ca, leaf := authority(t, "app.internal")
	server := &tls.Config{Certificates: []tls.Certificate{leaf}, NextProtos: []string{"h2", "http/1.1"}}
	secure := listen(t, "127.0.0.1:0", func(c net.Conn) {
		tc := tls.Server(c, server)
		echo(tc)
		_ = tc.Close()
	})
	speaksFirst := listen(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-test\r\n"); _, _ = io.Copy(io.Discard, c) })
	closes := listen(t, "127.0.0.1:0", func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	silent := listen(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })

	named := func(s *Spec, name string) *Spec { s.ServerName = name; return s }
	for _, c := range []struct {
		name string
		spec *Spec
		ca   []byte
		alpn []string
		want string // ALPN
		code reason.Code
		text string
	}{
		{"agreed ALPN comes back", named(spec(SchemeHTTPS, "127.0.0.1", secure), "app.internal"), ca, []string{"h2", "http/1.1"}, "h2", "", ""},
		{"one offer", named(spec(SchemeHTTPS, "127.0.0.1", secure), "app.internal"), ca, []string{"http/1.1"}, "http/1.1", "", ""},
		{"tls scheme without an offer", named(spec(SchemeTLS, "127.0.0.1", secure), "app.internal"), ca, nil, "", "", ""},
		{"no verification where asked", &Spec{Scheme: SchemeHTTPS, Host: "127.0.0.1", Port: uint16(secure.Port), InsecureSkipVerify: true}, nil, nil, "", "", ""},
		{"unknown authority", named(spec(SchemeHTTPS, "127.0.0.1", secure), "app.internal"), nil, nil, "", reason.OriginTLS, "--origin-ca-file"},
		{"another name", named(spec(SchemeHTTPS, "127.0.0.1", secure), "other.internal"), ca, nil, "", reason.OriginTLS, "set origin_server_name"},
		{"address not in the certificate", spec(SchemeHTTPS, "127.0.0.1", secure), ca, nil, "", reason.OriginTLS, "set origin_server_name"},
		{"no common protocol", named(spec(SchemeHTTPS, "127.0.0.1", secure), "app.internal"), ca, []string{"spdy/1"}, "", reason.OriginTLS, "refused the TLS handshake"},
		{"clear text that speaks first", spec(SchemeTLS, "127.0.0.1", speaksFirst), ca, nil, "", reason.OriginTLS, "answered in clear text, not TLS; if that is right, write the origin as tcp://127.0.0.1"},
		{"closes during the handshake", spec(SchemeHTTPS, "127.0.0.1", closes), ca, nil, "", reason.OriginTLS, "closed the connection during the TLS handshake"},
		{"silent", spec(SchemeHTTPS, "127.0.0.1", silent), ca, nil, "", reason.OriginTimeout, "does it speak TLS on this port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{RootsPEM: c.ca}
			if c.code == reason.OriginTimeout {
				cfg.Timeout = 300 * time.Millisecond
			}
			conn, err := dialer(t, cfg).Dial(t.Context(), c.spec, &wirev1.StreamHeader{Alpn: c.alpn})
			if c.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				if conn.ALPN != c.want {
					t.Errorf("ALPN %q, want %q", conn.ALPN, c.want)
				}
				roundTrip(t, conn)
				return
			}
			var e *reason.Error
			if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Detail, c.text) {
				t.Errorf("got %v, want %s with %q", err, c.code, c.text)
			}
		})
	}
	t.Run("CA file without certificates", func(t *testing.T) {
		if _, err := New(Config{RootsPEM: []byte("x")}); err == nil {
			t.Error("accepted")
		}
	})
}

func TestClearTextHTTP(t *testing.T) {
	a := listen(t, "127.0.0.1:0", func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server")
	})
	_, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeHTTPS, "127.0.0.1", a), &wirev1.StreamHeader{})
	var e *reason.Error
	if !errors.As(err, &e) || e.Code != reason.OriginTLS || !strings.Contains(e.Detail, "write the origin as http://127.0.0.1:"+itoa(a.Port)) {
		t.Errorf("got %v, want origin_tls with the remedy http://", err)
	}
}

func TestProxyHeader(t *testing.T) {
	type seen struct {
		header *proxyproto.Header
		rest   string
		first  int // bytes of the first segment
	}
	results := make(chan seen, 1)
	record := func(c net.Conn) {
		buf := make([]byte, 4096)
		n, _ := c.Read(buf)
		r := bufio.NewReader(io.MultiReader(strings.NewReader(string(buf[:n])), c))
		h, err := proxyproto.Read(r)
		if err != nil {
			t.Errorf("no PROXY header in %q: %v", buf[:n], err)
		}
		rest, _ := io.ReadAll(r)
		results <- seen{h, string(rest), n}
	}
	for _, c := range []struct {
		name         string
		version      byte
		kind         wirev1.Kind
		visitor      string
		edge         string
		wantVisitor  string
		wantCoalesce bool
	}{
		{"I07 v1 to a passthrough origin", 1, wirev1.Kind_KIND_TLS, "203.0.113.9:4711", "192.0.2.1:443", "203.0.113.9:4711", true},
		{"I07 v2 to a passthrough origin", 2, wirev1.Kind_KIND_TLS, "203.0.113.9:4711", "192.0.2.1:443", "203.0.113.9:4711", true},
		{"I07 v1 to a TCP origin", 1, wirev1.Kind_KIND_TCP, "[2001:db8::9]:4711", "[2001:db8::1]:22", "[2001:db8::9]:4711", false},
		{"I07 v2 to a TCP origin", 2, wirev1.Kind_KIND_TCP, "[2001:db8::9]:4711", "[2001:db8::1]:22", "[2001:db8::9]:4711", false},
		{"I07 v2 with mapped addresses", 2, wirev1.Kind_KIND_TCP, "[::ffff:203.0.113.9]:4711", "192.0.2.1:22", "203.0.113.9:4711", false},
		{"I07 v2 over two families", 2, wirev1.Kind_KIND_TCP, "203.0.113.9:4711", "[2001:db8::1]:22", "203.0.113.9:4711", false},
		{"I07 v1 over two families", 1, wirev1.Kind_KIND_TCP, "203.0.113.9:4711", "[2001:db8::1]:22", "203.0.113.9:4711", false},
		{"I10 v2 without an address", 2, wirev1.Kind_KIND_TCP, "@", "192.0.2.1:22", "", false},
		{"I10 v1 without an address", 1, wirev1.Kind_KIND_TCP, "", "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := listen(t, "127.0.0.1:0", record)
			s := spec(SchemeTCP, "127.0.0.1", a)
			s.Proxy = c.version
			conn, err := dialer(t, Config{}).Dial(t.Context(), s, &wirev1.StreamHeader{Kind: c.kind, VisitorAddress: c.visitor, EdgeAddress: c.edge})
			if err != nil {
				t.Fatal(err)
			}
			if !c.wantCoalesce && conn.raw.head != nil {
				t.Error("the header waits for payload, but the server may speak first")
			}
			if n, err := conn.Write([]byte("payload")); n != 7 || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}
			_ = conn.CloseWrite()
			got := <-results
			_ = conn.Close()
			if got.header == nil {
				return
			}
			if got.header.Version != c.version || got.rest != "payload" {
				t.Errorf("version %d, rest %q", got.header.Version, got.rest)
			}
			src, _, ok := got.header.TCPAddrs()
			switch {
			case c.wantVisitor == "" && ok:
				t.Errorf("source %v, want none", src)
			case c.wantVisitor != "" && (!ok || src.String() != c.wantVisitor):
				t.Errorf("source %v, want %s", src, c.wantVisitor)
			}
			if c.wantCoalesce && got.first <= len("payload") {
				t.Errorf("the first segment has %d bytes: header and payload came apart", got.first)
			}
		})
	}
	t.Run("I07 v2 header goes before the agent's own TLS", func(t *testing.T) {
		ca, leaf := authority(t, "app.internal")
		a := listen(t, "127.0.0.1:0", func(c net.Conn) {
			r := bufio.NewReader(c)
			h, err := proxyproto.Read(r)
			if err != nil || h.SourceAddr.String() != "203.0.113.9:4711" {
				t.Errorf("header %v, %v", h, err)
			}
			echo(tls.Server(&buffered{c, r}, &tls.Config{Certificates: []tls.Certificate{leaf}}))
		})
		s := spec(SchemeHTTPS, "127.0.0.1", a)
		s.Proxy, s.ServerName = 2, "app.internal"
		conn, err := dialer(t, Config{RootsPEM: ca}).Dial(t.Context(), s, &wirev1.StreamHeader{Kind: wirev1.Kind_KIND_HTTP, VisitorAddress: "203.0.113.9:4711", EdgeAddress: "192.0.2.1:443"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		roundTrip(t, conn)
	})
	t.Run("a header that waited goes before the end", func(t *testing.T) {
		a := listen(t, "127.0.0.1:0", record)
		s := spec(SchemeTCP, "127.0.0.1", a)
		s.Proxy = 1
		conn, err := dialer(t, Config{}).Dial(t.Context(), s, &wirev1.StreamHeader{Kind: wirev1.Kind_KIND_TLS, VisitorAddress: "203.0.113.9:1", EdgeAddress: "192.0.2.1:443"})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if got := <-results; got.rest != "" || got.header == nil {
			t.Errorf("got %+v", got)
		}
		_ = conn.Close()
	})
}

type buffered struct {
	net.Conn
	r io.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func TestAbortResets(t *testing.T) {
	errs := make(chan error, 1)
	a := listen(t, "127.0.0.1:0", func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		errs <- err
	})
	c, err := dialer(t, Config{}).Dial(t.Context(), spec(SchemeTCP, "127.0.0.1", a), &wirev1.StreamHeader{})
	if err != nil {
		t.Fatal(err)
	}
	c.Abort()
	if err := <-errs; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the origin saw %v, want a reset", err)
	}
}

func TestDialUDP(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pc.Close() }()
	port := uint16(pc.LocalAddr().(*net.UDPAddr).Port)
	for name, s := range map[string]*Spec{
		"fixed port": {Scheme: SchemeUDP, Host: "127.0.0.1", Port: port},
		"range":      {Scheme: SchemeUDP, Host: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := dialer(t, Config{}).DialUDP(t.Context(), s, port)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			_ = pc.SetReadDeadline(time.Now().Add(5 * time.Second))
			if n, _, err := pc.ReadFrom(make([]byte, 9)); n != 1 || err != nil {
				t.Errorf("got %d bytes, %v", n, err)
			}
		})
	}
}
