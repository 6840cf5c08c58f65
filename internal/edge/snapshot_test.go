package edge

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

func TestHubAway(t *testing.T) {
	tok := linktest.NewToken(t)
	port := freeport.One(t)
	path, secret := snapshotAt(t)
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	hub := newHubFeed(credentialOf(tok), tunnelOf(onPort(newTunnel(tok, "a", wirev1.Kind_KIND_TCP, "tcp://o:1"), port)))
	keep := func(c *Config) { c.SnapshotPath, c.SecretKey, c.Key = path, secret, key }
	r := startEdge(t, hub, keep).ready()
	eventually(t, "the connection to the hub", r.Connected)
	eventually(t, "the snapshot on disk", func() bool { _, err := os.Stat(path); return err == nil })
	startAgent(r, tok, link.CarrierQUIC, map[string]string{"a": echo(t)})
	eventually(t, "a being served", r.serves("a"))
	c := dialPort(t, port)
	wantEcho(t, c, "before")
	hub.setDown(true)
	eventually(t, "the loss of the hub", func() bool { return !r.Connected() })
	eventually(t, "the loss in the metric", func() bool { return testutil.ToFloat64(r.metrics.connected) == 0 })
	t.Run("invariant 1: traffic goes on without the hub", func(t *testing.T) {
		wantEcho(t, c, "during")
		wantEcho(t, dialPort(t, port), "new")
	})
	r.stop()
	t.Run("invariant 1: a restarted edge serves from its snapshot, agents come back", func(t *testing.T) {
		again := startEdge(t, hub, keep).ready()
		if again.Connected() {
			t.Error("says connected")
		}
		startAgent(again, tok, link.CarrierTLS, map[string]string{"a": echo(t)})
		eventually(t, "a being served", again.serves("a"))
		wantEcho(t, dialPort(t, port), "after")
		hub.setDown(false)
		eventually(t, "the hub's return", again.Connected)
		again.stop()
	})
	t.Run("the snapshot is sealed, with this edge's keys only", func(t *testing.T) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(tok.Credential.TokenId)) || bytes.Contains(data, tok.Credential.Ed25519Public) {
			t.Error("content is in clear")
		}
		if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		good := snapshotFile{path: path, key: secret, edge: key.ID()}
		if _, m, err := good.read(); err != nil || len(m.Puts) != 2 {
			t.Errorf("%v, %v", m, err)
		}
		for name, bad := range map[string]*snapshotFile{
			"another key":  {path: path, key: bytes.Repeat([]byte{1}, 32), edge: key.ID()},
			"another edge": {path: path, key: secret, edge: "other"},
		} {
			if _, _, err := bad.read(); err == nil {
				t.Errorf("opens for %s", name)
			}
		}
	})
	t.Run("a damaged snapshot is no reason not to start", func(t *testing.T) {
		for _, damage := range [][]byte{nil, []byte("x"), []byte(snapshotMagic), append([]byte(snapshotMagic), make([]byte, 100)...)} {
			if err := os.WriteFile(path, damage, 0o600); err != nil {
				t.Fatal(err)
			}
			startEdge(t, hub, keep).ready().stop()
		}
	})
}

func TestSnapshotIsAppliedWhole(t *testing.T) {
	tok := linktest.NewToken(t)
	a := tunnelOf(named(newTunnel(tok, "a", wirev1.Kind_KIND_HTTP, "http://o:1"), "a.test"))
	b := tunnelOf(named(newTunnel(tok, "b", wirev1.Kind_KIND_HTTP, "http://o:1"), "b.test"))
	hub := newHubFeed()
	hub.down = true
	r := startEdge(t, hub, nil)
	has := func(id string) bool { return r.view.Load().table.Get(id) != nil }
	if err := r.apply(&hubv1.WatchResponse{Complete: true, Puts: []*hubv1.Resource{a}}); err == nil {
		t.Error("a delta before any snapshot was taken")
	}
	_ = r.apply(&hubv1.WatchResponse{Snapshot: true, Puts: []*hubv1.Resource{a}})
	if has("a") {
		t.Fatal("half a snapshot counts")
	}
	if err := r.apply(&hubv1.WatchResponse{Complete: true, Puts: []*hubv1.Resource{b}}); err == nil {
		t.Error("a delta amid a snapshot was taken")
	}
	_ = r.apply(&hubv1.WatchResponse{Snapshot: true, Complete: true, Revision: 5, Puts: []*hubv1.Resource{b}})
	if !has("a") || !has("b") || r.view.Load().revision != 5 {
		t.Fatal("a whole snapshot does not count")
	}
	before := r.view.Load().table.Get("b")
	_ = r.apply(&hubv1.WatchResponse{Snapshot: true, Complete: true, Revision: 6, Puts: []*hubv1.Resource{b}})
	if has("a") {
		t.Error("what a later snapshot leaves out stays")
	}
	if r.view.Load().table.Get("b") != before {
		t.Error("what did not change was replaced")
	}
}

func TestSnapshotTooOld(t *testing.T) {
	tok := linktest.NewToken(t)
	hub := newHubFeed(credentialOf(tok))
	r := startEdge(t, hub, func(c *Config) { c.MaxSnapshotAge = 50 * time.Millisecond }).ready()
	hub.setDown(true)
	eventually(t, "the refusal", func() bool { return r.tooOld() != nil })
	a := startAgent(r, tok, link.CarrierQUIC, nil)
	if err := <-a.refused; !reason.Is(err, reason.HubUnreachable) {
		t.Errorf("%v", err)
	}
}
