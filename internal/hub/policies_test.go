package hub

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

func TestAccessAndPolicies(t *testing.T) {
	h := newTestHub(t)
	h.enrol("home")
	pub := app("app")
	pub.Access = &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}
	h.create("home", pub)
	staff := &hubv1.Policy{Name: "staff", Access: &hubv1.Access{Rules: []*hubv1.AccessRule{{Domain: "example.com"}}}}
	t.Run("policies: made, replaced by version, bad ones refused", func(t *testing.T) {
		p, err := h.SetPolicy(t.Context(), staff)
		if err != nil || p.GetVersion() != 1 || p.GetSummary() != "Gets in anybody at example.com." {
			t.Fatal(p, err)
		}
		_, err = h.SetPolicy(t.Context(), &hubv1.Policy{Name: "staff", Version: 7, Access: staff.Access})
		wantProblem(t, err, reason.VersionConflict, "policy.version")
		for field, bad := range map[string]*hubv1.Policy{
			"policy.name":                   {Name: "a b", Access: staff.Access},
			"policy.access.rules":           {Name: "x"},
			"policy.access.mode":            {Name: "x", Access: &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}},
			"policy.access.policies":        {Name: "x", Access: &hubv1.Access{Policies: []string{"staff"}}},
			"policy.access.rules[0].domain": {Name: "x", Access: &hubv1.Access{Rules: []*hubv1.AccessRule{{Domain: "a b"}}}},
		} {
			_, err := h.SetPolicy(t.Context(), bad)
			wantProblem(t, err, reason.Invalid, field)
		}
	})
	t.Run("a rule makes a public tunnel protected; the last one gone it stays so", func(t *testing.T) {
		s, err := h.AddAccessRule(t.Context(), &hubv1.AddAccessRuleRequest{Label: "app", Rule: &hubv1.AccessRule{Email: "me@example.com"}})
		if err != nil || s.GetAccess().GetMode() != hubv1.Access_MODE_PROTECTED || s.GetSummary() != "Gets in me@example.com." {
			t.Fatal(s, err)
		}
		_, err = h.RemoveAccessRule(t.Context(), "app", "nothing")
		wantProblem(t, err, reason.NotFound, "rule_id")
		s, err = h.RemoveAccessRule(t.Context(), "app", s.GetAccess().GetRules()[0].GetId())
		if err != nil || s.GetAccess().GetMode() != hubv1.Access_MODE_PROTECTED || s.GetSummary() != "Only the owner gets in." {
			t.Fatal(s, err)
		}
	})
	t.Run("a policy in use cannot be deleted", func(t *testing.T) {
		s, err := h.SetAccess(t.Context(), &hubv1.SetAccessRequest{Label: "app", Access: &hubv1.Access{Policies: []string{"staff"}}})
		if err != nil || s.GetSummary() != "Gets in anybody at example.com." {
			t.Fatal(s, err)
		}
		wantProblem(t, h.DeletePolicy(t.Context(), "staff"), reason.InUse, "name")
		l, _, err := h.ListPolicies(t.Context(), 0, "")
		if err != nil || len(l) != 1 || !slices.Equal(l[0].GetUsedBy(), []string{"app"}) {
			t.Fatal(l, err)
		}
		_, err = h.SetAccess(t.Context(), &hubv1.SetAccessRequest{Label: "app", Version: 1, Access: &hubv1.Access{}})
		wantProblem(t, err, reason.VersionConflict, "version")
		if err := h.DeleteTunnel(t.Context(), "app", false); err != nil {
			t.Fatal(err)
		}
		if err := h.DeletePolicy(t.Context(), "staff"); err != nil {
			t.Error(err)
		}
		wantProblem(t, h.DeletePolicy(t.Context(), "staff"), reason.NotFound, "")
	})
	t.Run("rules that need a sign-in are refused where there is none", func(t *testing.T) {
		h.create("home", portTunnel(wirev1.Kind_KIND_TCP, 2222))
		_, err := h.AddAccessRule(t.Context(), &hubv1.AddAccessRuleRequest{Label: "tcp:2222", Rule: &hubv1.AccessRule{Email: "me@example.com"}})
		if p := wantProblem(t, err, reason.Invalid, "access.rules[0].email"); !strings.Contains(p.Remedy, "terminate") {
			t.Error(p)
		}
		s, err := h.GetAccess(t.Context(), "tcp:2222")
		if err != nil || len(s.GetAccess().GetRules()) != 0 {
			t.Error("it was stored all the same", s, err)
		}
	})
}

