//go:build bench && linux

// Package bench measures Adit beside its peers: all targets run at once, idle ones silent;
// rounds visit the targets in a shuffled order, and what counts are medians of the ratios
// within one round, since a machine's speed drifts. CPU is what the kernel charged to the
// processes of edge and agent.
//
//	make bench-quick    under five minutes, prints tables
//	make bench          everything, and docs/benchmarks.md
package bench

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/stack"
)

var (
	rounds     = flag.Int("rounds", 3, "rounds over all targets")
	length     = flag.Duration("length", 2*time.Second, "length of one measurement on loopback")
	pathRounds = flag.Int("path-rounds", 1, "rounds over all targets on the emulated path")
	pathLength = flag.Duration("path-length", 5*time.Second, "length of one measurement on the emulated path; 0 = leave the path out")
	agents     = flag.Int("agents", 1000, "enrolled agents that are connected to one server; 0 = leave out")
	idle       = flag.Int("idle", 5000, "idle connections per target; 0 = leave out")
	only       = flag.String("only", "", "expression that names of targets must match")
	scenes     = flag.String("scenes", "", "expression that scenes on the emulated path must match")
	works      = flag.String("works", "", "expression that names of works must match")
	docs       = flag.String("docs", "", "documentation folder to publish in; empty = print only")
	raw        = flag.String("raw", "", "file for the raw data")
	// Set by this program where it runs itself again.
	serve = flag.String("serve-origin", "", "be the origin on this address")
	scene = flag.String("scene", "", "measure this scene, inside its namespace")
	far   = flag.String("far", "", "namespace of agent and origin")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *serve != "" {
		o, err := load.ListenOrigin(*serve)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		o.Announce(os.Stdout)
		o.Serve(context.Background())
		return
	}
	stack.Main(m)
}

// run collects what every part measures.
var run report.Run

func TestBench(t *testing.T) {
	if *scene != "" {
		measureScene(t)
		save(t)
		return
	}
	run.Settings = report.Settings{Rounds: *rounds, Seconds: length.Seconds(), PathRounds: *pathRounds, PathSeconds: pathLength.Seconds()}
	run.Machine = machine(t)
	t.Run("loopback", loopbackScene)
	if *pathLength > 0 {
		t.Run("path", pathScenes)
	}
	t.Run("idle", idleConnections)
	t.Run("agents", enrolledAgents)
	t.Run("routes", routes)
	save(t)
	t.Log(run.Markdown() + "\n" + run.Budgets())
}

func save(t *testing.T) {
	t.Helper()
	if *raw != "" {
		if err := run.Save(*raw); err != nil {
			t.Fatal(err)
		}
	}
	if *docs == "" {
		return
	}
	if t.Failed() {
		t.Fatal("nothing is published: a part failed")
	}
	if err := run.Publish(*docs); err != nil {
		t.Fatal(err)
	}
}

// wanted reports whether -only leaves a target in; what others are compared with always stays.
func wanted(t *testing.T, name string) bool {
	t.Helper()
	ok, err := regexp.MatchString(*only, name)
	if err != nil {
		t.Fatal(err)
	}
	return ok || name == report.Direct || name == report.FRP
}

func loopbackScene(t *testing.T) {
	s := site{near: "127.0.0.1", far: "127.0.0.1"}
	o := startOrigin(t, s)
	targets := []*target{{name: report.Direct, tcp: o.tcp, http: o.http, udp: o.udp}}
	for _, policy := range policies {
		if wanted(t, "adit "+policy) {
			targets = append(targets, adit(t, s, o, policy)...)
		}
	}
	if wanted(t, report.Raw) {
		targets = append(targets, adit(t, s, o, rawPolicy)...)
	}
	for _, name := range []string{report.FRP, "frp nomux", "frp quic"} {
		if wanted(t, name) {
			targets = append(targets, frp(t, s, o, name)...)
		}
	}
	if wanted(t, "chisel") {
		targets = append(targets, chisel(t, s, o))
	}
	for _, h := range []hops{{1, false}, {2, false}, {2, true}} {
		if wanted(t, h.name()) {
			targets = append(targets, haproxy(t, o, h)...)
		}
	}
	measure(t, report.Loopback, targets, loopbackWorks(), *rounds)
}

