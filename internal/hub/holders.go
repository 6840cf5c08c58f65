package hub

import (
	"context"
	"errors"
	"slices"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
)

const (
	// returnTime is how long the holder of an enrolment has to come back to an edge that was
	// started again, before another process may have it.
	returnTime = 15 * time.Second
	// lostEdge is how long an edge that no hub hears keeps what it said of holders.
	lostEdge = 3 * time.Minute
)

// held is one enrolment at one edge as this hub has noted it.
type held map[string]string // replica by agent

// noteHolders records who holds which enrolment, by the sessions that an edge reports. An edge
// decides by its own sessions alone; this makes several of them agree.
func (h *Hub) noteHolders(ctx context.Context, edge string, r *hubv1.ReportRequest) error {
	now := h.cfg.Now()
	seen := h.enrolledSessions(r.GetSessions())
	back := r.GetStartedAt() != nil && now.Sub(r.GetStartedAt().AsTime()) < returnTime
	if !back && h.asNoted(edge, seen) {
		return nil
	}
	err := h.write(ctx, func(tx *store.Tx) error { return h.reconcileHolders(tx, edge, seen, back) })
	if err != nil {
		return err
	}
	noted := held{}
	for agent, s := range seen {
		noted[agent] = s[0].GetReplicaId()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if back {
		delete(h.noted, edge) // look again when the time is over
		return nil
	}
	h.noted[edge] = noted
	return nil
}

// enrolledSessions are the sessions of enrolled agents, by agent, the oldest first.
func (h *Hub) enrolledSessions(all []*hubv1.SessionReport) map[string][]*hubv1.SessionReport {
	out := map[string][]*hubv1.SessionReport{}
	for _, s := range all {
		if h.feed.get("credential/"+s.GetTokenId()).GetCredential().GetKind() == string(identity.KindAgent) {
			out[s.GetTokenId()] = append(out[s.GetTokenId()], s)
		}
	}
	for _, s := range out {
		slices.SortStableFunc(s, func(a, b *hubv1.SessionReport) int { return a.GetSince().AsTime().Compare(b.GetSince().AsTime()) })
	}
	return out
}

// asNoted reports whether an edge says what is noted of it, and the feed says the same.
func (h *Hub) asNoted(edge string, seen map[string][]*hubv1.SessionReport) bool {
	h.mu.Lock()
	noted, known := h.noted[edge]
	h.mu.Unlock()
	if !known || len(noted) != len(seen) {
		return false
	}
	for agent, sessions := range seen {
		holder := h.feed.get("credential/" + agent).GetCredential().GetHolderReplica()
		for _, s := range sessions {
			if s.GetReplicaId() != noted[agent] || s.GetReplicaId() != holder || s.GetDraining() {
				return false
			}
		}
	}
	return true
}

// ledger is what the store has of holders, read once for all agents of a report.
type ledger struct {
	holders map[string]*store.Holder
	// edges are those at which the holder has a session, by agent.
	edges map[string]map[string]bool
}

func readLedger(tx *store.Tx) (*ledger, error) {
	l := &ledger{holders: map[string]*store.Holder{}, edges: map[string]map[string]bool{}}
	holders, err := tx.Holders()
	if err != nil {
		return nil, err
	}
	for _, x := range holders {
		l.holders[x.Agent] = x
	}
	rows, err := tx.HolderEdges()
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if l.edges[r.Agent] == nil {
			l.edges[r.Agent] = map[string]bool{}
		}
		l.edges[r.Agent][r.Edge] = true
	}
	return l, nil
}

func (h *Hub) reconcileHolders(tx *store.Tx, edge string, seen map[string][]*hubv1.SessionReport, back bool) error {
	l, err := readLedger(tx)
	if err != nil {
		return err
	}
	for agent, at := range l.edges {
		if at[edge] && seen[agent] == nil {
			if err := h.reconcileHolder(tx, l, agent, edge, nil, back); err != nil {
				return err
			}
		}
	}
	for agent, sessions := range seen {
		if err := h.reconcileHolder(tx, l, agent, edge, sessions, back); err != nil {
			return err
		}
	}
	return nil
}

