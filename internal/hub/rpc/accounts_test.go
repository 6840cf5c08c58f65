package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

const goodPassword = "correct horse battery"

var loopback = hub.Browser{Address: netip.MustParseAddr("127.0.0.1"), UserAgent: "test"}

// api are the clients of one credential.
type api struct {
	users    hubv1connect.UserServiceClient
	keys     hubv1connect.KeyServiceClient
	sessions hubv1connect.SessionServiceClient
	audit    hubv1connect.AuditServiceClient
	invites  hubv1connect.InviteServiceClient
	ports    hubv1connect.PortServiceClient
}

func (s *server) as(key string) api {
	c, base := s.oneClient()
	o := connect.WithInterceptors(person{key})
	return api{hubv1connect.NewUserServiceClient(c, base, o), hubv1connect.NewKeyServiceClient(c, base, o), hubv1connect.NewSessionServiceClient(c, base, o),
		hubv1connect.NewAuditServiceClient(c, base, o), hubv1connect.NewInviteServiceClient(c, base, o), hubv1connect.NewPortServiceClient(c, base, o)}
}

// oneClient is a client that many callers share: connections of one address are capped.
func (s *server) oneClient() (*http.Client, string) {
	if s.shared == nil {
		s.shared, s.sharedBase = s.local()
	}
	return s.shared, s.sharedBase
}

// user makes an account of a role and returns the secret of its first sign-in.
func (s *server) user(name, role string) *hub.NewSignIn {
	s.t.Helper()
	r, err := s.as(s.adminKey()).users.InviteUser(s.t.Context(), &hubv1.InviteUserRequest{Name: name, Role: role})
	if err != nil {
		s.t.Fatal(err)
	}
	in, err := s.hub.Join(s.t.Context(), loopback, secretOf(s.t, r.GetUrl()), "", goodPassword)
	if err != nil {
		s.t.Fatal(err)
	}
	return in
}

func secretOf(t *testing.T, link string) string {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil || u.Fragment == "" {
		t.Fatalf("%q has no secret in its fragment", link)
	}
	return u.Fragment
}

// key makes an API key of a user.
func (s *server) key(user, name string, scopes ...string) string {
	s.t.Helper()
	r, err := s.as(s.adminKey()).keys.CreateKey(s.t.Context(), &hubv1.CreateKeyRequest{Name: name, User: user, Scopes: scopes})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.GetToken()
}

// ask calls a procedure with an empty request and tells how it was answered: ok, or the reason.
func (s *server) ask(procedure, key string) string {
	s.t.Helper()
	c, base := s.oneClient()
	body := io.Reader(strings.NewReader("{}"))
	ct := "application/json"
	if streams(procedure) {
		// A request that no stream serves ends it, but not before the caller was admitted.
		bad := `{"severity":"none"}`
		ct, body = "application/connect+json", bytes.NewReader(append([]byte{0, 0, 0, 0, byte(len(bad))}, bad...))
	}
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", base+procedure, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", ct)
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	for _, code := range []string{"permission_denied", "unauthenticated"} {
		if strings.Contains(string(b), `"code":"`+code) {
			return code
		}
	}
	return "ok"
}

