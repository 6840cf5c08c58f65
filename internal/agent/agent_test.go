package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tcpServices(entries ...string) config.ServiceLists {
	return config.ServiceLists{TCP: "[" + strings.Join(entries, ",") + "]"}
}

func tcpEntry(name, origin string, port int) string {
	return fmt.Sprintf(`{"name": %q, "origin": %q, "listen_port": %d}`, name, origin, port)
}

func TestServe(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token()
	hub.setEdges(edge.Address())
	admit(edge, hub)
	a := runAgent(t, Config{Token: token, HealthAddr: "127.0.0.1:0", Services: tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222))})
	if d := hub.nextDeclare(); len(d.GetTunnels()) != 1 || d.GetTunnels()[0].GetName() != "echo" {
		t.Fatalf("declared %v", d)
	}
	r := edge.Replica(t)
	if got := say(t, visit(t, r, 2222), "hello"); got != "hello" {
		t.Errorf("got %q", got)
	}
	t.Run("an edge gets only what was declared", func(t *testing.T) {
		for name, h := range map[string]*wirev1.StreamHeader{
			"another tunnel": {TunnelId: "ffff", Kind: wirev1.Kind_KIND_TCP},
			"another kind":   {TunnelId: tcpID(2222), Kind: wirev1.Kind_KIND_HTTP},
			"another origin": {TunnelId: tcpID(2222), Kind: wirev1.Kind_KIND_TCP, Origin: 1},
		} {
			out, err := r.Open(t.Context(), h, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = out.Answer(t.Context())
			var e *reason.Error
			if !errors.As(err, &e) || e.Hop != reason.HopAgent || !e.Untouched {
				t.Errorf("%s: %v, want a refusal by the agent", name, err)
			}
			_ = out.Close()
		}
	})
	t.Run("health", func(t *testing.T) {
		eventually(t, "the edge's verdict", func() bool { return verdictAt(a, edge) == "ok" })
		code, body := fetch(t, a.HealthAddr(), "/readyz")
		var s Status
		if err := json.Unmarshal(body, &s); err != nil || code != 200 {
			t.Fatalf("%d %v %s", code, err, body)
		}
		if !s.Ready || len(s.Sessions) != 1 || s.Sessions[0].Carrier != "tls" || !s.Hub.Connected || s.Services[0].Verdict != "ok" || s.Services[0].URL == "" {
			t.Errorf("%s", body)
		}
		if code, _ := fetch(t, a.HealthAddr(), "/healthz"); code != 200 {
			t.Errorf("/healthz %d", code)
		}
		_, metrics := fetch(t, a.HealthAddr(), "/metrics")
		for _, m := range []string{`adit_agent_sessions{carrier="tls",edge="` + edge.Key.ID() + `",path="direct"} 1`, "adit_agent_session_reconnects_total", "adit_agent_streams 0", `adit_agent_bytes_total{direction="to_origin"} 5`, `adit_agent_services{verdict="ok"} 1`, `adit_agent_stream_errors_total{reason="no_agent"} 2`} {
			if !bytes.Contains(metrics, []byte(m)) {
				t.Errorf("/metrics lacks %s", m)
			}
		}
	})
}

// verdictAt is what edge makes of the first service.
func verdictAt(a *testAgent, edge *linktest.Edge) string {
	for _, s := range a.Status().Services {
		return s.Edges[edge.Key.ID()]
	}
	return ""
}

// admit lets every token of hub in at edge.
func admit(edge *linktest.Edge, hub *testHub) {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	for _, c := range hub.creds {
		edge.Set(&linktest.Token{Credential: c}, c)
	}
}

func fetch(t *testing.T, addr, path string) (int, []byte) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

