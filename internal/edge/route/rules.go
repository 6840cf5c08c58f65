package route

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// Rules are a tunnel's rules, compiled once when the tunnel enters the table.
type Rules struct {
	tunnel *hubv1.Tunnel
	rules  []*Rule // in the order in which they are tried
	// originKeys are what OriginKey returns, in the order of the tunnel's origins.
	originKeys []string
}

// Rule is one compiled rule.
type Rule struct {
	match   *hubv1.Match
	prefix  string // match.PathPrefix without the slash at its end
	origins []weighted
	total   uint64 // of the weights
	filters []*hubv1.Filter
	problem *reason.Error
}

type weighted struct {
	origin  uint32
	weight  uint64
	problem *reason.Error
}

// Compile never fails: a rule that cannot work answers 500 when it is matched, so that one bad
// rule does not affect its neighbours.
func Compile(t *hubv1.Tunnel) *Rules {
	rs := &Rules{tunnel: t, originKeys: make([]string, len(t.GetOrigins()))}
	for i, o := range t.GetOrigins() {
		rs.originKeys[i] = originKey(t, i, o)
	}
	for i, r := range t.GetRules() {
		rs.rules = append(rs.rules, compile(t, i, r))
	}
	slices.SortStableFunc(rs.rules, precedence)
	return rs
}

func compile(t *hubv1.Tunnel, i int, r *hubv1.Rule) *Rule {
	c := &Rule{match: r.GetMatch(), filters: r.GetFilters()}
	c.prefix = strings.TrimRight(c.match.GetPathPrefix(), "/")
	for _, f := range c.filters {
		if f.GetMirror() != nil || f.GetFilter() == nil {
			c.problem = reason.New(reason.Internal, reason.HopEdge,
				"rule %d of the tunnel has a filter that this edge does not know; remove the filter or update the edge", i)
		}
	}
	for _, o := range r.GetOrigins() {
		if o.GetWeight() == 0 {
			continue
		}
		w := weighted{origin: o.GetOrigin(), weight: uint64(o.GetWeight())}
		w.problem = originProblem(t, i, o.GetOrigin())
		c.origins = append(c.origins, w)
		c.total += w.weight
	}
	if c.total == 0 && c.problem == nil && c.Redirect() == nil {
		c.problem = reason.New(reason.OriginUnresolved, reason.HopEdge,
			"rule %d of the tunnel has no origin with a weight; give it one", i).Safe()
	}
	return c
}

// originKey stands for an origin of a tunnel with all that is configured of it.
func originKey(t *hubv1.Tunnel, i int, o *hubv1.Origin) string {
	config, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		// It came off the wire, so it can be marshalled; else two differ whenever in doubt.
		config = fmt.Appendf(nil, "%p", o)
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%s", t.GetId(), i, config))
	return hex.EncodeToString(h[:16])
}

// OriginKey is a text of hexadecimal digits that is equal for the same origin of the same tunnel
// while its configuration is the same, and for no other.
func (rs *Rules) OriginKey(origin uint32) string { return rs.originKeys[origin] }

// originProblem says why a rule's origin cannot be used, nil if it can.
func originProblem(t *hubv1.Tunnel, rule int, origin uint32) *reason.Error {
	if int(origin) >= len(t.GetOrigins()) {
		return reason.New(reason.OriginUnresolved, reason.HopEdge,
			"rule %d of the tunnel names origin %d, which does not exist; correct the rule", rule, origin).Safe()
	}
	raw := t.GetOrigins()[origin].GetUrl()
	schemes := []string{"http", "https", "h2c"}
	switch t.GetKind() {
	case wirev1.Kind_KIND_TLS, wirev1.Kind_KIND_TCP:
		schemes = []string{"tcp", "tls"}
	case wirev1.Kind_KIND_UDP:
		schemes = []string{"udp"}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
		return reason.New(reason.OriginUnresolved, reason.HopEdge,
			"origin %d of the tunnel, %q, is no %s:// address; correct it", origin, raw, strings.Join(schemes, "://, ")).Safe()
	}
	return nil
}

