package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/discovery"
)

// Services may declare tunnels by labels of their own. They become entries like those of the lists,
// which come first: a label takes nothing from whoever wrote a list.

// takeLabels makes what labels declare now part of what the agent declares. What is wrong with one
// is logged once, and touches no other.
func (a *Agent) takeLabels() {
	a.labelMu.Lock()
	defer a.labelMu.Unlock()
	now := a.finder.Declared()
	if maps.Equal(now, a.labels) {
		return
	}
	var list config.Services
	problems := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		d, problem := labelled(id, now[id])
		if problem != "" {
			problems[id] = problem
			continue
		}
		list = append(list, d)
	}
	old, t, err := a.change(func(w *desired) { w.labelled = list })
	if err != nil {
		a.log.Error("the labels of services are not used; what they declared before stays", "error", err)
		return
	}
	a.labels = now
	for _, d := range list {
		if by := t.entry(d); by.GetKey() != d.GetKey() {
			problems[d.GetKey()] = fmt.Sprintf("%s is declared by %s already", d.GetName(), by.GetKey())
		}
	}
	for id, problem := range problems {
		if a.labelProblems[id] != problem {
			a.log.Error("the labels of a service declare no tunnel", "service", id, "problem", problem)
		}
	}
	a.labelProblems = problems
	if t.equal(old) {
		return
	}
	m := a.current.Load()
	m.serve()
	wake(m.declare)
	a.touch()
}

// labelled reads what labels declare as an entry of its list.
func labelled(id string, d *discovery.Declaration) (*hubv1.DeclaredTunnel, string) {
	if d.Problem != "" {
		return nil, d.Problem
	}
	entry, err := json.Marshal([]any{d.Entry})
	if err != nil {
		return nil, err.Error()
	}
	var set config.ServiceLists
	switch d.List {
	case "tcp_services":
		set.TCP = string(entry)
	case "udp_services":
		set.UDP = string(entry)
	default:
		set.Services = string(entry)
	}
	list, err := config.ParseServices(set, nil)
	if err != nil {
		return nil, strings.ReplaceAll(err.Error(), d.List+"[0]", id)
	}
	list[0].Key = id
	return list[0], ""
}

// entry is the declared one that has what d asks for: d itself, or another that came first.
func (t *table) entry(d *hubv1.DeclaredTunnel) *hubv1.DeclaredTunnel {
	if s := t.byID[declaredID(d)]; s != nil {
		return s.declared
	}
	for _, s := range t.services {
		if clash(s.declared, d) {
			return s.declared
		}
	}
	return d
}

func declaredID(d *hubv1.DeclaredTunnel) string {
	return hubv1.DeclaredID(d.GetKind(), d.GetHostname(), d.GetPort(), d.GetPortLast())
}

// clash: two entries of one protocol want the same port.
func clash(a, b *hubv1.DeclaredTunnel) bool {
	return a.GetKind() == b.GetKind() && a.GetPort() != 0 &&
		a.GetPort() <= max(b.GetPort(), b.GetPortLast()) && b.GetPort() <= max(a.GetPort(), a.GetPortLast())
}

// all is what the agent declares: its lists, then what labels add to them.
func (w *desired) all() config.Services {
	if len(w.labelled) == 0 {
		return w.declared
	}
	out := slices.Clone(w.declared)
	for _, d := range w.labelled {
		if !slices.ContainsFunc(out, func(o *hubv1.DeclaredTunnel) bool { return declaredID(o) == declaredID(d) || clash(o, d) }) {
			out = append(out, d)
		}
	}
	return out
}
