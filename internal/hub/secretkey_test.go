package hub

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/identity"
)

// TestSealedColumns: a rotation knows every column of bytes, so that none is forgotten.
func TestSealedColumns(t *testing.T) {
	h := newTestHub(t)
	if h.store.Shared() {
		return // one schema for both
	}
	plain := []string{
		"meta.value", "tokens.ed25519", "tokens.mldsa65", "tunnels.spec", "declarations.entry", "declarations.verdict", "edges.key", "edges.spec",
		"certificates.chain", "hub_reports.body", "policies.spec", "events.entry", "conditions.entry", "traffic.counters", "notice_targets.spec",
		"links.hash", "api_keys.hash", "sign_ins.hash", "device_requests.hash", "oidc_flows.hash", "providers.spec", "asks.ask", "asks.answer", "discovered.spec", "discoveries.providers",
	}
	db, err := sql.Open("sqlite", filepath.Join(h.cfg.DataDir, "adit.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), "SELECT m.name || '.' || c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND c.type = 'BLOB'")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		sealed := slices.ContainsFunc(sealedColumns, func(c struct {
			table, key, column string
			purpose            func(string) string
		}) bool {
			return c.table+"."+c.column == name
		})
		table, _, _ := strings.Cut(name, ".")
		sealed = sealed || slices.Contains(sealedForMinutes, table)
		if !sealed && !slices.Contains(plain, name) {
			t.Errorf("%s: is it sealed? Add it to sealedColumns, else to this test", name)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func (h *testHub) rotate(step RotateStep) {
	h.t.Helper()
	if _, err := RotateSecretKey(h.t.Context(), h.store, h.secretPath(), step); err != nil {
		h.t.Fatal(err)
	}
}

// TestRotateSecretKey: after each step, a hub that goes on and one that starts open everything.
func TestRotateSecretKey(t *testing.T) {
	h := newTestHub(t)
	if err := h.PutSecret(t.Context(), "s", []byte("plain")); err != nil {
		t.Fatal(err)
	}
	if err := h.publish(t.Context(), "a.example.com", nil, &hubv1.Certificate{Name: "a.example.com", ChainPem: []byte("c"), KeyPem: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	opens := func(when string) {
		t.Helper()
		if got, err := h.GetSecret(t.Context(), "s"); err != nil || string(got) != "plain" {
			t.Errorf("%s: %q, %v", when, got, err)
		}
		if c := h.feed.get("certificate/a.example.com").GetCertificate(); string(c.GetKeyPem()) != "k" {
			t.Errorf("%s: certificate %v", when, c)
		}
	}
	old, err := os.ReadFile(h.secretPath())
	if err != nil {
		t.Fatal(err)
	}
	identityBefore := h.Key().Hash()
	for i, step := range []RotateStep{AddKey, AddKey, Reseal, DropKeys} {
		h.rotate(step)
		if err := h.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h.store.Shared() {
			opens("going on") // with SQLite the server does not run meanwhile
		}
		h.restart()
		opens("restarted")
		if keys, err := identity.LoadOrCreateSecrets(h.secretPath()); err != nil || len(keys) != []int{2, 2, 2, 1}[i] {
			t.Errorf("step %d: %d keys, %v", i, len(keys), err)
		}
	}
	if string(h.Key().Hash()) != string(identityBefore) {
		t.Error("the hub has another identity")
	}
	if err := os.WriteFile(h.secretPath(), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), h.cfg); err == nil {
		t.Error("the old key is still good")
	}
}

// TestRotateIdentity: tokens made before and after a rotation work during the overlap.
func TestRotateIdentity(t *testing.T) {
	h := newTestHub(t)
	before := h.Key().Hash()
	if _, err := RotateIdentity(t.Context(), h.store, h.secretPath(), time.Hour, h.clock.now()); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if string(h.Key().Hash()) == string(before) || len(h.Key().Certificate().Certificate) != 2 {
		t.Error("the key is the same, or nobody vouches for it")
	}
	_, text, err := h.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "x", Hostnames: []string{"x.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := identity.ParseToken(text)
	if pins := token.Body.GetHubPins(); err != nil || len(pins) != 2 || string(pins[0]) != string(h.Key().Hash()) || string(pins[1]) != string(before) {
		t.Errorf("pins %x, %v", pins, err)
	}
	now := h.Key().Hash()
	h.clock.add(2 * time.Hour)
	h.restart()
	if string(h.Key().Hash()) != string(now) || len(h.Key().Certificate().Certificate) != 1 || len(h.pins) != 1 {
		t.Error("the overlap does not end")
	}
}
