package hub

import (
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// Hubs that share a database tell each other what their machines reported, so that each of them
// answers for all. Every hub writes rows of its own (store.HubReport) and reads those of others.

func edgeItem(id string) string     { return "edge/" + id }
func agentItem(k replicaKey) string { return "agent/" + k.token + "/" + k.replica }
func (p *presence) note(item string) {
	if p.changed != nil {
		p.changed[item] = true
	}
}

// mergeEdge makes the newest report of an edge the one that counts.
func (p *presence) mergeEdge(id string) {
	best := p.own.edges[id]
	for _, o := range p.others {
		if e := o.edges[id]; e != nil && (best == nil || e.heard.After(best.heard)) {
			best = e
		}
	}
	if best == nil {
		delete(p.edges, id)
		return
	}
	p.edges[id] = best
}

// mergeAgent makes one of what hubs know of a replica: it watches if it watches at any of them; the
// rest is from the one that heard it last.
func (p *presence) mergeAgent(k replicaKey) {
	best := p.own.agents[k]
	watches, declared, several := 0, time.Time{}, false
	add := func(a *agentPresence) {
		watches += a.watches
		if a.declared.After(declared) {
			declared = a.declared
		}
	}
	if best != nil {
		add(best)
	}
	for _, o := range p.others {
		a := o.agents[k]
		if a == nil {
			continue
		}
		add(a)
		several = several || best != nil
		if best == nil || a.heard.After(best.heard) {
			best = a
		}
	}
	switch {
	case best == nil:
		delete(p.agents, k)
		return
	case several:
		c := *best
		c.watches, c.declared = watches, declared
		best = &c
	}
	p.agents[k] = best
}

// sharedAgent is an agentPresence for other hubs. Times are in Unix milliseconds.
type sharedAgent struct {
	Watches      int      `json:"watches,omitempty"`
	Declared     int64    `json:"declared,omitempty"`
	Draining     bool     `json:"draining,omitempty"`
	Software     string   `json:"software,omitempty"`
	HostName     string   `json:"host,omitempty"`
	Address      string   `json:"address,omitempty"`
	Node         []byte   `json:"node,omitempty"`
	Tunnels      [][]byte `json:"tunnels,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	Advertised   []string `json:"advertised,omitempty"`
}

// row is an item of own for other hubs.
func (p *presence) row(item string) (store.HubReport, error) {
	r := store.HubReport{Item: item, Body: []byte{}, Gone: true}
	kind, rest, _ := strings.Cut(item, "/")
	var err error
	if e := p.own.edges[rest]; kind == "edge" && e != nil {
		r.Gone, r.Heard = false, e.heard.UnixMilli()
		r.Body, err = proto.Marshal(&hubv1.ReportRequest{Revision: e.revision, Software: e.software, Draining: e.draining, Sessions: e.sessions, Ports: e.ports})
		return r, err
	}
	a := p.own.agents[agentKey(rest)]
	if kind != "agent" || a == nil {
		return r, nil
	}
	r.Gone, r.Heard = false, a.heard.UnixMilli()
	s := sharedAgent{Watches: a.watches, Draining: a.draining, Software: a.software, HostName: a.hostName, Address: a.address, Node: a.node, Capabilities: a.capabilities, Advertised: a.advertised}
	if !a.declared.IsZero() {
		s.Declared = a.declared.UnixMilli()
	}
	for _, t := range a.tunnels {
		raw, err := proto.Marshal(t)
		if err != nil {
			return r, err
		}
		s.Tunnels = append(s.Tunnels, raw)
	}
	r.Body, err = json.Marshal(s)
	return r, err
}

func agentKey(rest string) replicaKey {
	token, replica, _ := strings.Cut(rest, "/")
	return replicaKey{token, replica}
}

// unshared returns the rows that other hubs have not been told of, or all, and takes them as told.
func (p *presence) unshared(all bool) ([]store.HubReport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if all {
		for id := range p.own.edges {
			p.note(edgeItem(id))
		}
		for k := range p.own.agents {
			p.note(agentItem(k))
		}
	}
	rows := make([]store.HubReport, 0, len(p.changed))
	for item := range p.changed {
		r, err := p.row(item)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	clear(p.changed)
	return rows, nil
}

// again notes rows whose storing failed.
func (p *presence) again(rows []store.HubReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range rows {
		p.note(r.Item)
	}
}

// told takes rows of another hub. Ahead is how far this hub's clock is ahead of the other's.
func (p *presence) told(hub string, rows []store.HubReport, ahead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.others[hub]
	if o == nil {
		o = newHearings()
		p.others[hub] = o
	}
	at := func(ms int64) time.Time { return time.UnixMilli(ms).Add(ahead) }
	for _, r := range rows {
		kind, rest, _ := strings.Cut(r.Item, "/")
		switch kind {
		case "edge":
			delete(o.edges, rest)
			x := &hubv1.ReportRequest{}
			if !r.Gone && proto.Unmarshal(r.Body, x) == nil {
				o.edges[rest] = &edgePresence{heard: at(r.Heard), revision: x.GetRevision(), software: x.GetSoftware(), draining: x.GetDraining(), sessions: x.GetSessions(), ports: x.GetPorts()}
			}
			p.mergeEdge(rest)
		case "agent":
			k := agentKey(rest)
			delete(o.agents, k)
			s := sharedAgent{}
			if !r.Gone && json.Unmarshal(r.Body, &s) == nil {
				o.agents[k] = s.presence(at(r.Heard), at)
			}
			p.mergeAgent(k)
		}
	}
}

func (s *sharedAgent) presence(heard time.Time, at func(int64) time.Time) *agentPresence {
	a := &agentPresence{watches: s.Watches, heard: heard, draining: s.Draining, software: s.Software, hostName: s.HostName, address: s.Address, node: s.Node, capabilities: s.Capabilities, advertised: s.Advertised}
	if s.Declared != 0 {
		a.declared = at(s.Declared)
	}
	for _, raw := range s.Tunnels {
		t := &hubv1.TunnelReport{}
		if proto.Unmarshal(raw, t) == nil {
			a.tunnels = append(a.tunnels, t)
		}
	}
	return a
}

// silent forgets what another hub said: it has ended, or is not heard.
func (p *presence) silent(hub string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.others[hub]
	delete(p.others, hub)
	if o == nil {
		return
	}
	for id := range o.edges {
		p.mergeEdge(id)
	}
	for k := range o.agents {
		p.mergeAgent(k)
	}
}
