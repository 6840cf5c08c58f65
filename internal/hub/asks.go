package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// maxAsks bounds what may be asked of one replica at a time.
	maxAsks = 16
	// askPoll is how often a hub that shares its database looks for questions that other hubs
	// could not pass on, and for their answers.
	askPoll = 300 * time.Millisecond
)

// asks brings questions to running agents: with the watch that a replica has here, or through the
// database to the hub that has it. Each question has an id, by which its answer is known.
type asks struct {
	mu sync.Mutex
	// watches are those of agents at this hub.
	watches map[replicaKey][]*askWatch
	waiting map[string]*waiting
	// elsewhere is true if other hubs use the same database, which agents may watch at.
	elsewhere bool
}

// askWatch is one watch of a replica; what it gets is sent with the watch.
type askWatch struct{ ch chan *hubv1.Ask }

// waiting is a question whose answer is awaited here.
type waiting struct {
	key replicaKey
	// answer has room for the first one.
	answer chan *hubv1.Answer
}

func newAsks(databaseURL string) *asks {
	return &asks{
		watches: map[replicaKey][]*askWatch{}, waiting: map[string]*waiting{},
		// A file of this host is nobody else's.
		elsewhere: !strings.HasPrefix(databaseURL, "sqlite:"),
	}
}

// listen is for a watch: what is asked of the replica arrives at the channel until end is called.
func (a *asks) listen(k replicaKey) (_ <-chan *hubv1.Ask, end func()) {
	w := &askWatch{ch: make(chan *hubv1.Ask, maxAsks)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches[k] = append(a.watches[k], w)
	return w.ch, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.watches[k] = slices.DeleteFunc(a.watches[k], func(x *askWatch) bool { return x == w })
		if len(a.watches[k]) == 0 {
			delete(a.watches, k)
		}
	}
}

// pass gives a question to the newest watch of a replica; the others may be of connections that
// are gone. It reports whether there was one with room.
func (a *asks) pass(k replicaKey, q *hubv1.Ask) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range slices.Backward(a.watches[k]) {
		select {
		case w.ch <- q:
			return true
		default:
		}
	}
	return false
}

// here lists the replicas of a token that watch here; of one replica if that is named.
func (a *asks) here(token, replica string) (out []replicaKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.watches {
		if k.token == token && (replica == "" || k.replica == replica) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(x, y replicaKey) int { return cmp.Compare(x.replica, y.replica) })
	return out
}

// expect notes that an answer is awaited here. It fails when the replica has enough to answer.
func (a *asks) expect(id string, k replicaKey) (*waiting, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, w := range a.waiting {
		if w.key == k {
			n++
		}
	}
	if n >= maxAsks {
		return nil, reason.New(reason.RateLimited, reason.HopHub, "the agent has %d questions to answer already; try again when they are done", n)
	}
	w := &waiting{key: k, answer: make(chan *hubv1.Answer, 1)}
	a.waiting[id] = w
	return w, nil
}

func (a *asks) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// deliver gives an answer to who waits for it here. Nobody answers for another agent.
func (a *asks) deliver(token string, x *hubv1.Answer) bool {
	a.mu.Lock()
	w := a.waiting[x.GetAskId()]
	a.mu.Unlock()
	if w == nil {
		return false
	}
	if w.key.token == token {
		select {
		case w.answer <- x:
		default:
		}
	}
	return true
}

// ask asks a running replica of an agent and waits for its answer, at most for limit. With replica
// empty it is the one that holds the enrolment, or any.
func (h *Hub) ask(ctx context.Context, agent *hubv1.Agent, replica string, limit time.Duration, q *hubv1.Ask) (*hubv1.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q.Id, q.Deadline = newAskID(), timestamppb.New(h.cfg.Now().Add(limit))
	if replica == "" {
		replica = agent.GetHolderReplica()
	}
	target, local := replicaKey{agent.GetTokenId(), replica}, false
	if keys := h.asks.here(agent.GetTokenId(), replica); len(keys) > 0 {
		target, local = keys[0], true
	}
	if !local && (!h.asks.elsewhere || agent.GetState() == "offline") {
		return nil, notConnected(agent)
	}
	w, err := h.asks.expect(q.GetId(), target)
	if err != nil {
		return nil, err
	}
	defer h.asks.forget(q.GetId())
	switch {
	case local && h.asks.pass(target, q):
	case h.asks.elsewhere:
		if err := h.askElsewhere(ctx, target, q); err != nil {
			return nil, err
		}
		defer h.dropAsk(ctx, q.GetId())
	default:
		return nil, notConnected(agent)
	}
	select {
	case x := <-w.answer:
		if x.GetCode() != "" {
			return nil, &Problem{Code: reason.Code(x.GetCode()), Text: "the agent says: " + x.GetDetail()}
		}
		return x, nil
	case <-h.stopping:
		return nil, reason.New(reason.Draining, reason.HopHub, "the hub is stopping")
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), context.Canceled) {
			return nil, ctx.Err()
		}
		return nil, &Problem{Code: reason.NoAgent, Field: "agent", Value: agent.GetName(), Text: fmt.Sprintf("did not answer within %v", limit),
			Remedy: "is it connected to the hub? `adit agents get` shows it"}
	}
}

