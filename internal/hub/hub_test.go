package hub

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is moved by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

type testHub struct {
	*Hub
	t     *testing.T
	clock *clock
	cfg   Config
	edge  *identity.NodeKey
}

func newTestHub(t *testing.T, change ...func(*Config)) *testHub {
	t.Helper()
	h := &testHub{t: t, clock: &clock{t: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}}
	h.cfg = Config{
		DataDir: t.TempDir(), Domain: "example.com", URL: "https://hub.example.com:8443", MaxStoreConns: 1, Now: h.clock.now,
		TCPPorts: []*hubv1.PortRange{{First: 1024, Last: 65535}}, UDPPorts: []*hubv1.PortRange{{First: 1024, Last: 65535}},
		OwnPorts: []OwnPort{{wirev1.Kind_KIND_TCP, 8443}, {wirev1.Kind_KIND_UDP, 8443}},
	}
	if os.Getenv(postgresEnv) != "" {
		h.cfg.DatabaseURL, h.cfg.SecretKeyFile = postgres.URL(t), newSecretKey(t)
	}
	for _, f := range change {
		f(&h.cfg)
	}
	h.open()
	var err error
	if h.edge, err = identity.NewNodeKey(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Hub.Close() })
	return h
}

func (h *testHub) open() {
	h.t.Helper()
	var err error
	if h.Hub, err = New(h.t.Context(), h.cfg); err != nil {
		h.t.Fatal(err)
	}
	if h.store.Shared() {
		h.exchanged()
	}
}