// TestRolesProceduresScopes goes through every procedure that the descriptors name with every role
// and every scope. Whoever is let in gets an answer of the procedure, be it that the request is bad.
func TestRolesProceduresScopes(t *testing.T) {
	s := start(t)
	roles := []string{owner, admin, viewer}
	scopes := []string{"forward"}
	for _, thing := range scopeThings[:len(scopeThings)-1] {
		scopes = append(scopes, thing+":read", thing+":write")
	}
	for _, role := range append(roles, visitor) {
		s.user(role, role)
	}
	type caller struct{ role, scope, key string }
	var callers []caller
	for _, role := range roles {
		callers = append(callers, caller{role, "", s.key(role, "all")})
		for _, scope := range scopes {
			if role == viewer && !strings.HasSuffix(scope, ":read") {
				continue
			}
			callers = append(callers, caller{role, scope, s.key(role, strings.ReplaceAll(scope, ":", "-"), scope)})
		}
	}
	n := 0
	for _, svcs := range services() {
		for i := range svcs.Len() {
			for j := range svcs.Get(i).Methods().Len() {
				p := fmt.Sprintf("/%s/%s", svcs.Get(i).FullName(), svcs.Get(i).Methods().Get(j).Name())
				w := access[p]
				if w.people == "" {
					continue
				}
				for _, c := range callers {
					// A key that was made is no sign-in, so it is never fresh.
					may := hub.RoleIncludes(c.role, w.people) && !w.local && !w.fresh
					if c.scope != "" {
						thing, _, _ := strings.Cut(w.scope, ":")
						may = may && (w.scope == anyScope || w.scope == c.scope || strings.HasSuffix(w.scope, ":read") && c.scope == thing+":write")
					}
					got := s.ask(p, c.key)
					if refused := got == "permission_denied" || got == "unauthenticated"; may == refused && (!may || !deniedLater[p]) {
						t.Errorf("%s as %s with scope %q: %s, want it admitted: %v", p, c.role, c.scope, got, may)
					}
					n++
				}
			}
		}
	}
	if n < 500 {
		t.Errorf("only %d combinations were tried", n)
	}
}

// deniedLater are procedures whose empty request the hub itself may refuse to some.
var deniedLater = map[string]bool{
	hubv1connect.SessionServiceRevokeSessionProcedure: true,
	hubv1connect.SessionServiceListSessionsProcedure:  true,
}