func TestRefusedServices(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	hub.setVerdict(func(d *hubv1.DeclaredTunnel) *hubv1.Verdict {
		if d.GetPort() == 2223 {
			return &hubv1.Verdict{Code: string(reason.GrantMissing), Detail: "tcp port 2223 is not granted; ask for --tcp-port 2223"}
		}
		return &hubv1.Verdict{Code: string(reason.OK)}
	})
	lists := tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222), tcpEntry("refused", "127.0.0.1:1", 2223))

	t.Run("D13 one refused entry leaves the others working, and says why at once", func(t *testing.T) {
		a := runAgent(t, Config{Token: token, HealthAddr: "127.0.0.1:0", Services: lists})
		r := edge.Replica(t)
		if got := say(t, visit(t, r, 2222), "x"); got != "x" {
			t.Errorf("got %q", got)
		}
		eventually(t, "the log line", func() bool {
			return strings.Contains(a.log.String(), `msg="service refused" entry=tcp_services[1] service=refused reason=grant_missing detail="tcp port 2223 is not granted; ask for --tcp-port 2223"`)
		})
		_, body := fetch(t, a.HealthAddr(), "/readyz")
		if !bytes.Contains(body, []byte(`"verdict": "grant_missing"`)) || !bytes.Contains(body, []byte("ask for --tcp-port 2223")) {
			t.Errorf("/readyz: %s", body)
		}
		if n := strings.Count(a.log.String(), "service refused"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
	t.Run("D13 --fail-fast ends instead", func(t *testing.T) {
		a := runAgent(t, Config{Token: token, FailFast: true, Services: lists})
		err := receive(t, a.ended, "no end")
		a.ended <- err
		if !reason.Is(err, reason.GrantMissing) || !strings.Contains(err.Error(), "tcp_services[1] (refused)") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("--fail-fast with a revoked token", func(t *testing.T) {
		token, lt := hub.token(edge)
		hub.revoke(lt)
		a := runAgent(t, Config{Token: token, FailFast: true, Services: lists})
		err := receive(t, a.ended, "no end")
		a.ended <- err
		if !reason.Is(err, reason.TokenRevoked) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestReload(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	list := func(entries ...string) string { return "tcp_services: [" + strings.Join(entries, ",") + "]\n" }
	keep := tcpEntry("keep", tcpOrigin(t, echo), 2222)
	file := tempFile(t, "agent.yaml", list(keep, tcpEntry("change", tcpOrigin(t, banner("one")), 2223)))
	a := runAgent(t, Config{Token: token, ConfigFile: file})
	r := edge.Replica(t)
	hub.nextDeclare()
	if got := say(t, visit(t, r, 2223), ""); got != "one" {
		t.Fatalf("got %q", got)
	}
	held := visit(t, r, 2222)
	defer func() { _ = held.Close() }()
	if _, err := held.Answer(t.Context()); err != nil {
		t.Fatal(err)
	}

	two, three, four := tcpOrigin(t, banner("two")), tcpOrigin(t, banner("three")), tcpOrigin(t, banner("four"))
	t.Run("a changed entry is dialled anew, an unchanged one is not touched", func(t *testing.T) {
		writeFile(t, file, list(keep, tcpEntry("change", two, 2223), tcpEntry("new", three, 2224)))
		if d := hub.nextDeclare(); len(d.GetTunnels()) != 3 {
			t.Errorf("declared %v", d)
		}
		if got := say(t, visit(t, r, 2223), "") + say(t, visit(t, r, 2224), ""); got != "twothree" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("T29 an invalid file changes nothing and is explained", func(t *testing.T) {
		writeFile(t, file, list(keep, `{"name": "broken", "origin": "null:null", "listen_port": 0}`))
		eventually(t, "the problem in the status", func() bool { return strings.Contains(a.Status().ConfigProblem, `value "null:null"`) })
		if got := say(t, visit(t, r, 2223), ""); got != "two" {
			t.Errorf("got %q", got)
		}
		if n := len(a.Status().Services); n != 3 {
			t.Errorf("%d services", n)
		}
	})
	t.Run("T29 a target changed while the hub is away is used, and declared when it is back", func(t *testing.T) {
		bringBack := hub.takeAway()
		eventually(t, "the agent knows", func() bool { return !a.Status().Hub.Connected })
		writeFile(t, file, list(keep, tcpEntry("change", four, 2223)))
		eventually(t, "the new target", func() bool {
			s := a.Status()
			return len(s.Services) == 2 && s.ConfigProblem == "" && say(t, visit(t, r, 2223), "") == "four"
		})
		out := visit(t, r, 2224)
		if _, err := out.Answer(t.Context()); !reason.Is(err, reason.NoAgent) {
			t.Errorf("the removed service: %v, want no_agent", err)
		}
		_ = out.Close()
		bringBack()
		// One from before the hub went away may come first; nextDeclare fails if none comes.
		for len(hub.nextDeclare().GetTunnels()) != 2 {
			continue
		}
	})
	t.Run("the stream of the unchanged entry has lived through all of it", func(t *testing.T) {
		if _, err := io.WriteString(held, "still here"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 10)
		if _, err := io.ReadFull(held, buf); err != nil || string(buf) != "still here" {
			t.Errorf("%q, %v", buf, err)
		}
	})
}

func TestWithoutHub(t *testing.T) {
	lists := tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222))
	t.Run("T16 nothing there: no exit, and everything comes when it comes", func(t *testing.T) {
		hub := newTestHub(t)
		edge := linktest.NewEdge(t, nil, nil)
		token, _ := hub.token()
		bringBack := hub.takeAway()
		a := runAgent(t, Config{Token: token, Services: lists, HealthAddr: "127.0.0.1:0"})
		eventually(t, "the problem in the status", func() bool {
			s := a.Status()
			return !s.Hub.Connected && strings.Contains(s.Hub.Problem, "hub_unreachable")
		})
		if code, _ := fetch(t, a.HealthAddr(), "/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz %d without a session", code)
		}
		admit(edge, hub)
		hub.setEdges(edge.Address())
		bringBack()
		if got := say(t, visit(t, edge.Replica(t), 2222), "x"); got != "x" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the token's edges are enough", func(t *testing.T) {
		hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
		token, _ := hub.token(edge)
		hub.stop()
		a := runAgent(t, Config{Token: token, Services: lists})
		if got := say(t, visit(t, edge.Replica(t), 2222), "x"); got != "x" {
			t.Errorf("got %q", got)
		}
		eventually(t, "the edge's verdict", func() bool { return verdictAt(a, edge) == "ok" })
	})
	t.Run("edges name further edges, and the state folder remembers them", func(t *testing.T) {
		hub := newTestHub(t)
		var first, second *linktest.Edge
		both := func(cfg *link.AcceptorConfig) {
			cfg.Edges = func() []*wirev1.EdgeAddress { return []*wirev1.EdgeAddress{first.Address(), second.Address()} }
		}
		first, second = linktest.NewEdge(t, nil, both), linktest.NewEdge(t, nil, both)
		token, lt := hub.token(first)
		second.Set(lt, lt.Credential)
		hub.stop()
		state := t.TempDir()
		a := runAgent(t, Config{Token: token, Services: lists, StateDir: state})
		first.Replica(t)
		second.Replica(t)
		if err := a.end(t); err != nil {
			t.Fatal(err)
		}
		first.Close()
		saved, err := readState(filepath.Join(state, "edges.json"), lt.Credential.TokenId)
		if err != nil || len(saved) == 0 {
			t.Fatalf("saved %v, %v", saved, err)
		}
		runAgent(t, Config{Token: token, Services: lists, StateDir: state})
		second.Replica(t)
	})
	t.Run("a hub that comes with another list moves the sessions", func(t *testing.T) {
		hub, old, next := newTestHub(t), linktest.NewEdge(t, nil, nil), linktest.NewEdge(t, nil, nil)
		token, lt := hub.token(old)
		next.Set(lt, lt.Credential)
		hub.setEdges(old.Address())
		runAgent(t, Config{Token: token, Services: lists})
		old.Replica(t)
		hub.setEdges(next.Address())
		next.Replica(t)
		old.Left(t)
	})
}

func TestEdgeBehindHub(t *testing.T) {
	var asked atomic.Int64
	hub := newTestHub(t)
	edge := linktest.NewEdge(t, nil, func(cfg *link.AcceptorConfig) {
		cfg.Serve = func(_ *link.Replica, ids []string) []*wirev1.TunnelVerdict {
			verdict := reason.Pending
			if asked.Add(1) > 4 {
				verdict = reason.OK
			}
			var out []*wirev1.TunnelVerdict
			for _, id := range ids {
				out = append(out, &wirev1.TunnelVerdict{TunnelId: id, Verdict: string(verdict)})
			}
			return out
		}
	})
	token, _ := hub.token(edge)
	a := runAgent(t, Config{Token: token, Services: tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222))})
	eventually(t, "pending", func() bool { return verdictAt(a, edge) == "pending" })
	eventually(t, "ok, once the edge has heard of the tunnel", func() bool { return verdictAt(a, edge) == "ok" })
}

func TestDrain(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	hub.setEdges(edge.Address())
	lists := tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222))
	open := func(t *testing.T, cfg Config) (*testAgent, link.Outgoing) {
		t.Helper()
		cfg.Token, cfg.Services = token, lists
		a := runAgent(t, cfg)
		out := visit(t, edge.Replica(t), 2222)
		if _, err := out.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "linked to the hub", func() bool { return a.Status().Hub.Connected })
		return a, out
	}
	t.Run("running streams finish first", func(t *testing.T) {
		a, out := open(t, Config{})
		a.cancel()
		eventually(t, "draining", func() bool { return a.Status().Draining })
		for !receive(t, hub.reports, "no report of the drain").GetDraining() {
		}
		if got := say(t, out, "to the end"); got != "to the end" {
			t.Errorf("got %q", got)
		}
		if err := a.end(t); err != nil {
			t.Error(err)
		}
		edge.Left(t)
	})
	t.Run("the grace period ends it", func(t *testing.T) {
		a, out := open(t, Config{GracePeriod: 100 * time.Millisecond})
		defer func() { _ = out.Close() }()
		if err := a.end(t); err != nil {
			t.Error(err)
		}
		if !strings.Contains(a.log.String(), "streams were cut") {
			t.Error("not said")
		}
		edge.Left(t)
	})
	t.Run("Force ends it", func(t *testing.T) {
		a, out := open(t, Config{})
		defer func() { _ = out.Close() }()
		a.cancel()
		eventually(t, "draining", func() bool { return a.Status().Draining })
		a.Force()
		if err := a.end(t); err != nil {
			t.Error(err)
		}
		edge.Left(t)
	})
}

func TestTokenFile(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	first, _ := hub.token(edge)
	second, lt := hub.token(edge)
	file := tempFile(t, "token", first+"\n")
	a := runAgent(t, Config{TokenFile: file, Services: tcpServices(tcpEntry("echo", tcpOrigin(t, echo), 2222))})
	old := edge.Replica(t)
	held := visit(t, old, 2222)
	if _, err := held.Answer(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "adit_invite_broken")
	eventually(t, "the broken token is refused", func() bool { return strings.Contains(a.log.String(), "the changed token is not used") })
	writeFile(t, file, second)
	next := edge.Replica(t)
	if next.TokenID() != lt.Credential.TokenId {
		t.Errorf("joined with %s", next.TokenID())
	}
	if got := say(t, visit(t, next, 2222), "new"); got != "new" {
		t.Errorf("got %q", got)
	}
	// The old one's stream ends in its own time.
	if got := say(t, held, "old"); got != "old" {
		t.Errorf("got %q", got)
	}
	if left := edge.Left(t); left != old {
		t.Error("the wrong replica left")
	}
	if strings.Contains(a.log.String(), first) || strings.Contains(a.log.String(), second) {
		t.Error("a token is in the log")
	}
}

func TestNoServices(t *testing.T) {
	t.Run("L07 an empty configuration serves nothing and says so", func(t *testing.T) {
		hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
		token, _ := hub.token(edge)
		a := runAgent(t, Config{Token: token})
		r := edge.Replica(t)
		if !strings.Contains(a.log.String(), "no service is declared") {
			t.Error("not said")
		}
		out := visit(t, r, 8080)
		defer func() { _ = out.Close() }()
		if _, err := out.Answer(t.Context()); !reason.Is(err, reason.NoAgent) {
			t.Errorf("got %v, want no_agent", err)
		}
	})
}

func TestConfigErrors(t *testing.T) {
	hub := newTestHub(t)
	token, _ := hub.token()
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no token":           {Config{}, "ADIT_TOKEN"},
		"wrong kind":         {Config{Token: edgeToken(t)}, `kind "edge"`},
		"token file missing": {Config{TokenFile: filepath.Join(t.TempDir(), "x")}, "--token-file"},
		"config missing":     {Config{Token: token, ConfigFile: filepath.Join(t.TempDir(), "x")}, "--config"},
		"lists":              {Config{Token: token, Services: config.ServiceLists{TCP: "{"}}, "tcp_services"},
		"CA file":            {Config{Token: token, OriginCAFile: tempFile(t, "ca", "x")}, "CA file for origins"},
		"hub URL":            {Config{Token: token, ServerURL: "http://x"}, "https://HOST"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(c.cfg)
			if err == nil {
				err = a.Run(context.Background())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("a busy health address", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		a, err := New(Config{Token: token, HealthAddr: l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--health-addr") {
			t.Errorf("%v", err)
		}
		b := runAgent(t, Config{Token: token, HealthAddr: l.Addr().String(), HealthFallback: true})
		eventually(t, "another address", func() bool { return b.HealthAddr() != "" && b.HealthAddr() != l.Addr().String() })
	})
}

func edgeToken(t *testing.T) string {
	t.Helper()
	tok, err := identity.NewToken(identity.KindEdge, "https://hub.test", [][]byte{make([]byte, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := tok.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