// precedence orders rules as the Gateway API does: exact path, longest prefix, method, number of
// headers, number of query parameters; the order given decides between equals.
func precedence(a, b *Rule) int {
	return cmp.Or(
		cmp.Compare(flag(b.match.GetPathExact()), flag(a.match.GetPathExact())),
		cmp.Compare(len(b.prefix), len(a.prefix)),
		cmp.Compare(flag(b.match.GetMethod()), flag(a.match.GetMethod())),
		cmp.Compare(len(b.match.GetHeaders()), len(a.match.GetHeaders())),
		cmp.Compare(len(b.match.GetQuery()), len(a.match.GetQuery())),
	)
}

func flag(s string) int {
	if s != "" {
		return 1
	}
	return 0
}

// Tunnel is what the rules were compiled from.
func (rs *Rules) Tunnel() *hubv1.Tunnel { return rs.tunnel }

// Match returns the rule for a request. The refusal is no_route when none matches, bad_request
// when the readings of the path lead to different rules.
func (rs *Rules) Match(r *http.Request, p Path) (*Rule, *reason.Error) {
	var query url.Values
	var found *Rule
	for i, reading := range p.Readings {
		rule := rs.first(r, reading, &query)
		if i > 0 && rule != found {
			return nil, reason.New(reason.BadRequest, reason.HopEdge,
				"the path is ambiguous: it has doubled or encoded slashes, backslashes or parameters, and readings of it that are served differently")
		}
		found = rule
	}
	if found == nil {
		return nil, reason.New(reason.NoRoute, reason.HopEdge, "no rule of this tunnel matches the request")
	}
	return found, nil
}

func (rs *Rules) first(r *http.Request, path string, query *url.Values) *Rule {
	for _, rule := range rs.rules {
		if rule.matches(r, path, query) {
			return rule
		}
	}
	return nil
}

func (c *Rule) matches(r *http.Request, path string, query *url.Values) bool {
	m := c.match
	switch {
	case m == nil:
		return true
	case m.GetPathExact() != "":
		if path != m.GetPathExact() {
			return false
		}
	case !below(path, c.prefix):
		return false
	}
	if m.GetMethod() != "" && m.GetMethod() != r.Method {
		return false
	}
	for _, h := range m.GetHeaders() {
		if !hasHeader(r, h.GetName(), h.GetValue()) {
			return false
		}
	}
	if len(m.GetQuery()) == 0 {
		return true
	}
	if *query == nil {
		*query = r.URL.Query()
	}
	for _, q := range m.GetQuery() {
		if vs := (*query)[q.GetName()]; len(vs) == 0 || vs[0] != q.GetValue() {
			return false
		}
	}
	return true
}

// hasHeader reports whether a header has the value. Host is a header too, though net/http keeps
// it elsewhere.
func hasHeader(r *http.Request, name, value string) bool {
	name = http.CanonicalHeaderKey(name)
	if name == "Host" {
		return strings.EqualFold(r.Host, value)
	}
	vs := r.Header[name]
	return slices.Contains(vs, value) || len(vs) > 1 && strings.Join(vs, ",") == value
}

// Origin chooses one of the rule's origins by weight. intN returns a number in [0, n); nil means
// a random one.
func (c *Rule) Origin(intN func(n uint64) uint64) (uint32, *reason.Error) {
	if c.problem != nil {
		return 0, c.problem
	}
	if intN == nil {
		intN = rand.Uint64N
	}
	if len(c.origins) == 0 {
		return 0, reason.New(reason.OriginUnresolved, reason.HopEdge, "the rule has no origin").Safe()
	}
	w := c.origins[0]
	if len(c.origins) > 1 {
		at := intN(c.total)
		for _, w = range c.origins {
			if at < w.weight {
				break
			}
			at -= w.weight
		}
	}
	return w.origin, w.problem
}

// Passing is Origin among those that do not fail; where all do, or fails is nil, among all.
func (c *Rule) Passing(fails func(origin uint32) bool) (uint32, *reason.Error) {
	if fails == nil || c.problem != nil || len(c.origins) < 2 {
		return c.Origin(nil)
	}
	left := Rule{origins: make([]weighted, 0, len(c.origins))}
	for _, w := range c.origins {
		if !fails(w.origin) {
			left.origins = append(left.origins, w)
			left.total += w.weight
		}
	}
	if len(left.origins) == 0 {
		return c.Origin(nil)
	}
	return left.Origin(nil)
}

// Problem is why the rule cannot serve requests at all, nil if it can.
func (c *Rule) Problem() *reason.Error { return c.problem }
