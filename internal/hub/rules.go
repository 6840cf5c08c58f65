package hub

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// maxWeight is the most of an origin's weight, as the Gateway API has it.
const maxWeight = 1_000_000

// checkRules refuses rules that point nowhere, and filters that are not built yet: what an edge
// cannot do is never stored and ignored.
func checkRules(t *hubv1.Tunnel) *Problem {
	if len(t.Rules) > maxRules {
		return invalid("rules", strconv.Itoa(len(t.Rules)), fmt.Sprintf("give at most %d", maxRules), "are too many")
	}
	for i, r := range t.Rules {
		field := fmt.Sprintf("rules[%d]", i)
		if p := checkMatch(field+".match", r.GetMatch()); p != nil {
			return p
		}
		for j, f := range r.GetFilters() {
			if p := checkFilter(fmt.Sprintf("%s.filters[%d]", field, j), f); p != nil {
				return p
			}
		}
		for j, o := range r.GetOrigins() {
			at := fmt.Sprintf("%s.origins[%d]", field, j)
			if int(o.GetOrigin()) >= len(t.Origins) {
				return invalid(at, fmt.Sprint(o.GetOrigin()), fmt.Sprintf("use 0 to %d", len(t.Origins)-1), "there is no such origin")
			}
			if o.GetWeight() > maxWeight {
				return invalid(at+".weight", fmt.Sprint(o.GetWeight()), fmt.Sprintf("use 0 to %d", maxWeight), "is no weight")
			}
		}
	}
	return nil
}

func checkMatch(field string, m *hubv1.Match) *Problem {
	for _, p := range []string{m.GetPathExact(), m.GetPathPrefix()} {
		if p := checkPath(field+".path", p); p != nil {
			return p
		}
	}
	if m.GetPathExact() != "" && m.GetPathPrefix() != "" {
		return invalid(field+".path_exact", m.GetPathExact(), "give one of path_exact and path_prefix", "is given beside path_prefix")
	}
	if s := m.GetMethod(); s != "" && !httpguts.ValidHeaderFieldName(s) {
		return invalid(field+".method", s, "give one as GET", "is no method")
	}
	return checkHeaders(field+".headers", m.GetHeaders())
}

func checkFilter(field string, f *hubv1.Filter) *Problem {
	switch x := f.GetFilter().(type) {
	case *hubv1.Filter_RequestHeaders:
		return checkHeaderFilter(field+".request_headers", x.RequestHeaders)
	case *hubv1.Filter_ResponseHeaders:
		return checkHeaderFilter(field+".response_headers", x.ResponseHeaders)
	case *hubv1.Filter_Redirect:
		return checkRedirect(field+".redirect", x.Redirect)
	case *hubv1.Filter_Rewrite:
		return checkTarget(field+".rewrite", x.Rewrite)
	case *hubv1.Filter_Mirror:
		return invalid(field, "mirror", "remove the filter", "mirroring is not built yet")
	}
	return invalid(field, "", "remove the filter, or update the hub", "this hub does not know the filter")
}

func checkHeaderFilter(field string, f *hubv1.HeaderFilter) *Problem {
	if p := checkHeaders(field+".set", f.GetSet()); p != nil {
		return p
	}
	if p := checkHeaders(field+".add", f.GetAdd()); p != nil {
		return p
	}
	for i, name := range f.GetRemove() {
		if !httpguts.ValidHeaderFieldName(name) {
			return invalid(fmt.Sprintf("%s.remove[%d]", field, i), name, "give a name as X-Powered-By", "is no name of a header")
		}
	}
	return nil
}

func checkHeaders(field string, list []*hubv1.ValueMatch) *Problem {
	for i, h := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if !httpguts.ValidHeaderFieldName(h.GetName()) {
			return invalid(at+".name", h.GetName(), "give a name as X-Frame-Options", "is no name of a header")
		}
		if !httpguts.ValidHeaderFieldValue(h.GetValue()) {
			return invalid(at+".value", h.GetValue(), "leave control characters out", "is no value of a header")
		}
	}
	return nil
}

func checkRedirect(field string, r *hubv1.Redirect) *Problem {
	switch {
	case !slices.Contains([]string{"", "http", "https"}, r.GetScheme()):
		return invalid(field+".scheme", r.GetScheme(), "use http or https", "is no scheme to send visitors to")
	case r.GetPort() > 65535:
		return invalid(field+".port", fmt.Sprint(r.GetPort()), "give a port from 1 to 65535, or none", "is no port")
	case !slices.Contains([]uint32{0, 301, 302, 303, 307, 308}, r.GetStatus()):
		return invalid(field+".status", fmt.Sprint(r.GetStatus()), "use 301, 302, 303, 307 or 308", "is no status of a redirect")
	}
	return checkTarget(field, r)
}

// checkTarget looks at what redirects and rewrites have in common.
func checkTarget(field string, to interface {
	GetHostname() string
	GetPath() string
	GetPathPrefix() string
},
) *Problem {
	if s := to.GetHostname(); s != "" {
		if _, err := hostname.Normalize(s); err != nil {
			return invalid(field+".hostname", s, "give a name as www.example.com", "%v", err)
		}
	}
	if to.GetPath() != "" && to.GetPathPrefix() != "" {
		return invalid(field+".path", to.GetPath(), "give one of path and path_prefix", "is given beside path_prefix")
	}
	if p := checkPath(field+".path", to.GetPath()); p != nil {
		return p
	}
	return checkPath(field+".path_prefix", to.GetPathPrefix())
}

func checkPath(field, path string) *Problem {
	if path != "" && !strings.HasPrefix(path, "/") {
		return invalid(field, path, "start it with a slash", "is no path")
	}
	return nil
}
