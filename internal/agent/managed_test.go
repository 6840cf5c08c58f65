package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
)

// managedTCP is a managed tunnel to a TCP origin.
func managedTCP(id, origin string) *hubv1.Tunnel {
	return &hubv1.Tunnel{Id: id, Name: id, Kind: wirev1.Kind_KIND_TCP, Port: 2222, Source: "managed", Origins: []*hubv1.Origin{{Url: "tcp://" + origin}},
		Access: &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}}
}

// stream opens a stream of a tunnel and returns what its origin says, or the refusal.
func stream(t *testing.T, r *link.Replica, id string) (string, error) {
	t.Helper()
	out, err := r.Open(t.Context(), &wirev1.StreamHeader{TunnelId: id, Kind: wirev1.Kind_KIND_TCP}, 0, nil)
	if err != nil {
		return "", err
	}
	defer out.Close()
	a, err := out.Answer(t.Context())
	if err != nil {
		return "", err
	}
	if a.GetRefusal() != nil {
		return a.GetRefusal().GetReason(), nil
	}
	buf := make([]byte, 16)
	n, err := out.Read(buf)
	return string(buf[:n]), err
}

func says(t *testing.T, r *link.Replica, id, want string) {
	t.Helper()
	eventually(t, id+" answers "+want, func() bool {
		got, err := stream(t, r, id)
		if err != nil {
			return strings.Contains(err.Error(), want)
		}
		return got == want
	})
}

func TestManagedSet(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.tokenOf(identity.KindAgent)
	hub.setEdges(edge.Address())
	admit(edge, hub)
	one, two := tcpOrigin(t, banner("one")), tcpOrigin(t, banner("two"))
	hub.setManaged(false, managedTCP("a", one), managedTCP("b", one))
	state := t.TempDir()
	a := runAgent(t, Config{Token: token, StateDir: state})
	r := edge.Replica(t)
	says(t, r, "a", "one")
	says(t, r, "b", "one")

	t.Run("T29 a target is changed while the agent reconnects: half a snapshot counts for nothing", func(t *testing.T) {
		hub.setManaged(true) // every watch breaks off after an empty first chunk
		eventually(t, "the watch broke off", func() bool { return strings.Contains(a.log.String(), "no link to the hub") })
		says(t, r, "a", "one")
		hub.setManaged(false, managedTCP("a", two), managedTCP("b", one))
		says(t, r, "a", "two")
		says(t, r, "b", "one")
	})
	t.Run("only what changed is made anew", func(t *testing.T) {
		before := a.handler.table.Load().byID["b"]
		hub.setManaged(false, managedTCP("a", one), managedTCP("b", one))
		says(t, r, "a", "one")
		if a.handler.table.Load().byID["b"] != before {
			t.Error("an unchanged tunnel was made anew")
		}
	})
	t.Run("a bad tunnel is there with its reason, and harms no other", func(t *testing.T) {
		bad := managedTCP("bad", one)
		bad.Origins[0].Url = "gopher://x"
		hub.setManaged(false, managedTCP("a", two), bad)
		says(t, r, "a", "two")
		says(t, r, "bad", "invalid")
		says(t, r, "b", "no_agent")
		eventually(t, "it is reported", func() bool {
			select {
			case rep := <-hub.reports:
				for _, x := range rep.GetTunnels() {
					if x.GetTunnelId() == "bad" && x.GetState() == "problem" && x.GetReason() == "invalid" {
						return true
					}
				}
			default:
			}
			return false
		})
	})
	t.Run("one that is switched off is not served", func(t *testing.T) {
		off := managedTCP("a", two)
		off.Disabled = true
		hub.setManaged(false, off)
		says(t, r, "a", "no_agent")
		hub.setManaged(false, managedTCP("a", two))
		says(t, r, "a", "two")
	})
	t.Run("the set is kept, for nobody else to read, and brings the agent back without the hub", func(t *testing.T) {
		path := filepath.Join(state, "managed.json")
		eventually(t, "the set is saved", func() bool {
			b, _ := os.ReadFile(path)
			return strings.Contains(string(b), two)
		})
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
			t.Error(i, err)
		}
		_ = a.end(t)
		defer hub.takeAway()()
		again := runAgent(t, Config{Token: token, StateDir: state, HealthAddr: "127.0.0.1:0"})
		eventually(t, "a session", func() bool { return again.Status().Ready })
		fresh := edge.Replica(t)
		says(t, fresh, "a", "two")
		if !strings.Contains(again.log.String(), "source=state") {
			t.Error("it does not say where the set is from")
		}
	})
	t.Run("a saved set that is broken, or another token's, is not used", func(t *testing.T) {
		defer hub.takeAway()() // what is there then is from the file
		for name, content := range map[string]string{"broken": "{", "other": `{"token_id":"x","tunnels":[{"id":"a"}]}`} {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "managed.json"), content)
			x := runAgent(t, Config{Token: token, StateDir: dir})
			eventually(t, name+": it runs", func() bool { return x.current.Load() != nil })
			if n := x.handler.table.Load().managed(); n != 0 {
				t.Errorf("%s: %d tunnels", name, n)
			}
			_ = x.end(t)
		}
	})
}

