package access

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

func rules(rs ...*hubv1.AccessRule) *hubv1.Access { return &hubv1.Access{Rules: rs} }

func TestOpen(t *testing.T) {
	public := hubv1.Access_MODE_PUBLIC
	for _, c := range []struct {
		name string
		a    *hubv1.Access
		want bool
	}{
		{"nothing said", nil, false},
		{"unspecified", &hubv1.Access{}, false},
		{"protected", &hubv1.Access{Mode: hubv1.Access_MODE_PROTECTED}, false},
		{"public", &hubv1.Access{Mode: public}, true},
		{"public with a rule that cannot be checked", &hubv1.Access{Mode: public, Rules: []*hubv1.AccessRule{{From: []string{"10.0.0.0/8"}}}}, false},
		{"public with a policy", &hubv1.Access{Mode: public, Policies: []string{"x"}}, false},
		{"a mode of the future", &hubv1.Access{Mode: 7}, false},
	} {
		if got := Open(c.a); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if Admits(&hubv1.Access{Mode: public}, &hubv1.Access{}) || !Admits(&hubv1.Access{}, &hubv1.Access{Mode: public}) {
		t.Error("who was admitted and is not any more goes on, or the other way round")
	}
}

func TestCanonical(t *testing.T) {
	a, f := Canonical(wirev1.Kind_KIND_HTTP, &hubv1.Access{
		Policies: []string{"staff", "admins", "staff"},
		Rules: []*hubv1.AccessRule{
			{Email: "Me@Example.COM"}, {Domain: "@Example.com", Paths: []string{"/b/", "/a", "/a"}}, {From: []string{"192.0.2.7/24", "2001:db8::1"}}, {Id: "abc", Public: true, Paths: []string{"/"}},
		},
	})
	if f != nil {
		t.Fatal(f)
	}
	if a.Mode != hubv1.Access_MODE_PROTECTED || a.Require != Any || strings.Join(a.Policies, ",") != "admins,staff" {
		t.Error(a)
	}
	if a.Rules[0].Email != "me@example.com" || a.Rules[1].Domain != "example.com" || strings.Join(a.Rules[1].Paths, ",") != "/a,/b" ||
		strings.Join(a.Rules[2].From, ",") != "192.0.2.0/24,2001:db8::1/128" || a.Rules[3].Id != "abc" || a.Rules[0].Id == "" || a.Rules[0].Id == a.Rules[1].Id {
		t.Error(a)
	}
	again, f := Canonical(wirev1.Kind_KIND_HTTP, a)
	if f != nil || !proto.Equal(a, again) {
		t.Errorf("the canonical form is not stable: %v %v", again, f)
	}
}

func TestFaults(t *testing.T) {
	at := func(s string) *timestamppb.Timestamp {
		v, _ := time.Parse(time.DateOnly, s)
		return timestamppb.New(v)
	}
	const http, tcp = wirev1.Kind_KIND_HTTP, wirev1.Kind_KIND_TCP
	many := make([]*hubv1.AccessRule, MaxRules+1)
	for i := range many {
		many[i] = &hubv1.AccessRule{Public: true}
	}
	for _, c := range []struct {
		name, field, remedy string
		kind                wirev1.Kind
		a                   *hubv1.Access
	}{
		{"mode", "access.mode", "public or protected", http, &hubv1.Access{Mode: 9}},
		{"require", "access.require", "any or all", http, &hubv1.Access{Require: "some"}},
		{"public with rules", "access.mode", "protected", http, &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC, Rules: many[:1]}},
		{"too many rules", "access.rules", "at most", http, rules(many...)},
		{"policy name", "access.policies[0]", "letters", http, &hubv1.Access{Policies: []string{"a b"}}},
		{"nothing said", "access.rules[0]", "email", http, rules(&hubv1.AccessRule{})},
		{"two things said", "access.rules[0]", "each", http, rules(&hubv1.AccessRule{Email: "a@b.test", Public: true})},
		{"email", "access.rules[0].email", "name@", http, rules(&hubv1.AccessRule{Email: "a"})},
		{"email with a space", "access.rules[0].email", "name@", http, rules(&hubv1.AccessRule{Email: "a b@c.test"})},
		{"domain", "access.rules[0].domain", "@", http, rules(&hubv1.AccessRule{Domain: "a b"})},
		{"group without provider", "access.rules[0].provider", "name the provider", http, rules(&hubv1.AccessRule{Group: "x"})},
		{"provider of an address rule", "access.rules[0].provider", "leave", http, rules(&hubv1.AccessRule{From: []string{"10.0.0.0/8"}, Provider: "x"})},
		{"network", "access.rules[0].from[1]", "192.0.2.0/24", http, rules(&hubv1.AccessRule{From: []string{"10.0.0.0/8", "x"}})},
		{"IPv4 in IPv6", "access.rules[0].from[0]", "192.0.2.0/24", http, rules(&hubv1.AccessRule{From: []string{"::ffff:10.0.0.0/104"}})},
		{"path", "access.rules[0].paths[0]", "/admin", http, rules(&hubv1.AccessRule{Public: true, Paths: []string{"admin"}})},
		{"path with dots", "access.rules[0].paths[0]", "/admin", http, rules(&hubv1.AccessRule{Public: true, Paths: []string{"/a/../b"}})},
		{"encoded path", "access.rules[0].paths[0]", "/admin", http, rules(&hubv1.AccessRule{Public: true, Paths: []string{"/a%2fb"}})},
		{"paths of tcp", "access.rules[0].paths", "kind http", tcp, rules(&hubv1.AccessRule{Public: true, Paths: []string{"/a"}})},
		{"sign-in for tcp", "access.rules[0].email", "terminate", tcp, rules(&hubv1.AccessRule{Email: "a@b.test"})},
		{"sign-in for passthrough", "access.rules[0].group", "terminate", wirev1.Kind_KIND_TLS, rules(&hubv1.AccessRule{Group: "a", Provider: "p"})},
		{"times", "access.rules[0].not_after", "after not_before", http, rules(&hubv1.AccessRule{Public: true, NotBefore: at("2030-01-02"), NotAfter: at("2030-01-01")})},
		{"id", "access.rules[0].id", "the hub makes one", http, rules(&hubv1.AccessRule{Id: "A/B", Public: true})},
		{"same id", "access.rules[1].id", "new one", http, rules(&hubv1.AccessRule{Id: "a", Public: true}, &hubv1.AccessRule{Id: "a", Public: true})},
	} {
		_, f := Canonical(c.kind, c.a)
		if f == nil || f.Field != c.field || !strings.Contains(f.Remedy, c.remedy) || f.Text == "" {
			t.Errorf("%s: %v", c.name, f)
		}
	}
	if _, f := Canonical(tcp, rules(&hubv1.AccessRule{From: []string{"10.0.0.0/8"}}, &hubv1.AccessRule{Public: true})); f != nil {
		t.Errorf("address rules are for every kind: %v", f)
	}
}

