// Package access is the model of what tunnels demand of visitors, shared by hub and edge: what is
// possible, its one canonical form, and the sentence that says who gets in.
package access

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// Bounds of one access.
const (
	MaxRules    = 64
	MaxPolicies = 16
	MaxPaths    = 64
	MaxNetworks = 64
	maxText     = 255
)

// How rules combine.
const (
	Any = "any"
	All = "all"
)

// Fault is why an access is not possible.
type Fault struct{ Field, Value, Text, Remedy string }

func (f *Fault) Error() string {
	return fmt.Sprintf("%s %q: %s; %s", f.Field, f.Value, f.Text, f.Remedy)
}

func fault(field, value, remedy, text string, args ...any) *Fault {
	return &Fault{Field: field, Value: value, Text: fmt.Sprintf(text, args...), Remedy: remedy}
}

// Open reports whether a demands nothing of anybody. What cannot be checked is not open.
func Open(a *hubv1.Access) bool {
	return a.GetMode() == hubv1.Access_MODE_PUBLIC && len(a.GetRules()) == 0 && len(a.GetPolicies()) == 0
}

// Admits reports whether everybody whom old admits gets in with now too, as far as edges can tell:
// then connections may go on.
func Admits(old, now *hubv1.Access) bool { return Open(now) || proto.Equal(old, now) || !Open(old) }

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// CheckName checks the name of a policy or provider.
func CheckName(field, name string) *Fault {
	if !nameRule.MatchString(name) {
		return fault(field, name, "use 1 to 63 letters, digits, dots, hyphens and underscores; the first a letter or digit", "is no usable name")
	}
	return nil
}

// Canonical returns a in its canonical form for a tunnel of a kind: defaults filled in, networks,
// names and paths in one spelling, every rule with an id. KIND_UNSPECIFIED is for policies, which
// tunnels of any kind may use.
func Canonical(kind wirev1.Kind, a *hubv1.Access) (*hubv1.Access, *Fault) {
	c := &hubv1.Access{Mode: a.GetMode(), Require: a.GetRequire()}
	switch c.Mode {
	case hubv1.Access_MODE_UNSPECIFIED:
		c.Mode = hubv1.Access_MODE_PROTECTED
	case hubv1.Access_MODE_PROTECTED, hubv1.Access_MODE_PUBLIC:
	default:
		return nil, fault("access.mode", c.Mode.String(), "use public or protected", "is not known here")
	}
	switch c.Require {
	case "":
		c.Require = Any
	case Any, All:
	default:
		return nil, fault("access.require", c.Require, "use any or all", "is no way to combine rules")
	}
	if n := len(a.GetRules()) + len(a.GetPolicies()); n > 0 && c.Mode == hubv1.Access_MODE_PUBLIC {
		return nil, fault("access.mode", "public", "leave the rules away, or use protected with a rule that says public", "a public tunnel asks nobody, so it has no rules and no policies")
	}
	if n := len(a.GetRules()); n > MaxRules {
		return nil, fault("access.rules", fmt.Sprint(n), fmt.Sprintf("give at most %d", MaxRules), "are too many")
	}
	if n := len(a.GetPolicies()); n > MaxPolicies {
		return nil, fault("access.policies", fmt.Sprint(n), fmt.Sprintf("give at most %d", MaxPolicies), "are too many")
	}
	for i, p := range a.GetPolicies() {
		if f := CheckName(fmt.Sprintf("access.policies[%d]", i), p); f != nil {
			return nil, f
		}
	}
	c.Policies = slices.Compact(slices.Sorted(slices.Values(a.GetPolicies())))
	ids := map[string]bool{}
	for i, r := range a.GetRules() {
		n, f := canonicalRule(kind, fmt.Sprintf("access.rules[%d]", i), r)
		if f != nil {
			return nil, f
		}
		if ids[n.Id] {
			return nil, fault(fmt.Sprintf("access.rules[%d].id", i), n.Id, "leave the id away to get a new one", "is the id of another rule")
		}
		ids[n.Id] = true
		c.Rules = append(c.Rules, n)
	}
	return c, nil
}

var idRule = regexp.MustCompile(`^[a-z0-9]{1,32}$`)

func canonicalRule(kind wirev1.Kind, field string, r *hubv1.AccessRule) (*hubv1.AccessRule, *Fault) {
	n := proto.CloneOf(r)
	if n.Id == "" {
		var b [4]byte
		_, _ = rand.Read(b[:])
		n.Id = hex.EncodeToString(b[:])
	}
	if !idRule.MatchString(n.Id) {
		return nil, fault(field+".id", n.Id, "leave it away: the hub makes one", "is no id of a rule")
	}
	if f := one(field, n); f != nil {
		return nil, f
	}
	if f := canonicalWho(kind, field, n); f != nil {
		return nil, f
	}
	var f *Fault
	if n.From, f = networks(field+".from", n.From); f != nil {
		return nil, f
	}
	if n.Paths, f = paths(kind, field+".paths", n.Paths); f != nil {
		return nil, f
	}
	if b, e := n.GetNotBefore(), n.GetNotAfter(); b != nil && !b.IsValid() || e != nil && !e.IsValid() {
		return nil, fault(field+".not_after", "", "give times as RFC 3339", "is no time")
	} else if b != nil && e != nil && !b.AsTime().Before(e.AsTime()) {
		return nil, fault(field+".not_after", e.AsTime().Format("2006-01-02T15:04:05Z07:00"), "give a time after not_before", "is not after not_before")
	}
	return n, nil
}

