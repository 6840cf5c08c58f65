package agent

import (
	"context"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// discoveryPause is the time between two reports of what was found.
const discoveryPause = 500 * time.Millisecond

// capabilities are what the hub may ask of this agent.
func (a *Agent) capabilities() []string {
	out := []string{"logs", "preflight"}
	if len(a.cfg.Origin.AllowForward) > 0 {
		out = append(out, "forward")
	}
	for _, name := range a.finder.Names() {
		out = append(out, "discovery:"+name)
	}
	return out
}

// foundSomething has the services that were found reported, and what they declare served. A
// provider that turns out not to work here changes what the agent can do.
func (a *Agent) foundSomething() {
	a.takeLabels()
	can := strings.Join(a.capabilities(), " ")
	if old := a.can.Swap(&can); old == nil || *old != can {
		a.reportSoon()
	}
	if m := a.current.Load(); m != nil {
		wake(m.found)
	}
}

// discoverLoop tells the hub what can be exposed here: everything at first, then what changes.
func (m *member) discoverLoop(ctx context.Context) {
	if len(m.a.cfg.Providers) == 0 {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	wake(m.found)
	for all := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-m.found:
		}
		pause.Reset(discoveryPause)
		// Differences are told once, by the member that counts.
		if m.a.current.Load() != m {
			all = true
			continue
		}
		d := m.a.finder.Report(all)
		if d == nil {
			continue
		}
		rctx, cancel := context.WithTimeout(ctx, rpcTimeout)
		_, err := m.hub.Report(rctx, &hubv1.ReportRequest{Discovery: d})
		cancel()
		if all = err != nil; all && ctx.Err() == nil {
			m.log.Debug("the hub took no report of discovered services", "error", err)
			pause.Reset(10 * time.Second)
			wake(m.found)
		}
	}
}
