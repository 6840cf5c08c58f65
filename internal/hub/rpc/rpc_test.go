package rpc

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a hub on a loopback port, as machines and the local CLI reach it.
type server struct {
	t    *testing.T
	hub  *hub.Hub
	api  *Server
	addr string
	dir  string
	reg  *prometheus.Registry
	stop func()

	shared     *http.Client
	sharedBase string
}

func start(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: l.Addr().String(), dir: t.TempDir()}
	s.serve(l)
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *server) serve(l net.Listener) {
	s.t.Helper()
	s.reg = prometheus.NewRegistry()
	h, err := hub.New(s.t.Context(), hub.Config{
		DataDir: s.dir, Domain: "example.com", URL: "https://" + s.addr, MaxStoreConns: 1, Registry: s.reg,
		TCPPorts: []*hubv1.PortRange{{First: 1024, Last: 65535}}, UDPPorts: []*hubv1.PortRange{{First: 1024, Last: 65535}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.hub, s.api = h, New(h)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.Run(ctx) })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				t := tls.Server(c, s.api.Link().TLSConfig())
				if err := t.HandshakeContext(ctx); err != nil {
					_ = c.Close()
					return
				}
				s.api.Link().ServeTLS(ctx, t)
			})
		}
	})
	s.stop = sync.OnceFunc(func() {
		_ = l.Close()
		cancel()
		end, done := context.WithTimeout(context.Background(), 2*time.Second)
		defer done()
		_ = s.api.Link().Close(end)
		wg.Wait()
		_ = h.Close()
	})
}

// restart stops the hub and starts it again on the same address and data.
func (s *server) restart() {
	s.t.Helper()
	s.stop()
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", s.addr); err == nil {
			s.serve(l)
			return
		}
	}
	s.t.Fatal(err)
}

// person is the local administrator; every call carries the key.
type person struct{ key string }

func (p person) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		r.Header().Set("Authorization", "Bearer "+p.key)
		return next(ctx, r)
	}
}
func (p person) WrapStreamingClient(n connect.StreamingClientFunc) connect.StreamingClientFunc {
	return n
}
func (p person) WrapStreamingHandler(n connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return n
}

func (s *server) adminKey() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "admin.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (s *server) local() (*http.Client, string) {
	c, base := hublink.NewPinnedClient(s.addr, [][]byte{s.hub.Key().Hash()})
	s.t.Cleanup(c.CloseIdleConnections)
	return c, base
}

func (s *server) invites() hubv1connect.InviteServiceClient {
	c, base := s.local()
	return hubv1connect.NewInviteServiceClient(c, base, connect.WithInterceptors(person{s.adminKey()}))
}

func (s *server) invite(name string, hosts ...string) (*hubv1.Invite, string) {
	s.t.Helper()
	r, err := s.invites().CreateInvite(s.t.Context(), &hubv1.CreateInviteRequest{Name: name, Hostnames: hosts})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.GetInvite(), r.GetToken()
}

type machine struct {
	hubv1connect.MachineServiceClient
	http *http.Client
	node *identity.NodeKey
}

