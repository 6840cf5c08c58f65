package hub

import (
	"net/netip"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

func TestOpenForward(t *testing.T) {
	h := newTestHub(t)
	r := h.replica(h.invite_("site", "*.example.com"))
	open := func(a *Actor, target string) (*hubv1.OpenForwardResponse, error) {
		ctx := t.Context()
		if a != nil {
			ctx = WithActor(ctx, a)
		}
		return h.OpenForward(ctx, &hubv1.OpenForwardRequest{Agent: "site", Target: target})
	}
	local := &Actor{Name: "local-admin@x", Role: RoleOwner, Local: true, From: netip.MustParseAddr("127.0.0.1")}
	if _, err := open(local, "10.0.0.5:22"); !reason.Is(err, reason.NoAgent) {
		t.Errorf("without a session: %v, want no_agent", err)
	}
	defer h.Serving(r.caller)()
	h.report(r.session())
	for _, target := range []string{"", "10.0.0.5", "udp://10.0.0.5:22", "http://10.0.0.5:80", "a b:1"} {
		if _, err := open(local, target); !reason.Is(err, reason.Invalid) {
			t.Errorf("target %q: %v, want invalid", target, err)
		}
	}
	if _, err := open(nil, "10.0.0.5:22"); !reason.Is(err, reason.AccessDenied) {
		t.Errorf("nobody: %v, want access_denied", err)
	}
	user := &store.User{ID: "u1", Name: "Ann", NameKey: "ann", Role: RoleAdmin}
	key := &store.Key{ID: "k1", Name: "k", UserID: "u1", Hash: []byte("h"), ExpiresAt: h.clock.now().Add(48 * time.Hour).UnixMilli()}
	signIn := &store.SignIn{ID: "s1", Hash: []byte("s"), UserID: "u1", ExpiresAt: h.clock.now().Add(48 * time.Hour).UnixMilli()}
	change := func(f func(tx *store.Tx) error) {
		t.Helper()
		if err := h.store.Write(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	change(func(tx *store.Tx) error {
		for _, err := range []error{tx.AddUser(user), tx.AddKey(key), tx.AddSignIn(signIn)} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	byKey := &Actor{Name: "key:k@Ann", UserID: "u1", Role: RoleAdmin, KeyID: "k1"}
	bySignIn := &Actor{Name: "Ann", UserID: "u1", Role: RoleAdmin, SignInID: "s1"}
	forwarder := func(a *Actor) string {
		t.Helper()
		x, err := open(a, "tcp://DB.lan:5432")
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := forward.Verify(h.settings().GetSettings().GetSigningKeys(), x.GetTicket(), h.clock.now())
		if err != nil || ticket.GetTarget() != "db.lan:5432" || ticket.GetAgent() != r.key().token || len(x.GetEdges()) != 1 || len(x.GetAddresses()) != 1 {
			t.Fatalf("%v, %v, %v", x, ticket, err)
		}
		if h.feed.get("forwarder/"+ticket.GetForwarder()) == nil {
			t.Fatal("edges hear nothing of the forwarder")
		}
		return "forwarder/" + ticket.GetForwarder()
	}
	lives := func(item string, want bool) {
		t.Helper()
		if err := h.checkForwarders(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := h.feed.get(item) != nil; got != want {
			t.Errorf("%s lives: %v, want %v", item, got, want)
		}
	}
	l, k, s := forwarder(local), forwarder(byKey), forwarder(bySignIn)
	if l == k || k == s || forwarder(byKey) != k {
		t.Errorf("forwarders %s %s %s", l, k, s)
	}
	lives(l, true)
	lives(k, true)
	lives(s, true)
	change(func(tx *store.Tx) error { return tx.DropKey("k1") })
	lives(k, false)
	lives(s, true)
	user.Role = RoleViewer
	change(func(tx *store.Tx) error { return tx.PutUser(user) })
	lives(s, false)
	user.Role = RoleAdmin
	change(func(tx *store.Tx) error { return tx.PutUser(user) })
	s = forwarder(bySignIn)
	user.Disabled = true
	change(func(tx *store.Tx) error { return tx.PutUser(user) })
	lives(s, false)
	h.restart()
	lives(l, true)
	h.clock.add(forwarderTime + time.Second)
	lives(l, false)
	defer h.Serving(r.caller)()
	h.report(r.session())
	l = forwarder(local)
	if _, err := h.RevokeInvite(t.Context(), r.key().token); err != nil {
		t.Fatal(err)
	}
	lives(l, false)
}
