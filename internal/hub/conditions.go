package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// conditionStep is how often the hub looks at what is wrong.
	conditionStep = 2 * time.Second
	// settling is how long after its start a hub waits for machines to report before it says that
	// one is offline.
	settling = edgeSilence + 15*time.Second
)

// patience is how long something must be so before it is told: agents restart, certificates take
// a moment to come.
var patience = map[string]time.Duration{
	EventAgentOffline: 10 * time.Second, EventCertificateFailing: 30 * time.Second, EventTunnelFailing: 10 * time.Second,
}

// conditions are what is wrong, and since when. What was told is in the store, so that a restart
// tells nothing twice and several hubs of one database tell it once.
type conditions struct {
	settled time.Time
	// doubt is since when this hub has seen something that is wrong.
	doubt map[string]time.Time
	// seen are places that are stored already.
	seen map[tokenPlace]bool
}

func newConditions(now time.Time) *conditions {
	return &conditions{settled: now.Add(settling), doubt: map[string]time.Time{}, seen: map[tokenPlace]bool{}}
}

// ends tells which event ends a problem of a kind.
var ends = map[string]string{
	EventAgentOffline: EventAgentOnline, EventEdgeOffline: EventEdgeOnline, EventCertificateFailing: EventCertificateOK,
	EventPortUnavailable: EventPortAvailable, EventTunnelFailing: EventTunnelOK, EventNoticeFailing: EventNoticeOK,
}

// observe turns what came and went since the last look into events.
func (h *Hub) observe(ctx context.Context) error {
	c, now := h.conditions, h.cfg.Now()
	places := h.newPlaces(now)
	var found map[string]*hubv1.CurrentProblem
	told := map[string]*hubv1.CurrentProblem{}
	if !now.Before(c.settled) {
		var err error
		if found, err = h.problems(ctx, now); err != nil {
			return err
		}
		for name := range found {
			if _, ok := c.doubt[name]; !ok {
				c.doubt[name] = now
			}
		}
		maps.DeleteFunc(c.doubt, func(name string, _ time.Time) bool { return found[name] == nil })
		if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { told, err = toldConditions(tx); return err }); err != nil {
			return err
		}
	}
	due := func(told map[string]*hubv1.CurrentProblem) (begun, over []string) {
		if found == nil {
			return nil, nil
		}
		for name, p := range found {
			if told[name] == nil && now.Sub(c.doubt[name]) >= patience[p.GetKind()] {
				begun = append(begun, name)
			}
		}
		for name := range told {
			if found[name] == nil {
				over = append(over, name)
			}
		}
		slices.Sort(begun)
		slices.Sort(over)
		return begun, over
	}
	if begun, over := due(told); len(begun)+len(over)+len(places) == 0 {
		return nil
	}
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		// Another hub may have told it meanwhile.
		told, err := toldConditions(tx)
		if err != nil {
			return err
		}
		begun, over := due(told)
		for _, name := range begun {
			if err := h.begin(tx, name, found[name]); err != nil {
				return err
			}
		}
		for _, name := range over {
			if err := h.end(tx, name, told[name]); err != nil {
				return err
			}
		}
		return h.notePlaces(tx, places)
	})
	if err != nil {
		return err
	}
	for _, p := range places {
		c.seen[p.tokenPlace] = true
	}
	return nil
}

func toldConditions(tx *store.Tx) (map[string]*hubv1.CurrentProblem, error) {
	rows, err := tx.Conditions()
	if err != nil {
		return nil, err
	}
	out := make(map[string]*hubv1.CurrentProblem, len(rows))
	for _, r := range rows {
		p := &hubv1.CurrentProblem{}
		if err := proto.Unmarshal(r.Entry, p); err != nil {
			return nil, fmt.Errorf("condition %s: %w", r.Name, err)
		}
		p.Since = timestamppb.New(time.UnixMilli(r.Since))
		out[r.Name] = p
	}
	return out, nil
}

func (h *Hub) begin(tx *store.Tx, name string, p *hubv1.CurrentProblem) error {
	raw, err := proto.Marshal(p)
	if err != nil {
		return err
	}
	if err := tx.SetCondition(&store.Condition{Name: name, Entry: raw, Since: h.conditions.doubt[name].UnixMilli()}); err != nil {
		return err
	}
	return h.event(tx, &hubv1.Event{Kind: p.GetKind(), Severity: p.GetSeverity(), Subject: p.GetSubject(), Text: p.GetText(), Reason: p.GetReason()})
}

func (h *Hub) end(tx *store.Tx, name string, p *hubv1.CurrentProblem) error {
	if err := tx.DropCondition(name); err != nil {
		return err
	}
	lasted := tx.Now.Sub(p.GetSince().AsTime()).Round(time.Second)
	return h.event(tx, &hubv1.Event{
		Kind: ends[p.GetKind()], Severity: SeverityInfo, Subject: p.GetSubject(), Text: fmt.Sprintf("is well again after %s", lasted),
		Attributes: map[string]string{"after": p.GetKind()},
	})
}

// ListProblems returns what is wrong now, the worst first.
func (h *Hub) ListProblems(ctx context.Context) ([]*hubv1.CurrentProblem, error) {
	var told map[string]*hubv1.CurrentProblem
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { told, err = toldConditions(tx); return err }); err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(told), func(a, b *hubv1.CurrentProblem) int {
		if d := severities[b.GetSeverity()] - severities[a.GetSeverity()]; d != 0 {
			return d
		}
		return a.GetSince().AsTime().Compare(b.GetSince().AsTime())
	}), nil
}

