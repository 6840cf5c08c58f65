package route

import (
	"net/http"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// Rules are a tunnel's rules, compiled once when the tunnel enters the table.
type Rules struct {
	tunnel *hubv1.Tunnel
	rules  []*Rule
}

// Compile never fails: a rule that cannot work answers 500 when it is matched, so that one bad
// rule does not affect its neighbours.
func Compile(t *hubv1.Tunnel) *Rules { panic("unbuilt") }

// Tunnel is what the rules were compiled from.
func (rs *Rules) Tunnel() *hubv1.Tunnel { return rs.tunnel }

// Rule is one compiled rule.
type Rule struct{}

// Match returns the rule for a request whose canonical path is path, nil if none matches.
func (rs *Rules) Match(r *http.Request, path string) *Rule { panic("unbuilt") }