func (s *server) machine(role wirev1.Role, token string) *machine {
	s.t.Helper()
	tok, err := identity.ParseToken(token)
	if err != nil {
		s.t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		s.t.Fatal(err)
	}
	node, err := identity.NewNodeKey()
	if err != nil {
		s.t.Fatal(err)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	c, base, err := hublink.NewClient(hublink.ClientConfig{URL: tok.Body.HubUrl, Pins: tok.Body.HubPins,
		Dialler: &opening.Dialler{Role: role, Keys: keys, Node: node, ReplicaID: id, HostName: "box"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.CloseIdleConnections)
	return &machine{hubv1connect.NewMachineServiceClient(c, base), c, node}
}

func web(host string) *hubv1.DeclaredTunnel {
	return &hubv1.DeclaredTunnel{Key: "services[0]", Kind: wirev1.Kind_KIND_HTTP, Hostname: host, Origin: &hubv1.Origin{Url: "http://127.0.0.1:80"}}
}

func wantCode(t *testing.T, err error, code connect.Code, r reason.Code) *hubv1.Problem {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != code || ce.Meta().Get("Adit-Error") != string(r) {
		t.Fatalf("got %v, want %v with %s", err, code, r)
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if p, ok := m.(*hubv1.Problem); ok && p.GetCode() == string(r) {
				return p
			}
		}
	}
	t.Fatalf("%v has no problem detail", err)
	return nil
}

func TestEveryProcedureIsClassified(t *testing.T) {
	seen := map[string]bool{}
	for _, svcs := range services() {
		for i := range svcs.Len() {
			for j := range svcs.Get(i).Methods().Len() {
				m := svcs.Get(i).Methods().Get(j)
				p := fmt.Sprintf("/%s/%s", svcs.Get(i).FullName(), m.Name())
				seen[p] = true
				w, ok := access[p]
				if !ok {
					t.Errorf("%s is not classified: add it to the table in roles.go", p)
					continue
				}
				kinds := 0
				for _, is := range []bool{len(w.machines) > 0, w.people != "", w.open} {
					if is {
						kinds++
					}
				}
				if kinds != 1 {
					t.Errorf("%s must be for machines, for people, or open", p)
				}
				if w.people != "" && !hub.RoleIncludes(w.people, visitor) {
					t.Errorf("%s: role %q is unknown", p, w.people)
				}
				if thing, _, _ := strings.Cut(w.scope, ":"); w.people != "" && w.scope != anyScope && w.scope != noScope && !slices.Contains(scopeThings, thing) {
					t.Errorf("%s: scope %q is unknown", p, w.scope)
				}
				if (w.fresh || w.local) && w.scope != noScope {
					t.Errorf("%s: keys with scopes are never fresh and never local", p)
				}
			}
		}
	}
	for p := range access {
		if !seen[p] {
			t.Errorf("%s is classified but does not exist", p)
		}
	}
}

var scopeThings = []string{"tunnels", "agents", "invites", "access", "certs", "audit", "forward"}

// services are all of the hub API.
func services() (all []protoreflect.ServiceDescriptors) {
	protoregistry.GlobalFiles.RangeFilesByPackage("adit.hub.v1", func(f protoreflect.FileDescriptor) bool {
		all = append(all, f.Services())
		return true
	})
	return all
}

func TestWhoMayCallWhat(t *testing.T) {
	s := start(t)
	_, token := s.invite("home", "*.example.com")
	agent := s.machine(wirev1.Role_ROLE_AGENT, token)
	c, base := s.local()
	call := func(client *http.Client, base, procedure, key string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", base+procedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		ct := "application/json"
		if streams(procedure) {
			// A stream begins with an envelope.
			ct = "application/connect+json"
			req.Body = io.NopCloser(bytes.NewReader([]byte{0, 0, 0, 0, 2, '{', '}'}))
			req.ContentLength = 7
		}
		req.Header.Set("Content-Type", ct)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		// A stream tells its error at its end.
		for code, status := range map[string]int{"unauthenticated": 401, "permission_denied": 403} {
			if streams(procedure) && strings.Contains(string(b), `"code":"`+code) {
				return status, string(b)
			}
		}
		return resp.StatusCode, string(b)
	}
	for p, w := range access {
		if len(w.machines) > 0 {
			if _, body := call(c, base, p, s.adminKey()); !strings.Contains(body, "unauthenticated") {
				t.Errorf("a person calls %s: %s", p, body)
			}
			continue
		}
		if code, body := call(agent.http, "http://"+s.addr, p, s.adminKey()); code != http.StatusForbidden {
			t.Errorf("an agent calls %s: %d %s", p, code, body)
		}
		if w.open {
			continue
		}
		if code, body := call(c, base, p, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without a key: %d %s", p, code, body)
		}
		if code, _ := call(c, base, p, "adit_admin_"+strings.Repeat("x", 43)); code != http.StatusUnauthorized {
			t.Errorf("%s with a wrong key: %d", p, code)
		}
	}
	t.Run("the admin key counts from loopback only, over HTTPS too", func(t *testing.T) {
		for remote, want := range map[string]int{"127.0.0.1:1": 200, "[::1]:1": 200, "192.0.2.1:1": 401} {
			req := httptest.NewRequest("POST", hubv1connect.ServerServiceGetServerProcedure, strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+s.adminKey())
			req.RemoteAddr = remote
			rec := httptest.NewRecorder()
			s.api.Handler().ServeHTTP(rec, req)
			if rec.Code != want {
				t.Errorf("from %s: %d %s", remote, rec.Code, rec.Body)
			}
		}
	})
	t.Run("an edge may not declare", func(t *testing.T) {
		e, base := s.local()
		r, err := hubv1connect.NewEdgeServiceClient(e, base, connect.WithInterceptors(person{s.adminKey()})).InviteEdge(t.Context(), &hubv1.InviteEdgeRequest{Name: "e"})
		if err != nil {
			t.Fatal(err)
		}
		edge := s.machine(wirev1.Role_ROLE_EDGE, r.GetToken())
		_, err = edge.Declare(t.Context(), &hubv1.DeclareRequest{})
		wantCode(t, err, connect.CodePermissionDenied, reason.AccessDenied)
		_, err = s.machine(wirev1.Role_ROLE_AGENT, r.GetToken()).Declare(t.Context(), &hubv1.DeclareRequest{})
		if !reason.Is(err, reason.TokenWrongKind) {
			t.Errorf("an edge token as agent: %v", err)
		}
	})
}

func streams(procedure string) bool {
	for _, svcs := range services() {
		for i := range svcs.Len() {
			if name, method, _ := strings.Cut(procedure[1:], "/"); string(svcs.Get(i).FullName()) == name {
				return svcs.Get(i).Methods().ByName(protoreflect.Name(method)).IsStreamingServer()
			}
		}
	}
	return false
}

func TestStrangersBodyIsNotRead(t *testing.T) {
	s := start(t)
	c, base := s.local()
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := pw.Write(chunk); err != nil {
				return
			}
		}
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", base+hubv1connect.InviteServiceCreateInviteProcedure, pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/proto")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Adit-Error") != "unauthenticated" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	if metric(t, s.reg, hubv1connect.InviteServiceCreateInviteProcedure, "unauthenticated") != 1 {
		t.Error("not counted")
	}
}

