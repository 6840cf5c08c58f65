package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/edge/dial/dialtest"
	"github.com/adit-dev/adit/internal/edge/route"
	"github.com/adit-dev/adit/internal/front"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an edge's HTTP half with real listeners, in front of fake agents and real origins.
type rig struct {
	*Proxy
	t      *testing.T
	source *dialtest.Source
	agent  *dialtest.Replica
	agents []*dialtest.Replica
	logs   *logBuffer
	roots  *x509.CertPool
	tls    *tls.Config
	addr   string // of HTTP/1.1 and HTTP/2 over TLS
	plain  string // of HTTP/1.1 in clear
	reg    *prometheus.Registry

	mu    sync.Mutex
	table map[string]*route.Rules
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, agent: &dialtest.Replica{Name: "r1"}, logs: &logBuffer{}, table: map[string]*route.Rules{}, reg: prometheus.NewRegistry()}
	r.source = dialtest.NewSource(r.agent)
	cfg := Config{
		Lookup: func(_ netip.AddrPort, host string) *route.Rules {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.table[host]
		},
		Dialer: dial.New(r.source), Registry: r.reg,
		Log: slog.New(slog.NewJSONHandler(r.logs, nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Proxy = New(cfg)
	cert, roots := certificate(t)
	r.roots = roots
	r.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	r.addr = r.serve(r.tls)
	r.plain = r.serve(nil)
	return r
}

// serve runs an HTTP server as the front does.
func (r *rig) serve(conf *tls.Config) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	var ends sync.Map
	if conf != nil {
		conf = conf.Clone() // the server changes its own
	}
	s := &http.Server{
		Handler: r.Proxy, ReadHeaderTimeout: 10 * time.Second, TLSConfig: conf,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx, end := front.WithVisitor(ctx)
			ends.Store(c, end)
			return ctx
		},
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				if end, ok := ends.LoadAndDelete(c); ok {
					end.(func())()
				}
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conf != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	r.t.Cleanup(func() {
		r.Close()
		_ = s.Close()
		<-done
	})
	return l.Addr().String()
}

// h3 runs an HTTP/3 server beside the others and returns a client of it.
func (r *rig) h3() *http3.Transport {
	r.t.Helper()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		r.t.Fatal(err)
	}
	s := &http3.Server{
		Handler: r.Proxy, TLSConfig: http3.ConfigureTLSConfig(r.tls.Clone()),
		ConnContext: func(ctx context.Context, c *quic.Conn) context.Context {
			ctx, end := front.WithVisitor(ctx)
			context.AfterFunc(c.Context(), end)
			return ctx
		},
	}
	go func() { _ = s.Serve(pc) }()
	tr := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: r.roots, ServerName: "a.example.test"},
		Dial: func(ctx context.Context, _ string, tc *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, pc.LocalAddr().String(), tc, qc)
		},
	}
	r.t.Cleanup(func() {
		_ = tr.Close()
		_ = s.Close()
		_ = pc.Close()
	})
	return tr
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"*.example.test"}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}

// put publishes host with one rule per origin given (all public, weight 1 on the first origin).
func (r *rig) put(host string, origins ...string) *hubv1.Tunnel {
	tn := &hubv1.Tunnel{
		Id: "t-" + host, Kind: wirev1.Kind_KIND_HTTP, Hostname: host, Access: &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC},
		Rules: []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Weight: 1}}}},
	}
	for _, o := range origins {
		tn.Origins = append(tn.Origins, &hubv1.Origin{Url: o})
	}
	r.putTunnel(tn)
	r.agent.Origins = origins
	return tn
}

func (r *rig) putTunnel(tn *hubv1.Tunnel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table[tn.GetHostname()] = route.Compile(proto.Clone(tn).(*hubv1.Tunnel))
}

func (r *rig) remove(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.table, host)
}

// client is a visitor with its own connections: "h1", "h2" or "h3".
func (r *rig) client(version string) *http.Client {
	r.t.Helper()
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if version == "h3" {
		c.Transport = r.h3()
		return c
	}
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: r.roots, ServerName: "a.example.test"}, DisableCompression: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			var d net.Dialer
			if strings.HasSuffix(addr, ":80") {
				return d.DialContext(ctx, "tcp", r.plain)
			}
			return d.DialContext(ctx, "tcp", r.addr)
		},
		Protocols: new(http.Protocols),
	}
	tr.Protocols.SetHTTP1(version == "h1")
	tr.Protocols.SetHTTP2(version == "h2")
	r.t.Cleanup(tr.CloseIdleConnections)
	c.Transport = tr
	return c
}

var versions = []string{"h1", "h2", "h3"}

// origin runs a real server in clear, HTTP/1.1 and h2c by prior knowledge.
func origin(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

func h2c(url string) string { return "h2c" + strings.TrimPrefix(url, "http") }

// within fails the test if f does not return in time.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s took more than %v", what, d)
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s did not happen within 30 s", what)
}

// giveUpIdle closes all origin connections once nothing uses them.
func (r *rig) giveUpIdle() {
	r.t.Helper()
	eventually(r.t, "an empty pool", func() bool {
		r.pool.close()
		return r.agent.Active() == 0
	})
}

// replicate makes n replicas of the agent, all with the same origins.
func (r *rig) replicate(n int, origins ...string) {
	r.agents = nil
	for i := range n {
		r.agents = append(r.agents, &dialtest.Replica{Name: fmt.Sprintf("r%d", i), Origins: origins})
	}
	r.source.Set(r.agents...)
}

// opened is how many streams the replicas of replicate opened.
func (r *rig) opened() (n int64) {
	for _, a := range r.agents {
		n += a.Opened.Load()
	}
	return n
}
