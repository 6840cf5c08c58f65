package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

// testHub is a hub's side of the machine API over real sockets, with verdicts made by the test.
type testHub struct {
	hubv1connect.UnimplementedMachineServiceHandler
	t    *testing.T
	key  *identity.NodeKey
	addr string
	stop func()

	mu      sync.Mutex
	creds   map[string]*hubv1.Credential
	verdict func(*hubv1.DeclaredTunnel) *hubv1.Verdict
	edges   []*wirev1.EdgeAddress
	// tunnels are the managed ones; cut makes snapshots end after their first chunk.
	tunnels  []*hubv1.Tunnel
	cut      bool
	changed  chan struct{}
	declared chan *hubv1.DeclareRequest
	reports  chan *hubv1.ReportRequest
}

func newTestHub(t *testing.T) *testHub {
	t.Helper()
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	h := &testHub{
		t: t, key: key, creds: map[string]*hubv1.Credential{}, changed: make(chan struct{}),
		declared: make(chan *hubv1.DeclareRequest, 64), reports: make(chan *hubv1.ReportRequest, 64),
		verdict: func(d *hubv1.DeclaredTunnel) *hubv1.Verdict {
			return &hubv1.Verdict{Code: string(reason.OK), Url: "https://" + d.GetHostname()}
		},
	}
	h.listen("127.0.0.1:0")
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *testHub) listen(addr string) {
	h.t.Helper()
	mux := http.NewServeMux()
	mux.Handle(hubv1connect.NewMachineServiceHandler(h))
	srv := hublink.NewServer(hublink.ServerConfig{Key: h.key, Handler: mux, Credential: func(_ context.Context, id string) (*hubv1.Credential, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.creds[id], nil
	}})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				t := tls.Server(c, srv.TLSConfig())
				if err := t.HandshakeContext(ctx); err != nil {
					_ = c.Close()
					return
				}
				srv.ServeTLS(ctx, t)
			})
		}
	})
	h.stop = sync.OnceFunc(func() {
		_ = l.Close()
		cancel()
		end, stop := context.WithCancel(context.Background())
		stop()
		_ = srv.Close(end)
		wg.Wait()
	})
}

// restart takes the hub away; the returned function brings it back at its address.
func (h *testHub) takeAway() (bringBack func()) {
	addr := h.addr
	h.stop()
	return func() { h.listen(addr) }
}

func (h *testHub) setVerdict(f func(*hubv1.DeclaredTunnel) *hubv1.Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verdict = f
}

func (h *testHub) setEdges(e ...*wirev1.EdgeAddress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.edges = e
	close(h.changed)
	h.changed = make(chan struct{})
}

// setManaged sets the managed tunnels.
func (h *testHub) setManaged(cut bool, ts ...*hubv1.Tunnel) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tunnels, h.cut = ts, cut
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *testHub) Declare(_ context.Context, r *hubv1.DeclareRequest) (*hubv1.DeclareResponse, error) {
	h.mu.Lock()
	verdict := h.verdict
	h.mu.Unlock()
	out := &hubv1.DeclareResponse{}
	for _, d := range r.GetTunnels() {
		v := verdict(d)
		v.Key, v.TunnelId = d.GetKey(), hubv1.DeclaredID(d.GetKind(), d.GetHostname(), d.GetPort(), d.GetPortLast())
		out.Verdicts = append(out.Verdicts, v)
	}
	h.declared <- r
	return out, nil
}

// Watch sends every state of the edge list as a snapshot of two chunks.
func (h *testHub) Watch(ctx context.Context, _ *hubv1.WatchRequest, out *connect.ServerStream[hubv1.WatchResponse]) error {
	for revision := uint64(1); ; revision++ {
		h.mu.Lock()
		edges, changed, tunnels, cut := h.edges, h.changed, h.tunnels, h.cut
		h.mu.Unlock()
		first := &hubv1.WatchResponse{Snapshot: true}
		for _, e := range edges {
			first.Puts = append(first.Puts, &hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: &hubv1.Edge{Address: e}}})
		}
		for _, t := range tunnels {
			first.Puts = append(first.Puts, &hubv1.Resource{Item: &hubv1.Resource_Tunnel{Tunnel: t}})
		}
		if err := out.Send(first); err != nil {
			return err
		}
		if cut {
			return errors.New("cut")
		}
		if err := out.Send(&hubv1.WatchResponse{Snapshot: true, Complete: true, Revision: revision}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (h *testHub) Report(_ context.Context, r *hubv1.ReportRequest) (*hubv1.ReportResponse, error) {
	h.reports <- r
	return &hubv1.ReportResponse{}, nil
}

// nextDeclare waits for a declaration.
func (h *testHub) nextDeclare() *hubv1.DeclareRequest {
	h.t.Helper()
	return receive(h.t, h.declared, "no declaration")
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal(what)
		panic(what)
	}
}