func TestProblems(t *testing.T) {
	s := start(t)
	inv := s.invites()
	_, err := inv.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "a", Hostnames: []string{"hub.example.com"}})
	if p := wantCode(t, err, connect.CodeInvalidArgument, reason.Invalid); p.GetField() != "hostnames[0]" || p.GetValue() != "hub.example.com" || p.GetRemedy() == "" {
		t.Errorf("%v", p)
	}
	s.invite("a", "x.example.com")
	_, err = inv.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "b", Hostnames: []string{"*.example.com"}})
	if p := wantCode(t, err, connect.CodeAlreadyExists, reason.NameConflict); p.GetHolder() != "a" || p.GetHeld() != "x.example.com" {
		t.Errorf("%v", p)
	}
	_, err = inv.GetInvite(t.Context(), &hubv1.GetInviteRequest{Id: "z"})
	wantCode(t, err, connect.CodeNotFound, reason.NotFound)
	_, err = inv.ListInvites(t.Context(), &hubv1.ListInvitesRequest{PageToken: "x"})
	wantCode(t, err, connect.CodeInvalidArgument, reason.Invalid)

	for labels, want := range map[string]float64{
		hubv1connect.InviteServiceCreateInviteProcedure + " ok":               1,
		hubv1connect.InviteServiceCreateInviteProcedure + " invalid_argument": 1,
		hubv1connect.InviteServiceCreateInviteProcedure + " already_exists":   1,
		hubv1connect.InviteServiceGetInviteProcedure + " not_found":           1,
	} {
		p, code, _ := strings.Cut(labels, " ")
		if got := metric(t, s.reg, p, code); got != want {
			t.Errorf("adit_hub_requests_total{%s} = %v, want %v", labels, got, want)
		}
	}
	if problems, err := testutil.GatherAndLint(s.reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func metric(t *testing.T, reg *prometheus.Registry, procedure, code string) float64 {
	t.Helper()
	fams, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fams {
		for _, m := range f.GetMetric() {
			l := map[string]string{}
			for _, p := range m.GetLabel() {
				l[p.GetName()] = p.GetValue()
			}
			if f.GetName() == "adit_hub_requests_total" && l["procedure"] == procedure && l["code"] == code {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestAgentAndEdge walks the whole way: an edge joins, an agent declares, the edge hears of it,
// the invite is revoked and everything of it ends.
func TestAgentAndEdge(t *testing.T) {
	s, whole := start(t), t
	c, base := s.local()
	admin := connect.WithInterceptors(person{s.adminKey()})
	er, err := hubv1connect.NewEdgeServiceClient(c, base, admin).InviteEdge(t.Context(), &hubv1.InviteEdgeRequest{Name: "e", MaxEdges: 1})
	if err != nil {
		t.Fatal(err)
	}
	edge := s.machine(wirev1.Role_ROLE_EDGE, er.GetToken())
	address := &wirev1.EdgeAddress{Id: edge.node.ID(), KeyHash: edge.node.Hash(), Addresses: []string{"edge1.example.net:443"}, Region: "r"}
	if _, err := edge.Report(t.Context(), &hubv1.ReportRequest{Edge: address, Software: "test"}); err != nil {
		t.Fatal(err)
	}
	t.Run("one more edge than allowed", func(t *testing.T) {
		_, err := s.machine(wirev1.Role_ROLE_EDGE, er.GetToken()).Report(t.Context(), &hubv1.ReportRequest{Edge: address})
		if !reason.Is(err, reason.TooManyReplicas) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("somebody else's key", func(t *testing.T) {
		pub, _, _ := ed25519.GenerateKey(nil)
		_, err := edge.Report(t.Context(), &hubv1.ReportRequest{Edge: &wirev1.EdgeAddress{Id: identity.KeyID(identity.KeyHash(pub)), KeyHash: identity.KeyHash(pub), Addresses: []string{"a:1"}}})
		wantCode(t, err, connect.CodeInvalidArgument, reason.Invalid)
	})
	t.Run("an address of a live edge", func(t *testing.T) {
		r, err := hubv1connect.NewEdgeServiceClient(c, base, admin).InviteEdge(t.Context(), &hubv1.InviteEdgeRequest{Name: "f"})
		if err != nil {
			t.Fatal(err)
		}
		f := s.machine(wirev1.Role_ROLE_EDGE, r.GetToken())
		_, err = f.Report(t.Context(), &hubv1.ReportRequest{Edge: &wirev1.EdgeAddress{Id: f.node.ID(), KeyHash: f.node.Hash(), Addresses: []string{"edge1.example.net:443"}}})
		wantCode(t, err, connect.CodeAlreadyExists, reason.NameConflict)
	})

	inv, token := s.invite("home", "*.example.com")
	if tok, _ := identity.ParseToken(token); len(tok.Body.Edges) != 1 || tok.Body.Edges[0].Id != edge.node.ID() {
		t.Errorf("the token knows edges %v", tok.Body.Edges)
	}
	_, err = s.invites().CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "x", Hostnames: []string{"edge1.example.net"}})
	wantCode(t, err, connect.CodeInvalidArgument, reason.Invalid)

	ew := watch(t, edge, 0)
	agent := s.machine(wirev1.Role_ROLE_AGENT, token)
	aw := watch(t, agent, 0)
	d, err := agent.Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("a.example.com")}})
	if err != nil || d.GetVerdicts()[0].GetCode() != "ok" {
		t.Fatal(d, err)
	}
	id := d.GetVerdicts()[0].GetTunnelId()
	ew.wait(func(m map[string]*hubv1.Resource) bool {
		return m["tunnel/"+id] != nil && m["credential/"+inv.GetId()] != nil && m["settings/"] != nil
	})
	aw.wait(func(m map[string]*hubv1.Resource) bool {
		return m["tunnel/"+id] != nil && m["edge/"+edge.node.ID()] != nil && len(m) == 2
	})

	t.Run("the agent's state", func(t *testing.T) {
		if _, err := agent.Report(t.Context(), &hubv1.ReportRequest{Software: "v1", Tunnels: []*hubv1.TunnelReport{{TunnelId: id, State: "problem", Reason: "origin_refused", Detail: "nobody listens"}}}); err != nil {
			t.Fatal(err)
		}
		a, err := hubv1connect.NewAgentServiceClient(c, base, admin).GetAgent(t.Context(), &hubv1.GetAgentRequest{Id: "home"})
		if err != nil || a.GetAgent().GetState() != "online" || a.GetAgent().GetReplicas()[0].GetHostName() != "box" {
			t.Errorf("%v, %v", a, err)
		}
		tun, err := hubv1connect.NewTunnelServiceClient(c, base, admin).GetTunnel(t.Context(), &hubv1.GetTunnelRequest{Label: "a.example.com"})
		if err != nil || tun.GetTunnel().GetState() != "problem" || tun.GetTunnel().GetReason() != "origin_refused" {
			t.Errorf("%v, %v", tun, err)
		}
	})
	t.Run("the edge resumes after a restart of the hub", func(t *testing.T) {
		rev := ew.revision()
		s.restart()
		<-ew.done
		<-aw.done
		ew = watch(whole, edge, rev)
		if _, err := s.machine(wirev1.Role_ROLE_AGENT, token).Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("b.example.com")}}); err != nil {
			t.Fatal(err)
		}
		ew.wait(func(m map[string]*hubv1.Resource) bool {
			return len(m) == 1 // the new tunnel only: a delta
		})
		if ew.snapshots() != 0 {
			t.Error("a snapshot although the revision is in the log")
		}
	})
	t.Run("revocation", func(t *testing.T) {
		agent := s.machine(wirev1.Role_ROLE_AGENT, token)
		aw := watch(t, agent, 0)
		aw.wait(func(m map[string]*hubv1.Resource) bool { return len(m) > 0 })
		start := time.Now()
		if _, err := s.invites().RevokeInvite(t.Context(), &hubv1.RevokeInviteRequest{Id: "home"}); err != nil {
			t.Fatal(err)
		}
		ew.wait(func(m map[string]*hubv1.Resource) bool {
			return m["credential/"+inv.GetId()].GetCredential().GetRevoked()
		})
		<-aw.done
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		_, err := agent.Declare(t.Context(), &hubv1.DeclareRequest{})
		if !reason.Is(err, reason.TokenRevoked) {
			t.Errorf("declare after the revocation: %v", err)
		}
	})
	t.Run("revoking the edge token removes the edge", func(t *testing.T) {
		c, base := s.local()
		edges := hubv1connect.NewEdgeServiceClient(c, base, connect.WithInterceptors(person{s.adminKey()}))
		if _, err := edges.RevokeEdgeInvite(t.Context(), &hubv1.RevokeEdgeInviteRequest{Id: "e"}); err != nil {
			t.Fatal(err)
		}
		<-ew.done
		l, err := edges.ListEdges(t.Context(), &hubv1.ListEdgesRequest{})
		if err != nil || len(l.GetEdges()) != 0 {
			t.Errorf("%v, %v", l, err)
		}
		if _, err := edge.Report(t.Context(), &hubv1.ReportRequest{Edge: address}); !reason.Is(err, reason.TokenRevoked) {
			t.Errorf("got %v", err)
		}
	})
}

