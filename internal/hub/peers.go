package hub

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

const (
	// shareInterval is how often a hub tells others what it heard, and reads what they did.
	shareInterval = 500 * time.Millisecond
	// peerSilence is how long another hub may miss its beat; then what it said no longer counts.
	peerSilence = 10 * time.Second
	// peerForgotten is when its row is deleted.
	peerForgotten = time.Minute
	// keepGone is for how many beats a row about something that is gone stays, for others to read.
	keepGone = 1200
	// leaderLease is held by the one hub that does what must be done once: withdrawals,
	// certificates, notices.
	leaderLease = "leader"
	// hubItems are entries of the change log for hubs alone: no watch sends them.
	hubItems = "hub/"
	// declaredItem says that replicas declared something.
	declaredItem = hubItems + "declared"
	// happenedItem says that an event was stored.
	happenedItem = hubItems + "happened"
)

// revokedItem says that sessions and links of a token are to be closed.
func revokedItem(tokenID string) string { return hubItems + "revoked/" + tokenID }

// errNotLeader is why work of the leader ends: another hub has taken over.
var errNotLeader = errors.New("another hub has taken over")

// peers is what a hub knows of the others on its database. With SQLite there are none, and this
// hub leads.
type peers struct {
	leads atomic.Bool

	mu    sync.Mutex
	self  store.HubRow
	told  bool // the database has all that this hub shares
	known map[string]*peer
}

// peer is another hub. Moved is when its beat was seen to move, on this hub's clock.
type peer struct {
	beat, read int64
	moved      time.Time
	silent     bool
}

func newPeers(cfg *Config, host string) *peers {
	id := make([]byte, 8)
	_, _ = rand.Read(id)
	return &peers{known: map[string]*peer{}, self: store.HubRow{ID: hex.EncodeToString(id), Host: host, Software: cfg.Version, StartedAt: cfg.Now().UnixMilli()}}
}

// Leads tells whether this hub does what one hub does for all.
func (h *Hub) Leads() bool { return h.peers.leads.Load() }

// leading fails unless this hub still leads. Within a write it stays so until the write is stored.
func (h *Hub) leading(tx *store.Tx) error {
	if !h.store.Shared() {
		return nil
	}
	holder, err := tx.Lease(leaderLease)
	if err == nil && holder != h.peers.self.ID {
		h.peers.leads.Store(false)
		return errNotLeader
	}
	return err
}

// exchange is one round of telling other hubs and hearing them.
func (h *Hub) exchange(ctx context.Context) error {
	p := h.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := h.tellPeers(ctx); err != nil {
		return err
	}
	holder, err := h.hearPeers(ctx)
	if err != nil {
		return err
	}
	return h.elect(ctx, holder)
}

func (h *Hub) tellPeers(ctx context.Context) error {
	p := h.peers
	for {
		rows, err := h.presence.unshared(!p.told)
		if err != nil {
			return err
		}
		complete := p.told
		p.self.Beat++
		p.self.Clock = h.cfg.Now().UnixMilli()
		for i := range rows {
			rows[i].HubID, rows[i].Beat = p.self.ID, p.self.Beat
		}
		known := false
		err = h.store.Share(ctx, func(tx *store.Tx) (err error) {
			if known, err = tx.Beat(&p.self); err != nil {
				return err
			}
			if p.self.Beat%keepGone == 0 {
				if err := tx.DropGoneReports(p.self.ID, p.self.Beat-keepGone); err != nil {
					return err
				}
			}
			return tx.PutHubReports(rows)
		})
		if err != nil {
			h.presence.again(rows)
			return err
		}
		p.told = known || !complete
		if p.told {
			return nil
		}
		// Another hub took this one for dead and deleted its row: tell everything again.
	}
}