func newAskID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func notConnected(agent *hubv1.Agent) *Problem {
	return &Problem{Code: reason.NoAgent, Field: "agent", Value: agent.GetName(), Text: "is not connected to the hub now",
		Remedy: "start it, or see its log for why it cannot connect"}
}

// answered takes what an agent says to questions.
func (h *Hub) answered(ctx context.Context, token string, answers []*hubv1.Answer) error {
	for _, x := range answers {
		if h.asks.deliver(token, x) || !h.asks.elsewhere {
			continue
		}
		raw, err := proto.Marshal(x)
		if err != nil {
			return err
		}
		if err := h.store.Write(ctx, func(tx *store.Tx) error { return tx.PutAnswer(x.GetAskId(), token, raw) }); err != nil {
			return err
		}
	}
	return nil
}

// askElsewhere leaves a question in the database, for the hub that has the replica's watch.
func (h *Hub) askElsewhere(ctx context.Context, k replicaKey, q *hubv1.Ask) error {
	raw, err := proto.Marshal(q)
	if err != nil {
		return err
	}
	return h.store.Write(ctx, func(tx *store.Tx) error {
		return tx.PutAsk(&store.Ask{ID: q.GetId(), TokenID: k.token, ReplicaID: k.replica, Ask: raw, Deadline: q.GetDeadline().AsTime().UnixMilli()})
	})
}

func (h *Hub) dropAsk(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := h.store.Write(ctx, func(tx *store.Tx) error { return tx.DropAsk(id) }); err != nil {
		h.log.Debug("a question to an agent was not removed; it is when the next one is", "error", err)
	}
}

// exchangeAsks passes on what other hubs ask, and takes the answers that they got. It runs only
// where hubs share a database.
func (h *Hub) exchangeAsks(ctx context.Context) error {
	h.asks.mu.Lock()
	watched := len(h.asks.watches) > 0
	pending := make([]string, 0, len(h.asks.waiting))
	for id := range h.asks.waiting {
		pending = append(pending, id)
	}
	h.asks.mu.Unlock()
	if !watched && len(pending) == 0 {
		return nil
	}
	var open []store.Ask
	answers := map[string][]byte{}
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if watched {
			if open, err = tx.OpenAsks(); err != nil {
				return err
			}
		}
		for _, id := range pending {
			if answers[id], err = tx.Answer(id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, raw := range answers {
		x := &hubv1.Answer{}
		if raw == nil || proto.Unmarshal(raw, x) != nil {
			continue
		}
		h.asks.mu.Lock()
		w := h.asks.waiting[x.GetAskId()]
		h.asks.mu.Unlock()
		if w != nil {
			h.asks.deliver(w.key.token, x)
		}
	}
	for _, a := range open {
		if err := h.passOn(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// passOn gives a question of another hub to a replica that watches here, if there is one.
func (h *Hub) passOn(ctx context.Context, a store.Ask) error {
	keys := h.asks.here(a.TokenID, a.ReplicaID)
	q := &hubv1.Ask{}
	if len(keys) == 0 {
		return nil
	}
	if err := proto.Unmarshal(a.Ask, q); err != nil {
		return fmt.Errorf("question %s: %w", a.ID, err)
	}
	mine := false
	err := h.store.Write(ctx, func(tx *store.Tx) (err error) { mine, err = tx.TakeAsk(a.ID); return err })
	if err == nil && mine {
		h.asks.pass(keys[0], q)
	}
	return err
}