func TestTokenOfAnotherServer(t *testing.T) {
	s, other := start(t), start(t)
	_, token := other.invite("home", "*.example.com")
	tok, err := identity.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	// Its pin does not fit this server, so not even the token's id is told.
	tok.Body.HubUrl = "https://" + s.addr
	forged, _ := tok.Encode()
	if _, err := s.machine(wirev1.Role_ROLE_AGENT, forged).Declare(t.Context(), &hubv1.DeclareRequest{}); !reason.Is(err, reason.HubUnreachable) {
		t.Errorf("wrong pin: %v", err)
	}
	tok.Body.HubPins = [][]byte{s.hub.Key().Hash()}
	forged, _ = tok.Encode()
	if _, err := s.machine(wirev1.Role_ROLE_AGENT, forged).Declare(t.Context(), &hubv1.DeclareRequest{}); !reason.Is(err, reason.TokenUnknown) {
		t.Errorf("unknown token: %v", err)
	}
}

// watcher follows a watch.
type watcher struct {
	t     *testing.T
	mu    sync.Mutex
	items map[string]*hubv1.Resource
	rev   uint64
	snaps int
	moved chan struct{}
	done  chan struct{}
}

func watch(t *testing.T, m *machine, from uint64) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := m.Watch(ctx, &hubv1.WatchRequest{FromRevision: from})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	w := &watcher{t: t, items: map[string]*hubv1.Resource{}, moved: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer stream.Close()
		for stream.Receive() {
			w.see(stream.Msg())
		}
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	return w
}

func (w *watcher) see(m *hubv1.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range m.GetPuts() {
		w.items[p.Key()] = p
	}
	for _, k := range m.GetDeletes() {
		delete(w.items, k)
	}
	if m.GetSnapshot() {
		w.snaps++
	}
	w.rev = max(w.rev, m.GetRevision())
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

func (w *watcher) revision() uint64 { w.mu.Lock(); defer w.mu.Unlock(); return w.rev }
func (w *watcher) snapshots() int   { w.mu.Lock(); defer w.mu.Unlock(); return w.snaps }

func (w *watcher) wait(ok func(map[string]*hubv1.Resource) bool) {
	w.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		w.mu.Lock()
		yes := ok(w.items)
		w.mu.Unlock()
		if yes {
			return
		}
		select {
		case <-w.moved:
		case <-deadline:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("not seen; has %v", w.items)
		}
	}
}
