// Package report turns what the benchmark measured into medians, ratios, tables, plots and the
// verdict about each budget.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/adit-dev/adit/test/bench/load"
)

// Targets that others are compared with.
const (
	Direct = "direct"
	FRP    = "frp"
)

// Sample is one measurement of one target.
type Sample struct {
	Scene  string      `json:"scene"`
	Round  int         `json:"round"`
	Work   string      `json:"work"`
	Target string      `json:"target"`
	Result load.Result `json:"result"`
	// CPU is what edge and agent used: seconds per GB where bytes are counted, else
	// microseconds per operation.
	CPU float64 `json:"cpu"`
}

// Idle is what held connections cost, as growth of the resident memory.
type Idle struct {
	Target string `json:"target"`
	Open   int    `json:"open"`
	// Silent since opening, KiB per connection.
	Edge  float64 `json:"edge_kib"`
	Agent float64 `json:"agent_kib"`
	// The same after each had moved load.ExchangeSize each way.
	EdgeUsed  float64 `json:"edge_kib_used"`
	AgentUsed float64 `json:"agent_kib_used"`
	// Descriptors of edge and agent per connection, while silent.
	EdgeDescriptors  float64 `json:"edge_descriptors"`
	AgentDescriptors float64 `json:"agent_descriptors"`
	Failed           int64   `json:"failed,omitempty"`
}

// Routes is what a table of 100,000 routes costs.
type Routes struct {
	MiB float64 `json:"mib"`
	// Lookup is the slowest kind of lookup, Replace the replacement of one route; nanoseconds.
	Lookup  float64 `json:"lookup_ns"`
	Replace float64 `json:"replace_ns"`
}

// Machine says where and with what it was measured.
type Machine struct {
	Date     string            `json:"date"`
	Revision string            `json:"revision"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Go       string            `json:"go"`
	Default  string            `json:"congestion_control"`
	Peers    map[string]string `json:"peers"`
	Load     string            `json:"load_average_before"`
}

// Settings are the lengths and numbers of a run.
type Settings struct {
	Rounds      int     `json:"rounds"`
	Seconds     float64 `json:"seconds"`
	PathRounds  int     `json:"path_rounds"`
	PathSeconds float64 `json:"path_seconds"`
}

// Run is everything that one run measured.
type Run struct {
	Machine  Machine  `json:"machine"`
	Settings Settings `json:"settings"`
	Samples  []Sample `json:"samples,omitempty"`
	Idle     []Idle   `json:"idle,omitempty"`
	// AgentKiB is the anonymous memory of an agent that has a session and no visitors.
	AgentKiB float64 `json:"idle_agent_kib,omitempty"`
	Routes   Routes  `json:"routes,omitzero"`
	Agents   Agents  `json:"agents,omitzero"`
}

// Agents is what many enrolled agents cost that are connected and idle, and how they come back after
// the server was started again.
type Agents struct {
	Count int `json:"count"`
	// KiB is the growth of the server's resident memory for each, hub and edge together.
	KiB float64 `json:"kib"`
	// Away is how long the server was gone; First, Half and Last are when agents had a session again,
	// all in seconds, the latter from its start on.
	Away  float64 `json:"away_seconds"`
	First float64 `json:"first_seconds"`
	Half  float64 `json:"half_seconds"`
	Last  float64 `json:"last_seconds"`
}

// Figure picks one number of a sample.
type Figure func(Sample) float64

// The figures of a sample.
var (
	Rate Figure = func(s Sample) float64 { return s.Result.Rate }
	P50  Figure = func(s Sample) float64 { return s.Result.P50 }
	P99  Figure = func(s Sample) float64 { return s.Result.P99 }
	Loss Figure = func(s Sample) float64 { return s.Result.Loss }
	CPU  Figure = func(s Sample) float64 { return s.CPU }
)

// Series names what was measured: one work on one target in one scene.
type Series struct{ Scene, Work, Target string }

// byRound holds a figure of each round.
func (r *Run) byRound(s Series, f Figure) map[int]float64 {
	m := map[int]float64{}
	for _, x := range r.Samples {
		if x.Scene == s.Scene && x.Work == s.Work && x.Target == s.Target {
			m[x.Round] = f(x)
		}
	}
	return m
}

// Value is the median over the rounds; ok is false where nothing was measured.
func (r *Run) Value(s Series, f Figure) (v float64, ok bool) {
	var all []float64
	for _, x := range r.byRound(s, f) {
		all = append(all, x)
	}
	return Median(all)
}

// Ratio is the median of a/b over the rounds that have both: the machine's speed drifts, but
// hardly within a round.
func (r *Run) Ratio(a, b Series, f Figure) (v float64, ok bool) {
	var all []float64
	other := r.byRound(b, f)
	for round, x := range r.byRound(a, f) {
		if y := other[round]; y > 0 {
			all = append(all, x/y)
		}
	}
	return Median(all)
}

// Median of values; ok is false where there are none.
func Median(values []float64) (v float64, ok bool) {
	if len(values) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[mid-1] + sorted[mid]) / 2, true
	}
	return sorted[mid], true
}

// names lists one field of the samples in a scene: known ones in the order given, then others
// in the order they came.
func (r *Run) names(scene string, of func(Sample) string, known ...string) []string {
	var came []string
	for _, s := range r.Samples {
		if n := of(s); (scene == "" || s.Scene == scene) && !slices.Contains(came, n) {
			came = append(came, n)
		}
	}
	var out []string
	for _, k := range known {
		if slices.Contains(came, k) {
			out = append(out, k)
		}
	}
	for _, n := range came {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// Add takes over the measurements of another process of the same run.
func (r *Run) Add(o *Run) {
	r.Samples = append(r.Samples, o.Samples...)
	r.Idle = append(r.Idle, o.Idle...)
	if o.Agents.Count > 0 {
		r.Agents = o.Agents
	}
	if o.AgentKiB > 0 {
		r.AgentKiB = o.AgentKiB
	}
}

// Save writes the raw data, one sample a line.
func (r *Run) Save(path string) error {
	var b bytes.Buffer
	head := *r
	head.Samples, head.Idle = nil, nil
	first, err := json.Marshal(head)
	if err != nil {
		return err
	}
	// Samples and idle ones are left out of the first line and follow, one a line.
	b.Write(bytes.TrimSuffix(first, []byte("}")))
	if err := lines(&b, "samples", r.Samples); err != nil {
		return err
	}
	if err := lines(&b, "idle", r.Idle); err != nil {
		return err
	}
	b.WriteString("}\n")
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func lines[T any](b *bytes.Buffer, name string, list []T) error {
	if len(list) == 0 {
		return nil
	}
	fmt.Fprintf(b, ",\n%q: [", name)
	for i, v := range list {
		one, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(one)
	}
	b.WriteString("]")
	return nil
}

// Load reads what Save wrote.
func Load(path string) (*Run, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Run{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
