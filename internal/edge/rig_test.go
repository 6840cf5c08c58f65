package edge

import (
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
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/front"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hubFeed is a hub in the test: resources, a log of changes, and what was reported.
type hubFeed struct {
	mu       sync.Mutex
	items    map[string]*hubv1.Resource
	log      []*hubv1.WatchResponse
	changed  chan struct{}
	down     bool
	reports  chan *hubv1.ReportRequest
	watchers int
	chunk    int
}

func newHubFeed(rs ...*hubv1.Resource) *hubFeed {
	f := &hubFeed{items: map[string]*hubv1.Resource{}, changed: make(chan struct{}), reports: make(chan *hubv1.ReportRequest, 1000), chunk: 2}
	f.put(rs...)
	return f
}

func (f *hubFeed) wake() { close(f.changed); f.changed = make(chan struct{}) }

func (f *hubFeed) put(rs ...*hubv1.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rs {
		f.items[r.Key()] = r
	}
	f.log = append(f.log, &hubv1.WatchResponse{Revision: uint64(len(f.log) + 1), Complete: true, Puts: rs})
	f.wake()
}

func (f *hubFeed) delete(keys ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range keys {
		delete(f.items, k)
	}
	f.log = append(f.log, &hubv1.WatchResponse{Revision: uint64(len(f.log) + 1), Complete: true, Deletes: keys})
	f.wake()
}

func (f *hubFeed) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	f.wake()
}

var errDown = errors.New("connection refused")