// reconcileHolder brings who holds an enrolment in line with the sessions of its agent at one edge.
func (h *Hub) reconcileHolder(tx *store.Tx, l *ledger, agent, edge string, sessions []*hubv1.SessionReport, back bool) error {
	x := l.holders[agent]
	if x == nil {
		x = &store.Holder{Agent: agent}
	}
	before := *x
	is := func(replica string, drains bool) bool {
		return slices.ContainsFunc(sessions, func(s *hubv1.SessionReport) bool {
			return (s.GetReplicaId() == x.Replica) == (replica == x.Replica) && s.GetDraining() == drains
		})
	}
	const another = "another"
	here := is(x.Replica, false)
	var err error
	switch {
	case x.Replica == "":
	case is(x.Replica, true) && !here:
		// It gives the enrolment up, at every edge.
		err = h.dropHolder(tx, l, x)
	case !here && (!back || is(another, false)):
		// Soon after a start the holder may be on its way back, unless the edge has another one: then
		// it knows that the holder went from there.
		err = h.leftEdge(tx, l, x, edge)
	}
	if err != nil {
		return err
	}
	for _, s := range sessions {
		switch {
		case s.GetDraining():
		case x.Replica == "":
			x.Replica, x.HostName, x.Since, x.Term = s.GetReplicaId(), s.GetHostName(), tx.Now.UnixMilli(), x.Term+1
		case x.Replica != s.GetReplicaId():
			// Two edges, apart for a while, admitted one each. This one stays, and the edge of the
			// other one hears of it.
			x.Term++
		}
	}
	if *x != before {
		if err := tx.SetHolder(x); err != nil {
			return err
		}
		if err := h.holderChanged(tx, agent); err != nil {
			return err
		}
	}
	if x.Replica != "" && is(x.Replica, false) && !l.edges[agent][edge] {
		return tx.AddHolderEdge(agent, edge)
	}
	return nil
}

// dropHolder notes that nobody holds the enrolment.
func (h *Hub) dropHolder(tx *store.Tx, l *ledger, x *store.Holder) error {
	for edge := range l.edges[x.Agent] {
		if err := tx.DropHolderEdge(x.Agent, edge); err != nil {
			return err
		}
	}
	delete(l.edges, x.Agent)
	x.Replica, x.HostName, x.Since, x.Term = "", "", 0, x.Term+1
	return nil
}

// leftEdge notes that the holder has no session at an edge any more. At no edge that is heard: then
// it is gone.
func (h *Hub) leftEdge(tx *store.Tx, l *ledger, x *store.Holder, edge string) error {
	if l.edges[x.Agent][edge] {
		delete(l.edges[x.Agent], edge)
		if err := tx.DropHolderEdge(x.Agent, edge); err != nil {
			return err
		}
	}
	for other := range l.edges[x.Agent] {
		row, err := tx.Edge(other)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err == nil && tx.Now.UnixMilli()-row.LastSeen < lostEdge.Milliseconds() {
			return nil
		}
	}
	return h.dropHolder(tx, l, x)
}

// holderChanged tells the edges, under every token of the agent.
func (h *Hub) holderChanged(tx *store.Tx, agent string) error {
	group, err := tx.TokenGroup(agent)
	if err != nil {
		return err
	}
	for _, t := range group {
		tx.Changed("credential/" + t.ID)
	}
	return nil
}

// lostEdges takes back what edges said of holders that are not heard any more. One that another hub
// hears is that hub's business.
func (h *Hub) lostEdges(ctx context.Context, now time.Time) error {
	h.mu.Lock()
	var silent []string
	for edge := range h.noted {
		if !h.edgeHeard(edge, now) {
			silent = append(silent, edge)
		}
	}
	h.mu.Unlock()
	for _, edge := range silent {
		err := h.write(ctx, func(tx *store.Tx) error {
			row, err := tx.Edge(edge)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if err == nil && h.heardSince(edge, row.LastSeen) {
				return nil
			}
			return h.reconcileHolders(tx, edge, nil, false)
		})
		if err != nil {
			return err
		}
		h.mu.Lock()
		delete(h.noted, edge)
		h.mu.Unlock()
	}
	return nil
}

// heardSince reports whether an edge was noted as seen after this hub heard it last.
func (h *Hub) heardSince(edge string, seen int64) (later bool) {
	h.presence.look(func(edges map[string]*edgePresence, _ map[replicaKey]*agentPresence) {
		later = edges[edge] != nil && seen > edges[edge].heard.UnixMilli()
	})
	return later
}