func (h *Hub) hearPeers(ctx context.Context) (leader string, err error) {
	p, now := h.peers, h.cfg.Now()
	var hubs []store.HubRow
	news := map[string][]store.HubReport{}
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) {
		if hubs, err = tx.Hubs(); err != nil {
			return err
		}
		for _, x := range hubs {
			if k := p.known[x.ID]; x.ID == p.self.ID || k != nil && k.beat == x.Beat {
				continue
			}
			from := int64(0)
			if k := p.known[x.ID]; k != nil {
				from = k.read
			}
			if news[x.ID], err = tx.HubReports(x.ID, from); err != nil {
				return err
			}
		}
		leader, err = tx.Lease(leaderLease)
		return err
	})
	if err != nil {
		return "", err
	}
	there := map[string]bool{}
	for _, x := range hubs {
		there[x.ID] = true
		if x.ID != p.self.ID {
			h.heardPeer(x, news[x.ID], now)
		}
	}
	for id, k := range p.known {
		switch {
		case !there[id]:
			delete(p.known, id)
			h.presence.silent(id)
		case !k.silent && now.Sub(k.moved) > peerSilence:
			k.silent, k.read = true, 0
			h.presence.silent(id)
			h.log.Warn("another hub on this database is silent; going on without what it heard", "hub", id)
		}
	}
	return leader, nil
}

func (h *Hub) heardPeer(x store.HubRow, rows []store.HubReport, now time.Time) {
	p := h.peers
	k := p.known[x.ID]
	switch {
	case k == nil:
		k = &peer{moved: now}
		p.known[x.ID] = k
		h.log.Info("another hub shares this database", "hub", x.ID, "host", x.Host, "version", x.Software)
	case k.beat == x.Beat:
		return
	default:
		k.moved, k.silent = now, false
	}
	k.beat, k.read = x.Beat, x.Beat
	h.presence.told(x.ID, rows, now.Sub(time.UnixMilli(x.Clock)))
}

// elect takes the leader's lease when nobody alive has it.
func (h *Hub) elect(ctx context.Context, holder string) error {
	p := h.peers
	dead := func(id string) bool { return id == "" || id != p.self.ID && (p.known[id] == nil || p.known[id].silent) }
	if !dead(holder) {
		p.leads.Store(holder == p.self.ID)
		return h.forgetPeers(ctx)
	}
	p.leads.Store(false)
	won := false
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		now, err := tx.Lease(leaderLease)
		if err != nil || now != holder {
			return err // somebody was faster
		}
		won = true
		return tx.SetLease(leaderLease, p.self.ID)
	})
	if err == nil && won {
		h.reap.forget()
		p.leads.Store(true)
		h.CertificatesChanged()
		h.log.Info("this hub leads: it withdraws, certifies and notifies for all hubs of its database")
	}
	return err
}

// forgetPeers has the leader delete rows of hubs that ended without a word.
func (h *Hub) forgetPeers(ctx context.Context) error {
	if !h.peers.leads.Load() {
		return nil
	}
	for id, k := range h.peers.known {
		if k.silent && h.cfg.Now().Sub(k.moved) > peerForgotten {
			if err := h.store.Share(ctx, func(tx *store.Tx) error { return tx.DropHub(id) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave tells other hubs that this one ends.
func (h *Hub) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	h.peers.leads.Store(false)
	if err := h.store.Share(ctx, func(tx *store.Tx) error { return tx.DropHub(h.peers.self.ID) }); err != nil {
		h.log.Warn("other hubs were not told of the end of this one; they notice by themselves", "error", err)
	}
}

// tellRevoked has every hub close the sessions and links of a token.
func (h *Hub) tellRevoked(tx *store.Tx, tokenID string) {
	if h.store.Shared() {
		tx.Changed(revokedItem(tokenID))
	}
}

// note acts on an entry of the change log, whichever hub made it; r is what is there now.
func (h *Hub) note(ctx context.Context, item string, r *hubv1.Resource) {
	id, edge := strings.CutPrefix(item, "edge/")
	switch {
	case edge && r == nil:
		h.presence.dropEdge(id)
	case item == resealedItem:
		h.resealed(ctx)
	case item == happenedItem:
		h.happened.raise()
	case item == declaredItem:
		h.reap.invalidate()
	case strings.HasPrefix(item, revokedItem("")):
		h.cut(strings.TrimPrefix(item, revokedItem("")))
	case strings.HasPrefix(item, "tunnel/"):
		h.reap.invalidate()
	}
}