// TestWaitsForTheHub has an enrolled agent without hub and state wait and say so: it does not end.
func TestWaitsForTheHub(t *testing.T) {
	hub := newTestHub(t)
	token, _ := hub.tokenOf(identity.KindAgent)
	back := hub.takeAway()
	a := runAgent(t, Config{Token: token, HealthAddr: "127.0.0.1:0"})
	t.Run("T16 refused and unreachable: no exit, back-off, visible", func(t *testing.T) {
		eventually(t, "it says so", func() bool { return strings.Contains(a.log.String(), "no link to the hub") })
		code, body := fetch(t, a.HealthAddr(), "/readyz")
		var s Status
		if err := json.Unmarshal(body, &s); err != nil || code != http.StatusServiceUnavailable || s.Hub.Problem == "" {
			t.Errorf("%d %s", code, body)
		}
		back()
		eventually(t, "it is linked", func() bool { return a.Status().Hub.Connected })
	})
}

func TestHealthChecks(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.tokenOf(identity.KindAgent)
	hub.setEdges(edge.Address())
	admit(edge, hub)
	var sick atomic.Bool
	var host atomic.Value
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host.Store(r.Host)
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, "ok")
	}))
	defer app.Close()
	x := &hubv1.Tunnel{Id: "a", Name: "a", Kind: wirev1.Kind_KIND_HTTP, Hostname: "a.test", Source: "managed",
		Origins:     []*hubv1.Origin{{Url: app.URL}, {Url: "http://" + refusedPort(t)}},
		HealthCheck: &hubv1.HealthCheck{Path: "/healthz", IntervalSeconds: 5, TimeoutSeconds: 1}}
	hub.setManaged(false, x)
	a := runAgent(t, Config{Token: token})
	eventually(t, "one origin fails", func() bool {
		f := a.checks.failing()
		return len(f) == 1 && f[0].GetTunnelId() == "a" && len(f[0].GetFailing()) == 1 && f[0].GetFailing()[0] == 1
	})
	eventually(t, "the other one is asked as visitors ask", func() bool { return host.Load() == "a.test" })
	if e := a.problem(a.handler.table.Load().byID["a"]); e == nil || !strings.Contains(e.Detail, "1 of 2 origins") {
		t.Error(e)
	}
	t.Run("a check that is gone says nothing any more", func(t *testing.T) {
		y := managedTCP("a", "127.0.0.1:1")
		hub.setManaged(false, y)
		eventually(t, "nothing fails", func() bool { return len(a.checks.failing()) == 0 })
	})
	t.Run("a sick origin fails by its status", func(t *testing.T) {
		sick.Store(true)
		z := &hubv1.Tunnel{Id: "z", Name: "z", Kind: wirev1.Kind_KIND_HTTP, Hostname: "*.test", Source: "managed", Origins: []*hubv1.Origin{{Url: app.URL}},
			HealthCheck: &hubv1.HealthCheck{Path: "/"}}
		hub.setManaged(false, z)
		eventually(t, "it fails", func() bool {
			e := a.checks.failure("z")
			return e != nil && strings.Contains(e.Detail, "500")
		})
		if got := host.Load(); got != strings.TrimPrefix(app.URL, "http://") {
			t.Errorf("a wildcard's origin is asked for %v", got)
		}
	})
}