func (f *hubFeed) Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error {
	f.mu.Lock()
	f.watchers++
	if from == 0 && !f.down {
		var out []*hubv1.WatchResponse
		m := &hubv1.WatchResponse{Snapshot: true}
		for _, k := range sortedKeys(f.items) {
			if m.Puts = append(m.Puts, f.items[k]); len(m.Puts) == f.chunk {
				out = append(out, m)
				m = &hubv1.WatchResponse{Snapshot: true}
			}
		}
		m.Complete, m.Revision = true, uint64(len(f.log))
		from = m.Revision
		f.mu.Unlock()
		for _, m := range append(out, m) {
			if err := apply(m); err != nil {
				return err
			}
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	for {
		if f.down {
			return errDown
		}
		for ; from < uint64(len(f.log)); from++ {
			m := f.log[from]
			f.mu.Unlock()
			err := apply(m)
			f.mu.Lock()
			if err != nil {
				return err
			}
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (f *hubFeed) Report(_ context.Context, r *hubv1.ReportRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	select {
	case f.reports <- r:
	default:
	}
	return nil
}

// reported waits for a report that ok accepts.
func (f *hubFeed) reported(t *testing.T, what string, ok func(*hubv1.ReportRequest) bool) *hubv1.ReportRequest {
	t.Helper()
	late := time.After(10 * time.Second)
	var last *hubv1.ReportRequest
	for {
		select {
		case last = <-f.reports:
			if ok(last) {
				return last
			}
		case <-late:
			t.Fatalf("no report of %s; the last is %v", what, last)
		}
	}
}

// Resources.

func tunnelOf(t *hubv1.Tunnel) *hubv1.Resource {
	return &hubv1.Resource{Item: &hubv1.Resource_Tunnel{Tunnel: t}}
}

func credentialOf(tok *linktest.Token) *hubv1.Resource {
	return &hubv1.Resource{Item: &hubv1.Resource_Credential{Credential: tok.Credential}}
}

func newTunnel(tok *linktest.Token, id string, kind wirev1.Kind, origin string) *hubv1.Tunnel {
	return &hubv1.Tunnel{
		Id: id, Name: id, Kind: kind, Access: &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC},
		Origins:  []*hubv1.Origin{{Url: origin}},
		Rules:    []*hubv1.Rule{{Origins: []*hubv1.WeightedOrigin{{Weight: 1}}}},
		TokenIds: []string{tok.Credential.TokenId},
	}
}

func named(t *hubv1.Tunnel, host string) *hubv1.Tunnel { t.Hostname = host; return t }
func onPort(t *hubv1.Tunnel, port int) *hubv1.Tunnel   { t.Port = uint32(port); return t }

// authority signs leaf certificates.
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

func (a *authority) resource(t testing.TB, name string) *hubv1.Resource {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &hubv1.Resource{Item: &hubv1.Resource_Certificate{Certificate: &hubv1.Certificate{
		Name:     name,
		ChainPem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyPem:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}}}
}

func (a *authority) leaf(t testing.TB, name string) tls.Certificate {
	t.Helper()
	c := a.resource(t, name).GetCertificate()
	pair, err := tls.X509KeyPair(c.ChainPem, c.KeyPem)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// rig is an edge behind a front on loopback.
type rig struct {
	*Edge
	t     *testing.T
	hub   *hubFeed
	front *front.Front
	reg   *prometheus.Registry
	addr  string
	stop  func()
}

func startEdge(t *testing.T, hub *hubFeed, change func(*Config)) *rig {
	t.Helper()
	f, err := front.Listen(front.Config{ListenHTTPS: "127.0.0.1:0", ListenHTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, hub: hub, front: f, reg: prometheus.NewRegistry(), addr: f.HTTPSAddr().String()}
	cfg := Config{
		Key: key, Feed: hub, HubHost: linktest.HubHost, OwnNames: []string{linktest.HubHost}, ListenHost: "127.0.0.1",
		HTTPSPort: f.HTTPSAddr().Port(), HTTPPort: f.HTTPAddr().Port(), ServeClear: f.ServeClear, Conns: f.Conns(), Software: "test", Registry: r.reg,
		ReportInterval: 200 * time.Millisecond, ReconnectMin: 10 * time.Millisecond, ReconnectMax: 100 * time.Millisecond,
		RetryPort: 50 * time.Millisecond,
		OwnHTTP:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hub") }),
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Address == nil {
		cfg.Address = &wirev1.EdgeAddress{Id: cfg.Key.ID(), KeyHash: cfg.Key.Hash(), Addresses: []string{r.addr}}
	}
	if r.Edge, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	wg.Go(func() { _ = f.Serve(context.Background(), r.Roles()) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		_ = f.Close()
		wg.Wait()
		if n := f.Conns().Total(); n != 0 {
			t.Errorf("%d places under the caps were not given back", n)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rig) ready() *rig {
	r.t.Helper()
	select {
	case <-r.Ready():
	case <-time.After(10 * time.Second):
		r.t.Fatal("the edge is not ready")
	}
	return r
}

// agent is a connector whose streams end at TCP addresses by tunnel id.
type agent struct {
	*link.Connector
	mu      sync.Mutex
	origins map[string]string
	served  chan []*wirev1.TunnelVerdict
	refused chan error
	cancel  context.CancelFunc
	done    chan struct{}
}

func startAgent(r *rig, tok *linktest.Token, carrier string, origins map[string]string) *agent {
	r.t.Helper()
	return startAgentAt(r, r.cfg.Address, tok, carrier, origins)
}

// startAgentAt dials the edge where address says.
func startAgentAt(r *rig, address *wirev1.EdgeAddress, tok *linktest.Token, carrier string, origins map[string]string, change ...func(*link.ConnectorConfig)) *agent {
	r.t.Helper()
	node, err := identity.NewNodeKey()
	if err != nil {
		r.t.Fatal(err)
	}
	a := &agent{origins: origins, served: make(chan []*wirev1.TunnelVerdict, 100), refused: make(chan error, 100), done: make(chan struct{})}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	cfg := link.ConnectorConfig{
		Dialler: &opening.Dialler{Role: wirev1.Role_ROLE_AGENT, Keys: tok.Keys, Node: node, ReplicaID: id, HostName: "home", Software: "test"},
		Edge:    address, HubHost: linktest.HubHost, Handler: a,
		OnServed: func(v []*wirev1.TunnelVerdict) { a.served <- v },
	}
	if carrier != "" {
		cfg.Carriers = []string{carrier}
	}
	for _, f := range change {
		f(&cfg)
	}
	cfg.OnState = func() {
		if a.Connector == nil {
			return
		}
		if err, _ := a.LastError(); err != nil {
			select {
			case a.refused <- err:
			default:
			}
		}
	}
	a.Connector = link.NewConnector(cfg)
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	a.Serve(sortedKeys(origins))
	go func() { defer close(a.done); a.Run(ctx) }()
	r.t.Cleanup(a.stop)
	return a
}

func (a *agent) stop() { a.cancel(); <-a.done }

// verdicts waits for the edge's answer about id.
func (a *agent) verdict(t *testing.T, id string) *wirev1.TunnelVerdict {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case vs := <-a.served:
			for _, v := range vs {
				if v.TunnelId == id {
					return v
				}
			}
		case <-late:
			err, _ := a.LastError()
			t.Fatalf("no verdict about %s; last error: %v", id, err)
		}
	}
}

// silent is an origin that never answers the connection.
const silent = "silent"

func (a *agent) ServeStream(ctx context.Context, in link.Incoming) {
	a.mu.Lock()
	addr := a.origins[in.Header().TunnelId]
	a.mu.Unlock()
	if addr == silent {
		<-ctx.Done()
		in.Refuse(reason.New(reason.OriginTimeout, reason.HopOrigin, "no answer"))
		return
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		in.Refuse(reason.Wrap(err, reason.OriginRefused, reason.HopAgent, "dial").Safe())
		return
	}
	origin := c.(*net.TCPConn)
	s, err := in.Accept("")
	if err != nil {
		_ = origin.Close()
		return
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(origin, s)
		if err == nil {
			_ = origin.CloseWrite()
		} else {
			_ = origin.SetLinger(0)
			_ = origin.Close()
		}
		done <- err
	}()
	_, err = io.Copy(s, origin)
	if err == nil {
		_ = s.CloseWrite()
	} else {
		s.Abort()
	}
	if err2 := <-done; err != nil || err2 != nil {
		s.Abort()
	}
	_ = s.Close()
	_ = origin.Close()
}

func (a *agent) ServeFlow(f link.Flow, _ *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	return func(b []byte) { _ = f.Send(b) }, nil
}

// echo is a TCP origin that sends back what it gets, and ends when its peer did.
func echo(t *testing.T) string {
	t.Helper()
	return origin(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
}

func origin(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// eventually wants ok within half a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func (r *rig) serves(id string) func() bool {
	return func() bool { return len(r.registry.Replicas(id)) > 0 }
}

func snapshotAt(t *testing.T) (string, []byte) {
	return filepath.Join(t.TempDir(), "snapshot"), []byte("0123456789abcdef0123456789abcdef")
}

// gauge is the sum of a metric over its labels.
func gauge(t *testing.T, r *rig, name string) (sum float64) {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