// restart closes the hub and opens it again on the same data.
func (h *testHub) restart() {
	h.t.Helper()
	if err := h.Hub.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

func (h *testHub) address() *wirev1.EdgeAddress {
	return &wirev1.EdgeAddress{Id: h.edge.ID(), KeyHash: h.edge.Hash(), Addresses: []string{"hub.example.com:8443"}}
}

// report is what the edge says: these replicas have sessions, serving these tunnels.
func (h *testHub) report(sessions ...*hubv1.SessionReport) {
	h.t.Helper()
	err := h.LocalFeed(h.edge.Public()).Report(h.t.Context(), &hubv1.ReportRequest{Edge: h.address(), Sessions: sessions})
	if err != nil {
		h.t.Fatal(err)
	}
}

// pass lets time pass in steps of one tick while the edge keeps reporting.
func (h *testHub) pass(d time.Duration, sessions ...*hubv1.SessionReport) {
	h.t.Helper()
	for ; d > 0; d -= time.Second {
		h.clock.add(time.Second)
		h.report(sessions...)
		h.ticked()
	}
}

func (h *testHub) ticked() {
	h.t.Helper()
	if err := h.tick(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// replica is one agent process.
type replica struct {
	h      *testHub
	caller *hublink.Caller
}

func (h *testHub) invite_(name string, hosts ...string) *hubv1.Invite {
	h.t.Helper()
	i, _, err := h.CreateInvite(h.t.Context(), &hubv1.CreateInviteRequest{Name: name, Hostnames: hosts})
	if err != nil {
		h.t.Fatal(err)
	}
	return i
}

func (h *testHub) replica(i *hubv1.Invite) *replica {
	h.t.Helper()
	return h.replicaWith(i.GetId())
}

// replicaWith is a process with a token.
func (h *testHub) replicaWith(tokenID string) *replica {
	h.t.Helper()
	c, err := h.Credential(h.t.Context(), tokenID)
	if err != nil || c == nil {
		h.t.Fatal(c, err)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return &replica{h, &hublink.Caller{Role: wirev1.Role_ROLE_AGENT, Credential: c, ReplicaID: id, HostName: "box"}}
}

func (r *replica) key() replicaKey { return keyOf(r.caller) }

func (r *replica) declare(entries ...*hubv1.DeclaredTunnel) []*hubv1.Verdict {
	r.h.t.Helper()
	v, err := r.h.Declare(r.h.t.Context(), r.caller, &hubv1.DeclareRequest{Tunnels: entries})
	if err != nil {
		r.h.t.Fatal(err)
	}
	return v
}

// ok declares and fails the test unless every verdict is ok; it returns the tunnel ids.
func (r *replica) ok(entries ...*hubv1.DeclaredTunnel) []string {
	r.h.t.Helper()
	var ids []string
	for _, v := range r.declare(entries...) {
		if v.GetCode() != "ok" {
			r.h.t.Fatalf("%s: %s", v.GetCode(), v.GetDetail())
		}
		ids = append(ids, v.GetTunnelId())
	}
	return ids
}

// session is the replica as an edge reports it.
func (r *replica) session(ids ...string) *hubv1.SessionReport {
	return &hubv1.SessionReport{TokenId: r.key().token, ReplicaId: r.key().replica, HostName: "box", Carrier: "quic", TunnelIds: ids}
}

func web(host string) *hubv1.DeclaredTunnel {
	return &hubv1.DeclaredTunnel{Key: "services[0]", Kind: wirev1.Kind_KIND_HTTP, Hostname: host, Origin: &hubv1.Origin{Url: "http://127.0.0.1:80"}, Access: hubv1.Access_MODE_PUBLIC}
}

func pass(host string) *hubv1.DeclaredTunnel {
	return &hubv1.DeclaredTunnel{Key: "services[0]", Kind: wirev1.Kind_KIND_TLS, Hostname: host, Origin: &hubv1.Origin{Url: "tcp://127.0.0.1:443"}}
}

func tcp(port uint32) *hubv1.DeclaredTunnel {
	return &hubv1.DeclaredTunnel{Key: "tcp_services[0]", Kind: wirev1.Kind_KIND_TCP, Port: port, Origin: &hubv1.Origin{Url: "tcp://127.0.0.1:22"}}
}

func udp(first, last uint32) *hubv1.DeclaredTunnel {
	o := "udp://127.0.0.1:53"
	if last > first {
		o = "udp://127.0.0.1:0"
	}
	return &hubv1.DeclaredTunnel{Key: "udp_services[0]", Kind: wirev1.Kind_KIND_UDP, Port: first, PortLast: last, Origin: &hubv1.Origin{Url: o}}
}

func (h *testHub) tunnel(id string) *hubv1.Tunnel { return h.feed.get("tunnel/" + id).GetTunnel() }

func TestFirstStart(t *testing.T) {
	h := newTestHub(t)
	if h.store.Shared() {
		return // there is no file
	}
	for _, f := range []string{"adit.db", "secret.key", "admin.key"} {
		if fi, err := os.Stat(filepath.Join(h.cfg.DataDir, f)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, fi, err)
		}
	}
	key, secret := h.Key().Hash(), []byte("ca key")
	if err := h.PutSecret(t.Context(), "ca", secret); err != nil {
		t.Fatal(err)
	}
	db, err := os.ReadFile(filepath.Join(h.cfg.DataDir, "adit.db"))
	if err != nil {
		t.Fatal(err)
	}
	h.restart()
	if string(h.Key().Hash()) != string(key) {
		t.Error("the hub's identity changed with a restart")
	}
	if got, err := h.GetSecret(t.Context(), "ca"); err != nil || string(got) != "ca key" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := h.GetSecret(t.Context(), "none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	admin, _ := os.ReadFile(filepath.Join(h.cfg.DataDir, "admin.key"))
	for _, needle := range []string{string(admin[:len(admin)-1]), string(h.Key().Seed())} {
		if containsBytes(db, needle) {
			t.Error("a secret is in the database in clear")
		}
	}
	t.Run("another secret.key", func(t *testing.T) {
		_ = h.Hub.Close()
		path := filepath.Join(h.cfg.DataDir, "secret.key")
		old, _ := os.ReadFile(path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, err := New(t.Context(), h.cfg); err == nil || !contains(err.Error(), "secret.key") {
			t.Errorf("got %v", err)
		}
		_ = os.WriteFile(path, old, 0o600)
		h.open()
	})
}

func containsBytes(b []byte, s string) bool { return contains(string(b), s) }

func contains(s, sub string) bool {
	for i := 0; i+len(sub) <= len(s); i++ {
		if s[i:i+len(sub)] == sub {
			return true
		}
	}
	return false
}

func TestAdminKey(t *testing.T) {
	h := newTestHub(t)
	path := filepath.Join(h.cfg.DataDir, "admin.key")
	read := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:len(b)-1])
	}
	key := read()
	ask := func(key, from string) error {
		_, err := h.Authenticate(t.Context(), key, mustAddr(from))
		return err
	}
	for _, from := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "127.8.8.8"} {
		if err := ask(key, from); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
	}
	for name, err := range map[string]error{
		"other host": ask(key, "192.0.2.1"), "wrong": ask(key[:len(key)-1]+"x", "127.0.0.1"), "none": ask("", "127.0.0.1"), "other kind": ask("adit_key_x", "::1"),
	} {
		if !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.restart()
	if read() != key || ask(key, "127.0.0.1") != nil {
		t.Error("the key changed with a restart")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if err := ask(key, "127.0.0.1"); !reason.Is(err, reason.Unauthenticated) {
		t.Errorf("the deleted key still works: %v", err)
	}
	if err := ask(read(), "127.0.0.1"); err != nil {
		t.Error(err)
	}
	_ = h.Hub.Close()
	_ = os.WriteFile(path, []byte("guess\n"), 0o600)
	if _, err := New(t.Context(), h.cfg); err == nil {
		t.Error("a weak key was accepted")
	}
	_ = os.Remove(path)
	h.open()
}

func TestConfigErrors(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"--domain": func(c *Config) { c.Domain = "-" }, "--hub-host": func(c *Config) { c.HubHost = "a..b" },
		"everything below": func(c *Config) { c.HubHost = "example.com" }, "hub URL": func(c *Config) { c.URL = "http://x" },
		"--database-url": func(c *Config) { c.DatabaseURL = "x" },
	} {
		cfg := Config{DataDir: t.TempDir(), Domain: "example.com", URL: "https://hub.example.com"}
		change(&cfg)
		if _, err := New(t.Context(), cfg); err == nil || !contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wantProblem(t *testing.T, err error, code reason.Code, field string) *Problem {
	t.Helper()
	var p *Problem
	if !errors.As(err, &p) || p.Code != code || p.Field != field {
		t.Fatalf("got %v, want %s on %q", err, code, field)
	}
	if p.Remedy == "" {
		t.Errorf("%v names no remedy", err)
	}
	return p
}

func tokenKeys(t *testing.T, token string) *identity.TokenKeys {
	t.Helper()
	tok, err := identity.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