// token makes a token of this hub that carries edges, known to hub and, if given, to edges.
func (h *testHub) token(edges ...*linktest.Edge) (string, *linktest.Token) {
	h.t.Helper()
	return h.tokenOf(identity.KindInvite, edges...)
}

func (h *testHub) tokenOf(kind identity.TokenKind, edges ...*linktest.Edge) (string, *linktest.Token) {
	h.t.Helper()
	var addrs []*wirev1.EdgeAddress
	for _, e := range edges {
		addrs = append(addrs, e.Address())
	}
	tok, err := identity.NewToken(kind, "https://"+h.addr, [][]byte{h.key.Hash()}, addrs)
	if err != nil {
		h.t.Fatal(err)
	}
	text, err := tok.Encode()
	if err != nil {
		h.t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		h.t.Fatal(err)
	}
	pub := keys.Public()
	lt := &linktest.Token{Keys: keys, Credential: &hubv1.Credential{TokenId: pub.HexID(), Name: "test", Kind: string(kind), Ed25519Public: pub.Ed25519, Mldsa65Public: pub.MLDSA65}}
	h.mu.Lock()
	h.creds[pub.HexID()] = lt.Credential
	h.mu.Unlock()
	for _, e := range edges {
		e.Set(lt, lt.Credential)
	}
	return text, lt
}

// revoke makes the hub forget a token.
func (h *testHub) revoke(tok *linktest.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := proto.Clone(tok.Credential).(*hubv1.Credential)
	c.Revoked = true
	h.creds[c.TokenId] = c
}

// testAgent is an agent that runs until the test ends.
type testAgent struct {
	*Agent
	cancel context.CancelFunc
	ended  chan error
	log    *lockedLog
}

// lockedLog keeps the log for assertions.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func runAgent(t *testing.T, cfg Config) *testAgent {
	t.Helper()
	out := &testAgent{ended: make(chan error, 1), log: &lockedLog{}}
	cfg.Log = slog.New(slog.NewTextHandler(out.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if cfg.Carriers == nil {
		cfg.Carriers = []string{link.CarrierTLS}
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.backoffUnit = 20 * time.Millisecond
	out.Agent = a
	var ctx context.Context
	ctx, out.cancel = context.WithCancel(context.Background())
	go func() { out.ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		out.cancel()
		a.Force()
		select {
		case <-out.ended:
		case <-time.After(20 * time.Second):
			t.Error("the agent does not end")
		}
		if t.Failed() {
			t.Logf("agent's log:\n%s", out.log)
		}
	})
	return out
}

// end stops the agent as a signal does and returns what Run returned.
func (a *testAgent) end(t *testing.T) error {
	t.Helper()
	a.cancel()
	err := receive(t, a.ended, "the agent does not end")
	a.ended <- err
	return err
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// origin is a TCP service on loopback.
func tcpOrigin(t *testing.T, serve func(*net.TCPConn)) string {
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
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

func banner(text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, _ = io.WriteString(c, text)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
}

// refusedPort is a port where nobody listens.
func refusedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func tcpID(port uint32) string { return hubv1.DeclaredID(wirev1.Kind_KIND_TCP, "", port, 0) }

// visit opens a stream to a declared TCP service.
func visit(t *testing.T, r *link.Replica, port uint32) link.Outgoing {
	t.Helper()
	out, err := r.Open(t.Context(), &wirev1.StreamHeader{
		TunnelId: tcpID(port), Kind: wirev1.Kind_KIND_TCP, VisitorAddress: "203.0.113.9:4711", EdgeAddress: "192.0.2.1:22",
	}, hubv1.CarrierPolicy_CARRIER_POLICY_AUTO, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = out.SetDeadline(time.Now().Add(20 * time.Second))
	return out
}

// say sends text and returns all that comes back.
func say(t *testing.T, out link.Outgoing, text string) string {
	t.Helper()
	defer func() { _ = out.Close() }()
	if _, err := io.WriteString(out, text); err != nil {
		t.Fatal(err)
	}
	if err := out.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func tempFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, content)
	return path
}