// problems is all that is wrong as this hub sees it, by a name that stays the same while it is so.
func (h *Hub) problems(ctx context.Context, now time.Time) (map[string]*hubv1.CurrentProblem, error) {
	out := map[string]*hubv1.CurrentProblem{}
	add := func(id string, p *hubv1.CurrentProblem) { out[p.GetKind()+"/"+id] = p }
	if err := h.agentProblems(ctx, now, add); err != nil {
		return nil, err
	}
	for _, e := range h.feed.edges() {
		if id := e.GetAddress().GetId(); !h.edgeHeard(id, now) {
			add(id, &hubv1.CurrentProblem{Kind: EventEdgeOffline, Severity: SeverityError, Subject: "edge/" + id, Text: "has not reported for " + edgeSilence.String(),
				Reason: string(reason.HubUnreachable), Remedy: "start it and look at its log, or remove it with adit edge remove " + id})
		}
	}
	h.feed.each("certificate", func(r *hubv1.Resource) {
		c := r.GetCertificate()
		if c.GetProblem() == "" {
			return
		}
		p := &hubv1.CurrentProblem{Kind: EventCertificateFailing, Severity: SeverityWarning, Subject: "certificate/" + c.GetName(),
			Text: c.GetProblem(), Remedy: "see the server's log; it is tried again every minute"}
		if len(c.GetChainPem()) == 0 || !c.GetNotAfter().AsTime().After(now) {
			p.Severity = SeverityError
		}
		add(c.GetName(), p)
	})
	h.tunnelProblems(now, add)
	return out, h.noticeProblems(ctx, add)
}

// agentProblems finds agents that serve tunnels, have been here and have no live replica. Tokens of
// one agent, while it rotates, count as one.
func (h *Hub) agentProblems(ctx context.Context, now time.Time, add func(string, *hubv1.CurrentProblem)) error {
	agentOf, names := map[string]string{}, map[string]string{}
	h.feed.each("credential", func(r *hubv1.Resource) {
		c := r.GetCredential()
		if c.GetRevoked() || c.GetDisabled() || c.GetExpiresAt() != nil && !c.GetExpiresAt().AsTime().After(now) {
			return
		}
		id := c.GetMemberOf()
		if id == "" {
			id = c.GetTokenId()
		}
		agentOf[c.GetTokenId()], names[id] = id, c.GetName()
	})
	needed := map[string]bool{}
	for _, t := range h.feed.tunnels() {
		for _, id := range t.GetTokenIds() {
			if a := agentOf[id]; a != "" && !t.GetDisabled() {
				needed[a] = true
			}
		}
	}
	for k := range h.presence.alive(now) {
		delete(needed, agentOf[k.token])
	}
	if len(needed) == 0 {
		return nil
	}
	been := map[string]bool{}
	err := h.store.Read(ctx, func(tx *store.Tx) error {
		tokens, err := tx.TokensWithPlaces()
		for _, t := range tokens {
			been[agentOf[t]] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	for id := range needed {
		if been[id] {
			add(id, &hubv1.CurrentProblem{Kind: EventAgentOffline, Severity: SeverityWarning, Subject: "agent/" + names[id], Text: "has no running replica",
				Reason: string(reason.NoAgent), Remedy: "start it, or look at its log"})
		}
	}
	return nil
}

// tunnelProblems finds ports that no edge can bind, and tunnels that their replicas report as
// failing.
func (h *Hub) tunnelProblems(now time.Time, add func(string, *hubv1.CurrentProblem)) {
	failing := map[string]*hubv1.TunnelReport{}
	well := map[string]bool{}
	bound := map[string]bool{}
	h.presence.look(func(edges map[string]*edgePresence, agents map[replicaKey]*agentPresence) {
		for _, e := range edges {
			for _, r := range e.ports {
				if e.fresh(now) && r.GetProblem() != "" {
					bound[r.GetTunnelId()] = false
				}
			}
		}
		for _, a := range agents {
			if a.watches == 0 && now.Sub(a.heard) > edgeSilence {
				continue
			}
			for _, r := range a.tunnels {
				if r.GetState() == "problem" {
					failing[r.GetTunnelId()] = r
				} else {
					well[r.GetTunnelId()] = true
				}
			}
		}
	})
	for id := range bound {
		t, p := h.feed.get("tunnel/"+id).GetTunnel(), h.presence.portProblem(id, now)
		if t == nil || p == nil {
			continue
		}
		severity := SeverityWarning
		if p.fatal() {
			severity = SeverityError
		}
		add(id, &hubv1.CurrentProblem{Kind: EventPortUnavailable, Severity: severity, Subject: subjectOf(t), Text: p.String(),
			Reason: string(reason.PortUnavailable), Remedy: "stop the program that holds the port, or give the tunnel another one"})
	}
	for id, r := range failing {
		if t := h.feed.get("tunnel/" + id).GetTunnel(); t != nil && !well[id] && !t.GetDisabled() {
			add(id, &hubv1.CurrentProblem{Kind: EventTunnelFailing, Severity: SeverityWarning, Subject: subjectOf(t), Text: r.GetDetail(),
				Reason: r.GetReason(), Remedy: "see `adit tunnel get`, and the agent's log"})
		}
	}
}
