//go:build bench && linux

package bench

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/bench/load"
	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/stack"
)

const (
	// maxOnLanes is how many of the idle connections are given to an agent that has to take them on
	// lanes: it holds 4,096 of each sort, and beyond them a connection would wait or ride something else.
	maxOnLanes = 4000
	// rawPace is the time between connections on raw lanes: above 200 a second TLS lanes are used.
	rawPace = time.Second / 150
)

// idleConnections measures one target after the other, each with fresh processes: memory that
// earlier work left behind would hide the growth.
func idleConnections(t *testing.T) {
	if *idle == 0 {
		return
	}
	s := site{near: "127.0.0.1", far: "127.0.0.1"}
	o := startOrigin(t, s)
	one := func(name string, n int, start func(t *testing.T) *target) {
		if !wanted(t, name) {
			return
		}
		t.Run(name, func(t *testing.T) { holdIdle(t, start(t), n) })
	}
	for _, policy := range []string{"latency", "throughput", "auto"} {
		one("adit "+policy, *idle, func(t *testing.T) *target {
			if policy == "throughput" {
				return adit(t, s, o, policy, "--carriers", "tls")[0]
			}
			g := adit(t, s, o, policy)[0]
			if policy == "latency" {
				run.AgentKiB = anonymous(t, g.agent)
			}
			return g
		})
	}
	one(report.Raw, *idle, func(t *testing.T) *target { return adit(t, s, o, rawPolicy)[0] })
	for _, name := range []string{report.FRP, "frp nomux", "frp quic"} {
		one(name, *idle, func(t *testing.T) *target { return frp(t, s, o, name)[0] })
	}
	one("chisel", *idle, func(t *testing.T) *target { return chisel(t, s, o) })
	two := hops{2, true}
	one(two.name(), *idle, func(t *testing.T) *target {
		if gs := haproxy(t, o, two); gs != nil {
			return gs[0]
		}
		return nil
	})
}

func holdIdle(t *testing.T, g *target, n int) {
	if g == nil {
		return
	}
	dial := g.dialTCP()
	switch g.name {
	case "adit throughput":
		n = min(n, maxOnLanes)
	case report.Raw:
		n = min(n, maxOnLanes)
		dial = load.Paced(dial, rawPace)
	}
	// The first connection pays for what every process sets up once.
	if r := load.Echo(t.Context(), g.dialTCP(), 1, 128, 100*time.Millisecond, false); r.Failed > 0 {
		t.Fatal(r.FirstErr)
	}
	before := settled(g)
	held := load.Hold(t.Context(), dial, n)
	silent := settled(g)
	held.Exchange()
	used := settled(g)
	open := float64(max(1, held.Open()))
	kib := func(a, b int64) float64 { return float64(b-a) / 1024 / open }
	failed, first := held.Close()
	if failed > 0 {
		t.Logf("%d failed, first: %s", failed, first)
	}
	run.Idle = append(run.Idle, report.Idle{Target: g.name, Open: held.Open(), Failed: failed,
		Edge: kib(before.edge, silent.edge), Agent: kib(before.agent, silent.agent),
		EdgeUsed: kib(before.edge, used.edge), AgentUsed: kib(before.agent, used.agent),
		EdgeDescriptors:  float64(silent.edgeFiles-before.edgeFiles) / open,
		AgentDescriptors: float64(silent.agentFiles-before.agentFiles) / open})
}

// settled is what g holds once that stands still, after 12 s at most: every product gives memory back
// late, ours 10 s after it last did.
func settled(g *target) usage {
	u := use(g)
	for end, still := time.Now().Add(12*time.Second), 0; still < 3 && time.Now().Before(end); {
		time.Sleep(time.Second)
		next := use(g)
		if d := next.edge + next.agent - u.edge - u.agent; d > -1<<20 && d < 1<<20 {
			still++
		} else {
			still = 0
		}
		u = next
	}
	return u
}

// usage is what the two processes of a target hold.
type usage struct {
	edge, agent           int64
	edgeFiles, agentFiles int
}

func use(g *target) usage {
	u := usage{edge: g.edge.RSS(), edgeFiles: g.edge.Descriptors()}
	if g.agent != nil {
		u.agent, u.agentFiles = g.agent.RSS(), g.agent.Descriptors()
	}
	return u
}

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// anonymous is the memory of a process that no file backs, in KiB.
func anonymous(t *testing.T, p *stack.Process) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := rssAnon.FindSubmatch(b)
	if m == nil {
		t.Fatal("no RssAnon in the status of the agent")
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib
}
