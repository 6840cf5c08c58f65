package access

import (
	"slices"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Summary says in a sentence who gets in. a is canonical; policies are those it names, by name. One
// that is missing denies.
func Summary(kind wirev1.Kind, a *hubv1.Access, policies map[string]*hubv1.Access) string {
	if Open(a) {
		return "Everybody gets in."
	}
	var ways, whole []string
	var bounds []string
	collect := func(rules []*hubv1.AccessRule, require string) {
		var mine []string
		for _, r := range rules {
			if len(r.GetFrom()) > 0 {
				bounds = append(bounds, strings.Join(r.GetFrom(), " or ")+where(r))
				continue
			}
			mine = append(mine, way(r)+where(r))
		}
		if require == All && len(mine) > 1 {
			ways = append(ways, strings.Join(mine, " and "))
			return
		}
		ways = append(ways, mine...)
	}
	collect(a.GetRules(), a.GetRequire())
	for _, name := range a.GetPolicies() {
		p := policies[name]
		if p == nil {
			return "Nobody gets in: there is no policy " + name + "."
		}
		collect(p.GetRules(), p.GetRequire())
	}
	ways = slices.Compact(ways)
	switch {
	case len(ways) > 0:
		whole = append(whole, "Gets in "+strings.Join(ways, ", or "))
	case kind != wirev1.Kind_KIND_HTTP && kind != wirev1.Kind_KIND_UNSPECIFIED:
		return "Nobody gets in: it is protected without a rule, and visitors of a tunnel of kind " + kindName(kind) + " cannot sign in."
	default:
		whole = append(whole, "Only the owner gets in")
	}
	for _, b := range bounds {
		whole = append(whole, "only from "+b)
	}
	return strings.Join(whole, "; ") + "."
}

func way(r *hubv1.AccessRule) string {
	by := ""
	if r.GetProvider() != "" {
		by = " as " + r.GetProvider() + " says"
	}
	switch {
	case r.GetPublic():
		return "anybody"
	case r.GetEmail() != "":
		return r.GetEmail() + by
	case r.GetDomain() != "":
		return "anybody at " + r.GetDomain() + by
	default:
		return "the group " + r.GetGroup() + by
	}
}

// where bounds a rule to paths and times.
func where(r *hubv1.AccessRule) string {
	s := ""
	if len(r.GetPaths()) > 0 {
		s += " below " + strings.Join(r.GetPaths(), " and ")
	}
	if t := r.GetNotBefore(); t != nil {
		s += " from " + t.AsTime().Format("2006-01-02 15:04") + " UTC"
	}
	if t := r.GetNotAfter(); t != nil {
		s += " until " + t.AsTime().Format("2006-01-02 15:04") + " UTC"
	}
	return s
}
