package edge

import (
	"context"
	"encoding/hex"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// successorWait is how long visitors wait for the successor of a holder that went: an enrolled agent
	// that is started again alone is back within seconds. maxWaiting bounds how many do.
	successorWait = 10 * time.Second
	maxWaiting    = 4096
	// returnTime is what the holder has to come back to an edge that was started again, before a
	// standby may have its enrolment while the hub is away.
	returnTime = 10 * time.Second
)

// enrolments decides which process holds an enrolment here. An edge goes by its own sessions; the
// hub's word counts for holders that have their sessions at other edges.
type enrolments struct {
	edge    *Edge
	started time.Time

	mu sync.Mutex
	// admitting is the replica whose session is being made, by agent.
	admitting map[string]string
	// left is the replica whose sessions here ended last, by agent.
	left map[string]departure
	// overruled is the hub's decision that this edge knew better than, by agent.
	overruled map[string]uint64
	// changed is closed when a holder may have gone.
	changed chan struct{}
}

func newEnrolments(e *Edge) *enrolments {
	return &enrolments{
		edge: e, started: e.cfg.Now(), admitting: map[string]string{}, left: map[string]departure{}, overruled: map[string]uint64{},
		changed: make(chan struct{}),
	}
}

// departure is a holder that went.
type departure struct {
	replica string
	at      time.Time
}

// owner is the agent or invite that a token is of, whichever of its tokens it is.
func (v *view) owner(tokenID string) string {
	if m := v.credentials[tokenID].GetMemberOf(); m != "" {
		return m
	}
	return tokenID
}

// exclusive reports whether a token is an enrolment, which one process holds.
func exclusive(c *hubv1.Credential) bool { return c.GetKind() == string(identity.KindAgent) }

// wake has waiting openings look again.
func (n *enrolments) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.changed)
	n.changed = make(chan struct{})
}

// gone notes that a replica has no session here any more, or gives its enrolment up.
func (n *enrolments) gone(r *link.Replica) {
	v := n.edge.view.Load()
	if !exclusive(v.credentials[r.TokenID()]) {
		return
	}
	n.mu.Lock()
	n.left[v.owner(r.TokenID())] = departure{r.ID(), n.edge.cfg.Now()}
	n.mu.Unlock()
	n.wake()
}

// holder is who has an enrolment that another process asks for.
type holder struct {
	host  string
	since time.Time
}

// admit lets the process of an opening have the enrolment, or says who has it. It waits for a holder
// that may be gone.
func (n *enrolments) admit(ctx context.Context, o *wirev1.Opening) (done func(), refusal *reason.Error) {
	token, self := hex.EncodeToString(o.GetTokenId()), hex.EncodeToString(o.GetReplicaId())
	v := n.edge.view.Load()
	if !exclusive(v.credentials[token]) {
		return func() {}, nil
	}
	agent := v.owner(token)
	limit := time.NewTimer(n.edge.cfg.StandbyWait)
	defer limit.Stop()
	for {
		n.mu.Lock()
		changed := n.changed
		has := n.heldBy(agent, token, self)
		if has == nil {
			n.admitting[agent] = self
			n.mu.Unlock()
			return func() { n.admitted(agent, self) }, nil
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			return nil, has.refusal()
		case <-ctx.Done():
			return nil, reason.New(reason.Draining, reason.HopEdge, "this edge shuts down; connect to another one")
		}
	}
}

func (n *enrolments) admitted(agent, self string) {
	n.mu.Lock()
	if n.admitting[agent] == self {
		delete(n.admitting, agent)
	}
	n.mu.Unlock()
	n.wake()
}

func (h *holder) refusal() *reason.Error {
	since := ""
	if !h.since.IsZero() {
		since = " since " + h.since.UTC().Format(time.RFC3339)
	}
	return reason.New(reason.Standby, reason.HopEdge, "the enrolment is held by a process on %q%s; this one waits as standby and takes over when that one goes", h.host, since)
}

// heldBy is who has the enrolment of an agent instead of self; nil if self may have it. n.mu is held.
func (n *enrolments) heldBy(agent, token, self string) *holder {
	v := n.edge.view.Load()
	c := v.credentials[token]
	var other *holder
	mine := false
	for _, r := range n.edge.acceptor.Replicas() {
		if v.owner(r.TokenID()) != agent || !r.Available() {
			continue // one that drains has given it up
		}
		if r.ID() == self {
			mine = true
			continue
		}
		other = &holder{host: r.HostName()}
		for _, s := range r.Sessions() {
			if other.since.IsZero() || s.Since.Before(other.since) {
				other.since = s.Since
			}
		}
	}
	switch by, taken := n.admitting[agent]; {
	case mine:
		return nil
	case other != nil:
		return other
	case taken && by != self:
		return &holder{host: "another host"}
	}
	return n.heldElsewhere(v, agent, self, c)
}

// heldElsewhere goes by the hub's word.
func (n *enrolments) heldElsewhere(v *view, agent, self string, c *hubv1.Credential) *holder {
	replica := c.GetHolderReplica()
	if replica == "" || replica == self {
		return nil
	}
	has := &holder{host: c.GetHolderHost(), since: c.GetHolderSince().AsTime()}
	wentHere := n.left[agent].replica == replica
	switch {
	case wentHere && (!n.edge.Connected() || n.alone(v)):
	case !wentHere && !n.edge.Connected() && n.edge.cfg.Now().Sub(n.started) >= returnTime:
	default:
		return has
	}
	n.overruled[agent] = c.GetHolderTerm()
	return nil
}

// alone reports whether there is no other edge at which a holder could be.
func (n *enrolments) alone(v *view) bool {
	for id := range v.edges {
		if id != n.edge.cfg.Key.ID() {
			return false
		}
	}
	return true
}

// decided ends the sessions of processes that the hub has decided against: two edges, apart for a
// while, admitted one each.
func (n *enrolments) decided() {
	v := n.edge.view.Load()
	n.edge.acceptor.Dismiss(func(r *link.Replica) *reason.Error {
		c := v.credentials[r.TokenID()]
		if !exclusive(c) || c.GetHolderReplica() == "" || c.GetHolderReplica() == r.ID() || !r.Available() {
			return nil
		}
		n.mu.Lock()
		known := n.overruled[v.owner(r.TokenID())]
		n.mu.Unlock()
		if c.GetHolderTerm() <= known {
			return nil
		}
		return (&holder{host: c.GetHolderHost(), since: c.GetHolderSince().AsTime()}).refusal()
	})
	n.wake()
}

// successor is until when a successor of an agent's holder is expected; the zero time: none is.
func (n *enrolments) successor(v *view, tokens []string) (until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range tokens {
		if exclusive(v.credentials[id]) && n.edge.admitted(id) == nil {
			if d, ok := n.left[id]; ok && d.at.Add(successorWait).After(until) {
				until = d.at.Add(successorWait)
			}
		}
	}
	if !until.After(n.edge.cfg.Now()) {
		return time.Time{}
	}
	return until
}