func TestSummary(t *testing.T) {
	const http, tcp = wirev1.Kind_KIND_HTTP, wirev1.Kind_KIND_TCP
	staff := map[string]*hubv1.Access{"staff": {Require: All, Rules: []*hubv1.AccessRule{{Domain: "example.com"}, {Group: "ops", Provider: "idp"}, {From: []string{"10.0.0.0/8"}}}}}
	for _, c := range []struct {
		want string
		kind wirev1.Kind
		a    *hubv1.Access
	}{
		{"Everybody gets in.", http, &hubv1.Access{Mode: hubv1.Access_MODE_PUBLIC}},
		{"Only the owner gets in.", http, &hubv1.Access{}},
		{"Nobody gets in: it is protected without a rule, and visitors of a tunnel of kind tcp cannot sign in.", tcp, &hubv1.Access{}},
		{"Gets in a@b.test, or anybody below /open.", http, rules(&hubv1.AccessRule{Email: "a@b.test"}, &hubv1.AccessRule{Public: true, Paths: []string{"/open"}})},
		{"Gets in anybody; only from 10.0.0.0/8.", tcp, rules(&hubv1.AccessRule{Public: true}, &hubv1.AccessRule{From: []string{"10.0.0.0/8"}})},
		{"Gets in anybody at example.com and the group ops as idp says; only from 10.0.0.0/8.", http, &hubv1.Access{Policies: []string{"staff"}}},
		{"Nobody gets in: there is no policy gone.", http, &hubv1.Access{Policies: []string{"gone"}}},
	} {
		if got := Summary(c.kind, c.a, staff); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add("a@b.test", "example.com", "10.0.0.0/8", "/a")
	f.Fuzz(func(t *testing.T, email, domain, from, path string) {
		a := rules(&hubv1.AccessRule{Email: email, Paths: []string{path}}, &hubv1.AccessRule{Domain: domain}, &hubv1.AccessRule{From: []string{from}})
		c, fault := Canonical(wirev1.Kind_KIND_HTTP, a)
		if fault != nil {
			return
		}
		if again, fault := Canonical(wirev1.Kind_KIND_HTTP, c); fault != nil || !proto.Equal(c, again) {
			t.Errorf("%v became %v (%v)", c, again, fault)
		}
		if Open(c) {
			t.Errorf("%v is open", c)
		}
	})
}