// one checks that a rule says one thing.
func one(field string, r *hubv1.AccessRule) *Fault {
	var said []string
	for _, x := range []struct {
		name string
		set  bool
	}{{"email", r.Email != ""}, {"domain", r.Domain != ""}, {"group", r.Group != ""}, {"from", len(r.From) > 0}, {"public", r.Public}} {
		if x.set {
			said = append(said, x.name)
		}
	}
	switch len(said) {
	case 1:
		return nil
	case 0:
		return fault(field, "", "give email, domain, group, from or public", "the rule says nothing")
	default:
		return fault(field, strings.Join(said, ", "), "make a rule of each, and say require any or all", "are several rules in one")
	}
}

// SignIn reports whether a rule needs visitors to sign in.
func SignIn(r *hubv1.AccessRule) bool {
	return r.GetEmail() != "" || r.GetDomain() != "" || r.GetGroup() != ""
}

func canonicalWho(kind wirev1.Kind, field string, r *hubv1.AccessRule) *Fault {
	if SignIn(r) && kind != wirev1.Kind_KIND_HTTP && kind != wirev1.Kind_KIND_UNSPECIFIED {
		name := "email"
		if r.Domain != "" {
			name = "domain"
		} else if r.Group != "" {
			name = "group"
		}
		return fault(field+"."+name, r.Email+r.Domain+r.Group, "terminate TLS at the edge: use kind http (tls_mode terminate)", "visitors of a tunnel of kind %s cannot sign in", kindName(kind))
	}
	switch {
	case r.Email != "":
		user, domain, ok := strings.Cut(r.Email, "@")
		d, err := hostname.Normalize(domain)
		if !ok || user == "" || err != nil || len(r.Email) > maxText || strings.ContainsAny(user, " \t\r\n<>,;\"") {
			return fault(field+".email", clip(r.Email), "give it as name@example.com", "is no e-mail address")
		}
		r.Email = strings.ToLower(user) + "@" + d
	case r.Domain != "":
		d, err := hostname.Normalize(strings.TrimPrefix(r.Domain, "@"))
		if err != nil {
			return fault(field+".domain", clip(r.Domain), "give what follows the @, as example.com", "is no domain")
		}
		r.Domain = d
	case r.Group != "":
		if len(r.Group) > maxText || strings.TrimSpace(r.Group) != r.Group {
			return fault(field+".group", clip(r.Group), "give the group's name as the provider says it", "is no name of a group")
		}
		if r.Provider == "" {
			return fault(field+".provider", "", "name the provider that must assert it", "a rule about a group names its provider")
		}
	}
	if r.Provider == "" {
		return nil
	}
	if !SignIn(r) {
		return fault(field+".provider", r.Provider, "leave it away", "has a meaning with email, domain and group only")
	}
	return CheckName(field+".provider", r.Provider)
}

func networks(field string, in []string) ([]string, *Fault) {
	if len(in) > MaxNetworks {
		return nil, fault(field, fmt.Sprint(len(in)), fmt.Sprintf("give at most %d", MaxNetworks), "are too many")
	}
	var out []string
	for i, s := range in {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fault(fmt.Sprintf("%s[%d]", field, i), clip(s), "give a network as 192.0.2.0/24 or 2001:db8::/32", "is no network")
		}
		out = append(out, p.Masked().String())
	}
	return slices.Compact(slices.Sorted(slices.Values(out))), nil
}

func paths(kind wirev1.Kind, field string, in []string) ([]string, *Fault) {
	if len(in) == 0 {
		return nil, nil
	}
	if kind != wirev1.Kind_KIND_HTTP && kind != wirev1.Kind_KIND_UNSPECIFIED {
		return nil, fault(field, in[0], "leave them away, or terminate TLS at the edge: use kind http", "a tunnel of kind %s has no paths", kindName(kind))
	}
	if len(in) > MaxPaths {
		return nil, fault(field, fmt.Sprint(len(in)), fmt.Sprintf("give at most %d", MaxPaths), "are too many")
	}
	var out []string
	for i, s := range in {
		if !strings.HasPrefix(s, "/") || len(s) > maxText || path.Clean(s) != s && path.Clean(s)+"/" != s || strings.ContainsAny(s, "?#%\\;") {
			return nil, fault(fmt.Sprintf("%s[%d]", field, i), clip(s), "give it as /admin: whole segments, not encoded", "is no prefix of a path")
		}
		out = append(out, path.Clean(s))
	}
	return slices.Compact(slices.Sorted(slices.Values(out))), nil
}

func kindName(k wirev1.Kind) string { return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_")) }

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