func TestKeys(t *testing.T) {
	s := start(t)
	s.user("olga", owner)
	s.user("vera", viewer)
	local := s.as(s.adminKey())

	t.Run("a key carries hub and pin, and is known by its end", func(t *testing.T) {
		r, err := local.keys.CreateKey(t.Context(), &hubv1.CreateKeyRequest{Name: "shown", User: "olga"})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := identity.ParseToken(r.GetToken())
		if err != nil || tok.Kind != identity.KindKey || tok.Body.GetHubUrl() != s.hub.Config().URL {
			t.Errorf("%v %v", tok, err)
		}
		if days := r.GetKey().GetExpiresAt().AsTime().Sub(r.GetKey().GetCreatedAt().AsTime()).Hours() / 24; days != 90 {
			t.Errorf("ends after %v days", days)
		}
		l, err := local.keys.ListKeys(t.Context(), &hubv1.ListKeysRequest{All: true})
		if err != nil || strings.Contains(fmt.Sprint(l), r.GetToken()) {
			t.Errorf("%v", err)
		}
	})
	t.Run("hosts limit writes", func(t *testing.T) {
		a := &hub.Actor{Hosts: []string{"*.ci.example.com"}}
		for host, ok := range map[string]bool{"a.ci.example.com": true, "*.ci.example.com": true, "ci.example.com": false, "a.b.ci.example.com": false, "**.ci.example.com": false, "x.example.com": false, "": false} {
			if err := a.MayWrite("hostname", host); (err == nil) != ok {
				t.Errorf("%q: %v", host, err)
			}
		}
	})
	t.Run("a key makes no users and no keys", func(t *testing.T) {
		k := s.as(s.key("olga", "whole"))
		_, err := k.users.InviteUser(t.Context(), &hubv1.InviteUserRequest{Name: "x"})
		wantCode(t, err, connect.CodePermissionDenied, reason.AccessDenied)
		_, err = k.keys.CreateKey(t.Context(), &hubv1.CreateKeyRequest{Name: "x"})
		wantCode(t, err, connect.CodePermissionDenied, reason.AccessDenied)
	})
	t.Run("a key never exceeds its user", func(t *testing.T) {
		_, err := local.keys.CreateKey(t.Context(), &hubv1.CreateKeyRequest{Name: "wide", User: "vera", Scopes: []string{"tunnels:write"}})
		wantCode(t, err, connect.CodePermissionDenied, reason.AccessDenied)
		k := s.key("olga", "shrinks", "invites:write")
		role := viewer
		s.user("otto", owner)
		if _, err := local.users.UpdateUser(t.Context(), &hubv1.UpdateUserRequest{Id: "olga", Role: &role}); err != nil {
			t.Fatal(err)
		}
		_, err = s.as(k).invites.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "i", Hostnames: []string{"i.example.com"}})
		wantCode(t, err, connect.CodePermissionDenied, reason.AccessDenied)
		if _, err = s.as(k).invites.ListInvites(t.Context(), &hubv1.ListInvitesRequest{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a key dies with its user", func(t *testing.T) {
		s.user("tom", admin)
		k := s.as(s.key("tom", "k"))
		if _, err := k.users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{}); err != nil {
			t.Fatal(err)
		}
		yes, no := true, false
		if _, err := local.users.UpdateUser(t.Context(), &hubv1.UpdateUserRequest{Id: "tom", Disabled: &yes}); err != nil {
			t.Fatal(err)
		}
		_, err := k.users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})
		wantCode(t, err, connect.CodeUnauthenticated, reason.Unauthenticated)
		if _, err := local.users.UpdateUser(t.Context(), &hubv1.UpdateUserRequest{Id: "tom", Disabled: &no}); err != nil {
			t.Fatal(err)
		}
		if w, err := k.users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{}); err != nil || w.GetName() != "key:k@tom" || w.GetUser().GetName() != "tom" {
			t.Error(w, err)
		}
		if _, err := local.users.DeleteUser(t.Context(), &hubv1.DeleteUserRequest{Id: "tom"}); err != nil {
			t.Fatal(err)
		}
		_, err = k.users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})
		wantCode(t, err, connect.CodeUnauthenticated, reason.Unauthenticated)
	})
	t.Run("bad requests name the field", func(t *testing.T) {
		for _, c := range []struct {
			field string
			r     *hubv1.CreateKeyRequest
		}{
			{"name", &hubv1.CreateKeyRequest{User: "otto"}},
			{"scopes[0]", &hubv1.CreateKeyRequest{User: "otto", Name: "x", Scopes: []string{"tunnels"}}},
			{"scopes[0]", &hubv1.CreateKeyRequest{User: "otto", Name: "x", Scopes: []string{"forward:read"}}},
			{"hosts[0]", &hubv1.CreateKeyRequest{User: "otto", Name: "x", Hosts: []string{"*."}}},
			{"user", &hubv1.CreateKeyRequest{Name: "x"}},
		} {
			_, err := local.keys.CreateKey(t.Context(), c.r)
			if p := wantCode(t, err, connect.CodeInvalidArgument, reason.Invalid); p.GetField() != c.field || p.GetRemedy() == "" {
				t.Errorf("%v: %v", c.r, p)
			}
		}
	})
	t.Run("deleting", func(t *testing.T) {
		k := s.key("otto", "gone")
		l, err := local.keys.ListKeys(t.Context(), &hubv1.ListKeysRequest{All: true})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.GetKeys(), func(k *hubv1.Key) bool { return k.GetName() == "gone" })
		if _, err := local.keys.DeleteKey(t.Context(), &hubv1.DeleteKeyRequest{Id: l.GetKeys()[i].GetId()}); err != nil {
			t.Fatal(err)
		}
		_, err = s.as(k).users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})
		wantCode(t, err, connect.CodeUnauthenticated, reason.Unauthenticated)
	})
}