func TestChangeInvite(t *testing.T) {
	h := newTestHub(t)
	i := h.invite_("home", "a.test")
	h.grant("other", &hubv1.CreateInviteRequest{Hostnames: []string{"other.test"}})
	set := func(to *hubv1.Invite, fields ...string) (*hubv1.Invite, error) {
		return h.UpdateInvite(t.Context(), &hubv1.UpdateInviteRequest{Id: "home", Invite: to, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
	}
	hosts := func(names ...string) *hubv1.Invite { return &hubv1.Invite{Grant: &hubv1.Grant{Hostnames: names}} }
	t.Run("bad input", func(t *testing.T) {
		for _, c := range []struct {
			code  reason.Code
			field string
			to    *hubv1.Invite
			mask  []string
		}{
			{reason.Invalid, "update_mask", &hubv1.Invite{}, nil},
			{reason.Invalid, "update_mask", &hubv1.Invite{}, []string{"name"}},
			{reason.Invalid, "grant.hostnames", &hubv1.Invite{}, []string{"grant"}},
			{reason.Invalid, "grant.hostnames[0]", hosts("a b"), []string{"grant"}},
			{reason.NameConflict, "grant.hostnames[1]", hosts("a.test", "other.test"), []string{"grant"}},
			{reason.Invalid, "expires_at", &hubv1.Invite{ExpiresAt: timestamppb.New(h.clock.now().Add(-time.Hour))}, []string{"expires_at"}},
			{reason.Invalid, "expires_sessions", &hubv1.Invite{ExpiresSessions: true}, []string{"expires_sessions"}},
			{reason.Invalid, "max_replicas", &hubv1.Invite{MaxReplicas: 1 << 20}, []string{"max_replicas"}},
			{reason.Invalid, "from[0]", &hubv1.Invite{From: []string{"x"}}, []string{"from"}},
		} {
			_, err := set(c.to, c.mask...)
			wantProblem(t, err, c.code, c.field)
		}
	})
	t.Run("what is granted changes what agents may declare, and they are told to ask again", func(t *testing.T) {
		x := h.replica(i)
		if v := x.declare(web("b.test")); v[0].GetCode() != string(reason.GrantMissing) {
			t.Fatal(v)
		}
		told := make(chan bool, 8)
		until := h.watch(Watcher{TokenID: i.GetId()}, 0, func(m *hubv1.WatchResponse) {
			if m.GetRedeclare() {
				told <- true
			}
		})
		if _, err := set(hosts("a.test", "b.test"), "grant"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case <-time.After(30 * time.Second):
			t.Fatal("the agent was not told")
		}
		_ = until
		x.ok(web("b.test"))
		got, _ := h.GetInvite(t.Context(), "home")
		if !slices.Equal(got.GetGrant().GetHostnames(), []string{"a.test", "b.test"}) {
			t.Error(got)
		}
	})
	t.Run("a name that was in the way is gone: whoever wanted it is told", func(t *testing.T) {
		h.enrol("agent")
		h.create("agent", app("wanted"))
		j := h.grant("wants", &hubv1.CreateInviteRequest{Hostnames: []string{"free.test"}, TcpPorts: []*hubv1.PortRange{r(6000, 6000)}})
		_ = j
		at := h.feed.at()
		y := h.replica(i)
		y.declare(&hubv1.DeclaredTunnel{Key: "x", Kind: wirev1.Kind_KIND_HTTP, Hostname: "wanted.example.com", Origin: &hubv1.Origin{Url: "http://127.0.0.1:80"}})
		if err := h.DeleteTunnel(t.Context(), "wanted", true); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, c := range h.feed.log {
			found = found || c.revision > at && c.item == verdictsItem(i.GetId())
		}
		if !found {
			t.Error("nobody is told")
		}
	})
	t.Run("rotated: the same invite with two tokens; revoked: both end", func(t *testing.T) {
		got, token, ends, err := h.RotateInvite(t.Context(), &hubv1.RotateInviteRequest{Id: "home", Overlap: durationpb.New(time.Hour)})
		if err != nil || got.GetId() != i.GetId() || ends.Sub(h.clock.now()) != time.Hour {
			t.Fatal(got, err)
		}
		id := tokenKeys(t, token).Public().HexID()
		c, err := h.Credential(t.Context(), id)
		if err != nil || c.GetMemberOf() != i.GetId() || !slices.Equal(c.GetGrant().GetHostnames(), []string{"a.test", "b.test"}) {
			t.Fatal(c, err)
		}
		// What runs with the new token declares the same tunnels as what runs with the old one.
		z := h.replica(&hubv1.Invite{Id: id})
		ids := z.ok(web("a.test"))
		if tok := h.tunnel(ids[0]).GetTokenIds(); !slices.Equal(tok, []string{i.GetId()}) {
			t.Error(tok)
		}
		if l, _, _ := h.ListInvites(t.Context(), 0, ""); len(l) != 3 {
			t.Errorf("%d invites are listed", len(l))
		}
		_, _, _, err = h.RotateInvite(t.Context(), &hubv1.RotateInviteRequest{Id: "home", Overlap: durationpb.New(-time.Hour)})
		wantProblem(t, err, reason.Invalid, "overlap")
		if _, err := h.RevokeInvite(t.Context(), "home"); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{id, i.GetId()} {
			if c := h.feed.get("credential/" + id).GetCredential(); !c.GetRevoked() {
				t.Error(c)
			}
		}
	})
	t.Run("tenants and the names they keep", func(t *testing.T) {
		l, _, err := h.ListTenants(t.Context(), 0, "")
		if err != nil || len(l) < 3 {
			t.Fatal(l, err)
		}
		held := 0
		for _, x := range l {
			held += len(x.GetHeld())
		}
		if held == 0 {
			t.Errorf("no name is kept: %v", l)
		}
		wantProblem(t, h.ReleaseName(t.Context(), "nothing.test"), reason.NotFound, "name")
	})
}

// TestKeysWithHostPatterns has a key that is limited to hosts change nothing outside them.
func TestKeysWithHostPatterns(t *testing.T) {
	h := newTestHub(t)
	h.enrol("home")
	h.create("home", app("other"))
	h.invite_("foreign", "x.test")
	ctx := WithActor(t.Context(), &Actor{Name: "key", Role: RoleAdmin, Hosts: []string{"*.mine.test"}, UserID: "u1"})
	ok := &hubv1.Tunnel{Kind: wirev1.Kind_KIND_HTTP, Hostname: "a.mine.test", Origins: app("x").Origins}
	s, err := h.CreateTunnel(ctx, &hubv1.CreateTunnelRequest{Tunnel: ok, Agent: "home"})
	if err != nil || s.GetTunnel().GetOwner() != "u1" {
		t.Fatal(s, err)
	}
	mask := &fieldmaskpb.FieldMask{Paths: []string{"name"}}
	for name, call := range map[string]func() error{
		"create another name": func() error {
			_, err := h.CreateTunnel(ctx, &hubv1.CreateTunnelRequest{Tunnel: app("x"), Agent: "home"})
			return err
		},
		"create a port": func() error {
			_, err := h.CreateTunnel(ctx, &hubv1.CreateTunnelRequest{Tunnel: portTunnel(wirev1.Kind_KIND_TCP, 0), Agent: "home"})
			return err
		},
		"change another one": func() error {
			_, err := h.UpdateTunnel(ctx, &hubv1.UpdateTunnelRequest{Label: "other", Tunnel: &hubv1.Tunnel{Name: "x"}, UpdateMask: mask})
			return err
		},
		"take another name": func() error {
			_, err := h.UpdateTunnel(ctx, &hubv1.UpdateTunnelRequest{Label: "a.mine.test", Tunnel: &hubv1.Tunnel{Hostname: "b.test"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"hostname"}}})
			return err
		},
		"delete another one": func() error { return h.DeleteTunnel(ctx, "other", false) },
		"open another one": func() error {
			_, err := h.SetAccess(ctx, &hubv1.SetAccessRequest{Label: "other", Access: &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}})
			return err
		},
		"make a wide invite": func() error {
			_, _, err := h.CreateInvite(ctx, &hubv1.CreateInviteRequest{Name: "wide", Hostnames: []string{"*.test"}})
			return err
		},
		"make an agent with a port": func() error {
			_, _, err := h.CreateAgent(ctx, &hubv1.CreateAgentRequest{Name: "w", Grant: &hubv1.Grant{TcpPorts: []*hubv1.PortRange{r(5000, 5000)}}})
			return err
		},
		"rotate an invite": func() error {
			_, _, _, err := h.RotateInvite(ctx, &hubv1.RotateInviteRequest{Id: "foreign"})
			return err
		},
		"revoke an invite": func() error { _, err := h.RevokeInvite(ctx, "foreign"); return err },
		"rotate an agent": func() error {
			_, _, _, err := h.RotateAgent(ctx, &hubv1.RotateAgentRequest{Id: "home"})
			return err
		},
		"delete an agent":     func() error { return h.DeleteAgent(ctx, "home", true) },
		"switch an agent off": func() error { _, err := h.SetAgentEnabled(ctx, "home", false); return err },
		"set a policy": func() error {
			_, err := h.SetPolicy(ctx, &hubv1.Policy{Name: "p", Access: &hubv1.Access{Rules: []*hubv1.AccessRule{{Public: true}}}})
			return err
		},
		"release a name": func() error { return h.ReleaseName(ctx, "x.test") },
	} {
		if err := call(); !reason.Is(err, reason.AccessDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