// measure does every work on every target, in rounds.
func measure(t *testing.T, scene string, targets []*target, all []work, rounds int) {
	t.Helper()
	matching, err := regexp.Compile(*works)
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		for _, w := range all {
			if !matching.MatchString(w.name) {
				continue
			}
			order := slices.Clone(targets)
			rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, g := range order {
				before := g.cpu(t)
				r, ok := w.run(t.Context(), g)
				if !ok {
					continue
				}
				s := report.Sample{Scene: scene, Round: round, Work: w.name, Target: g.name, Result: r, CPU: perUnit(r, g.cpu(t)-before)}
				run.Samples = append(run.Samples, s)
				if r.FirstErr != "" {
					t.Logf("%s, %s: %d failed, first: %s", w.name, g.name, r.Failed, r.FirstErr)
				}
			}
		}
	}
}

// perUnit turns CPU seconds into seconds per GB, or microseconds per operation.
func perUnit(r load.Result, cpu float64) float64 {
	switch {
	case r.Bytes > 0:
		return cpu / (float64(r.Bytes) / 1e9)
	case r.Count > 0:
		return cpu * 1e6 / float64(r.Count)
	default:
		return 0
	}
}

// work is one table of the report.
type work struct {
	name string
	// run reports false where the target cannot do it.
	run func(ctx context.Context, g *target) (load.Result, bool)
}

func loopbackWorks() []work {
	d := *length
	return []work{
		overTCP(report.Bulk1, func(ctx context.Context, g load.Dial) load.Result { return load.Bulk(ctx, g, 1, d, false) }),
		overTCP(report.Bulk16, func(ctx context.Context, g load.Dial) load.Result { return load.Bulk(ctx, g, 16, d, false) }),
		overTCP(report.Upload1, func(ctx context.Context, g load.Dial) load.Result { return load.Bulk(ctx, g, 1, d, true) }),
		overTCP(report.Echo1, func(ctx context.Context, g load.Dial) load.Result { return load.Echo(ctx, g, 1, 128, d, false) }),
		overTCP(report.NewConn32, func(ctx context.Context, g load.Dial) load.Result { return load.Echo(ctx, g, 32, 128, d, true) }),
		overTCP(report.NewConn1, func(ctx context.Context, g load.Dial) load.Result { return load.Echo(ctx, g, 1, 128, d, true) }),
		overHTTP(report.HTTPKeepAlive, 64, d, false),
		overHTTP(report.HTTPFresh32, 32, d, true),
		overHTTP(report.HTTPFresh1, 1, d, true),
		overUDP(report.UDPRate, func(a string) (load.Result, error) { return load.UDPWindow(a, 1200, 32, d) }),
		overUDP(report.UDPPaced, func(a string) (load.Result, error) { return load.UDPRate(a, 1200, 20000, d) }),
		overUDP(report.UDPLatency, func(a string) (load.Result, error) { return load.UDPWindow(a, 1200, 1, d) }),
	}
}

func overTCP(name string, f func(context.Context, load.Dial) load.Result) work {
	return work{name, func(ctx context.Context, g *target) (load.Result, bool) {
		if g.tcp == "" {
			return load.Result{}, false
		}
		return f(ctx, g.dialTCP()), true
	}}
}

func overHTTP(name string, n int, d time.Duration, fresh bool) work {
	return work{name, func(ctx context.Context, g *target) (load.Result, bool) {
		if g.http == "" {
			return load.Result{}, false
		}
		return load.HTTP(ctx, g.dialHTTP(), host, n, d, fresh), true
	}}
}

func overUDP(name string, f func(addr string) (load.Result, error)) work {
	return work{name, func(_ context.Context, g *target) (load.Result, bool) {
		if g.udp == "" {
			return load.Result{}, false
		}
		r, err := f(g.udp)
		if err != nil {
			r.FirstErr = err.Error()
		}
		return r, true
	}}
}

// self is this test binary, which is also the origin and what measures inside a namespace.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Clean(path)
}