func TestOperatorKey(t *testing.T) {
	s := start(t)
	local := s.as(s.adminKey())
	r, err := local.keys.CreateKey(t.Context(), &hubv1.CreateKeyRequest{Name: "cluster", Operator: true})
	if err != nil || r.GetKey().GetExpiresAt() != nil || !r.GetKey().GetOperator() {
		t.Fatal(r, err)
	}
	op := s.machine(wirev1.Role_ROLE_OPERATOR, r.GetToken())
	d, err := op.Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("app.example.com")}})
	if err != nil || d.GetVerdicts()[0].GetCode() != "ok" {
		t.Fatal(d, err)
	}
	t.Run("it is no bearer key", func(t *testing.T) {
		_, err := s.as(r.GetToken()).users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})
		wantCode(t, err, connect.CodeUnauthenticated, reason.Unauthenticated)
	})
	t.Run("a person's key is no operator's", func(t *testing.T) {
		s.user("olga", owner)
		_, err := s.machine(wirev1.Role_ROLE_OPERATOR, s.key("olga", "k")).Declare(t.Context(), &hubv1.DeclareRequest{})
		if !reason.Is(err, reason.TokenUnknown) {
			t.Errorf("%v", err)
		}
	})
	t.Run("what another tenant was granted is not its", func(t *testing.T) {
		s.invite("other", "taken.example.com")
		d, err := op.Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("app.example.com"), web("taken.example.com")}})
		if err != nil || d.GetVerdicts()[0].GetCode() != "ok" || d.GetVerdicts()[1].GetCode() == "ok" {
			t.Errorf("%v %v", d, err)
		}
	})
	t.Run("hosts limit it", func(t *testing.T) {
		r, err := local.keys.CreateKey(t.Context(), &hubv1.CreateKeyRequest{Name: "small", Operator: true, Hosts: []string{"*.k.example.com"}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.machine(wirev1.Role_ROLE_OPERATOR, r.GetToken()).Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("a.k.example.com"), web("b.example.com")}})
		if err != nil || d.GetVerdicts()[0].GetCode() != "ok" || d.GetVerdicts()[1].GetCode() != "grant_missing" {
			t.Errorf("%v %v", d, err)
		}
	})
	t.Run("deleting it ends its connections", func(t *testing.T) {
		w := watch(t, op, 0)
		if _, err := local.keys.DeleteKey(t.Context(), &hubv1.DeleteKeyRequest{Id: "cluster"}); err != nil {
			t.Fatal(err)
		}
		<-w.done
		_, err := op.Declare(t.Context(), &hubv1.DeclareRequest{})
		if !reason.Is(err, reason.TokenRevoked) {
			t.Errorf("%v", err)
		}
	})
}

func TestUsers(t *testing.T) {
	s := start(t)
	local := s.as(s.adminKey())
	s.user("olga", owner)
	s.user("adam", admin)
	s.user("vera", viewer)

	// asUser is the hub's own methods with the rights of a signed-in user.
	asUser := func(name, role string) *hub.Actor {
		return &hub.Actor{Name: name, UserName: name, UserID: s.id(name), Role: role}
	}
	adam := hub.WithActor(t.Context(), asUser("adam", admin))
	role := func(r string) *string { return &r }
	yes := true

	t.Run("an admin does all but owners", func(t *testing.T) {
		for what, err := range map[string]error{
			"invites an owner":  third(s.hub.InviteUser(adam, &hubv1.InviteUserRequest{Name: "boss", Role: owner})),
			"makes an owner":    second(s.hub.UpdateUser(adam, &hubv1.UpdateUserRequest{Id: "vera", Role: role(owner)})),
			"demotes an owner":  second(s.hub.UpdateUser(adam, &hubv1.UpdateUserRequest{Id: "olga", Role: role(viewer)})),
			"disables an owner": second(s.hub.UpdateUser(adam, &hubv1.UpdateUserRequest{Id: "olga", Disabled: &yes})),
			"deletes an owner":  s.hub.DeleteUser(adam, "olga"),
		} {
			if !reason.Is(err, reason.AccessDenied) {
				t.Errorf("an admin %s: %v", what, err)
			}
		}
		if _, err := s.hub.UpdateUser(adam, &hubv1.UpdateUserRequest{Id: "vera", Role: role(admin)}); err != nil {
			t.Error(err)
		}
	})
	t.Run("the last owner stays", func(t *testing.T) {
		for what, err := range map[string]error{
			"demoted":  second(local.users.UpdateUser(t.Context(), &hubv1.UpdateUserRequest{Id: "olga", Role: role(admin)})),
			"disabled": second(local.users.UpdateUser(t.Context(), &hubv1.UpdateUserRequest{Id: "olga", Disabled: &yes})),
			"deleted":  second(local.users.DeleteUser(t.Context(), &hubv1.DeleteUserRequest{Id: "olga"})),
		} {
			var ce *connect.Error
			if !errors.As(err, &ce) || !strings.Contains(ce.Message(), "last owner") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if w, err := local.users.GetUser(t.Context(), &hubv1.GetUserRequest{Id: "OLGA"}); err != nil || w.GetUser().GetRole() != owner {
			t.Error(w, err)
		}
	})
	t.Run("names differ by more than case", func(t *testing.T) {
		_, err := local.users.InviteUser(t.Context(), &hubv1.InviteUserRequest{Name: "VERA"})
		wantCode(t, err, connect.CodeAlreadyExists, reason.NameConflict)
	})
	t.Run("a link works once, and a new one ends the old one", func(t *testing.T) {
		r1, err := local.users.InviteUser(t.Context(), &hubv1.InviteUserRequest{Name: "ina"})
		if err != nil {
			t.Fatal(err)
		}
		r2, err := local.users.InviteUser(t.Context(), &hubv1.InviteUserRequest{Name: "ina"})
		if err != nil {
			t.Fatal(err)
		}
		if h := r2.GetExpiresAt().AsTime().Sub(r2.GetUser().GetCreatedAt().AsTime()).Hours(); h < 71.9 || h > 72.1 {
			t.Errorf("good for %v hours", h)
		}
		if _, err := s.hub.Join(t.Context(), loopback, secretOf(t, r1.GetUrl()), "", goodPassword); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("the first link: %v", err)
		}
		if _, err := s.hub.Join(t.Context(), loopback, secretOf(t, r2.GetUrl()), "ina2", goodPassword); err != nil {
			t.Error(err)
		}
		if _, err := s.hub.Join(t.Context(), loopback, secretOf(t, r2.GetUrl()), "ina3", goodPassword); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("again: %v", err)
		}
		if _, err := s.hub.SignIn(t.Context(), loopback, "INA2", goodPassword); err != nil {
			t.Error(err)
		}
	})
	t.Run("an invited user cannot sign in yet", func(t *testing.T) {
		if _, err := local.users.InviteUser(t.Context(), &hubv1.InviteUserRequest{Name: "wait"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.hub.SignIn(t.Context(), loopback, "wait", ""); !reason.Is(err, reason.Unauthenticated) {
			t.Error(err)
		}
	})
	t.Run("reset sets a new password and ends sign-ins", func(t *testing.T) {
		in, err := s.hub.SignIn(t.Context(), loopback, "olga", goodPassword)
		if err != nil {
			t.Fatal(err)
		}
		r, err := local.users.ResetUser(t.Context(), &hubv1.ResetUserRequest{Id: "olga"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.hub.SetPassword(t.Context(), loopback, secretOf(t, r.GetUrl()), "another "+goodPassword); err != nil {
			t.Fatal(err)
		}
		if _, err := s.hub.SignedIn(t.Context(), in.Cookie, loopback.Address); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("the old sign-in: %v", err)
		}
		if _, err := s.hub.SignIn(t.Context(), loopback, "olga", goodPassword); !reason.Is(err, reason.Unauthenticated) {
			t.Errorf("the old password: %v", err)
		}
	})
}

func (s *server) id(name string) string {
	s.t.Helper()
	u, err := s.hub.GetUser(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return u.GetId()
}

func second[A any](_ A, err error) error                { return err }
func third[A, B, C any](_ A, _ B, _ C, err error) error { return err }

func TestAudit(t *testing.T) {
	s := start(t)
	local := s.as(s.adminKey())
	s.user("olga", owner)
	k := s.as(s.key("olga", "ci", "invites:write"))
	if _, err := k.invites.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "home", Hostnames: []string{"home.example.com"}}); err != nil {
		t.Fatal(err)
	}
	_, _ = k.invites.CreateInvite(t.Context(), &hubv1.CreateInviteRequest{Name: "home", Hostnames: []string{"home.example.com"}})
	_, _ = k.ports.ReservePort(t.Context(), &hubv1.ReservePortRequest{Kind: wirev1.Kind_KIND_TCP})
	_, _ = k.invites.ListInvites(t.Context(), &hubv1.ListInvitesRequest{})
	_, _ = s.hub.SignIn(t.Context(), loopback, "olga", "wrong password")
	_, _ = s.as("adit_key_wrong").users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})

	var got []string
	for token := ""; ; {
		r, err := local.audit.ListAudit(t.Context(), &hubv1.ListAuditRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.GetEntries() {
			got = append(got, strings.Join([]string{strings.SplitAfter(e.GetWho(), "local-admin@")[0], e.GetWhat(), e.GetSubject(), e.GetFrom(), e.GetResult()}, " | "))
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	want := []string{
		" | UserService/WhoAmI |  | 127.0.0.1 | unauthenticated",
		" | sign_in | user olga | 127.0.0.1 | unauthenticated",
		"key:ci@olga | PortService/ReservePort |  | 127.0.0.1 | access_denied",
		"key:ci@olga | InviteService/CreateInvite | invite home | 127.0.0.1 | name_conflict",
		"key:ci@olga | InviteService/CreateInvite | invite home | 127.0.0.1 | ok",
		"local-admin@ | KeyService/CreateKey | key ci | 127.0.0.1 | ok",
		"olga | accept_invitation | user olga | 127.0.0.1 | ok",
		"local-admin@ | UserService/InviteUser | user olga | 127.0.0.1 | ok",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	t.Run("filters", func(t *testing.T) {
		r, err := local.audit.ListAudit(t.Context(), &hubv1.ListAuditRequest{Who: "key:ci@olga", What: "InviteService/CreateInvite", Subject: "HOME"})
		if err != nil || len(r.GetEntries()) != 2 || !strings.Contains(r.GetEntries()[1].GetDetail(), "home.example.com") {
			t.Errorf("%v %v", r, err)
		}
	})
	t.Run("a machine's declaration is recorded when it changes something", func(t *testing.T) {
		_, token := s.invite("box", "*.box.example.com")
		agent := s.machine(wirev1.Role_ROLE_AGENT, token)
		for range 2 {
			if _, err := agent.Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: []*hubv1.DeclaredTunnel{web("a.box.example.com")}}); err != nil {
				t.Fatal(err)
			}
		}
		r, err := local.audit.ListAudit(t.Context(), &hubv1.ListAuditRequest{Who: "invite:box"})
		if err != nil || len(r.GetEntries()) != 1 || r.GetEntries()[0].GetWhat() != "MachineService/Declare" {
			t.Errorf("%v %v", r, err)
		}
	})
	t.Run("wrong keys make a few rows only", func(t *testing.T) {
		for range 30 {
			_, _ = s.as("adit_key_wrong").users.WhoAmI(t.Context(), &hubv1.WhoAmIRequest{})
		}
		r, err := local.audit.ListAudit(t.Context(), &hubv1.ListAuditRequest{What: "UserService/WhoAmI"})
		if err != nil || len(r.GetEntries()) > 12 {
			t.Errorf("%d rows, %v", len(r.GetEntries()), err)
		}
	})
}
