package hub

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

// edgeCaller is an edge as its opening, or this process, proved it.
type edgeCaller struct {
	key ed25519.PublicKey
	// token is empty for the edge of this process.
	token string
}

func (e edgeCaller) id() string { return identity.KeyID(identity.KeyHash(e.key)) }

// Report takes what a machine sees.
func (h *Hub) Report(ctx context.Context, c *hublink.Caller, r *hubv1.ReportRequest) error {
	if c.Role == wirev1.Role_ROLE_EDGE {
		return h.reportEdge(ctx, edgeCaller{c.NodeKey, c.Credential.GetTokenId()}, r)
	}
	if len(r.GetAnswers()) > 0 {
		return h.answered(ctx, keyOf(c).token, r.GetAnswers())
	}
	if r.GetDiscovery() != nil {
		return h.discovered(ctx, c, r.GetDiscovery())
	}
	h.presence.agent(keyOf(c), h.cfg.Now(), func(a *agentPresence) {
		a.capabilities, a.advertised = r.GetCapabilities(), r.GetAdvertised()
		a.tunnels, a.draining, a.software, a.hostName = r.GetTunnels(), r.GetDraining(), r.GetSoftware(), c.HostName
	})
	return nil
}

func keyOf(c *hublink.Caller) replicaKey {
	return replicaKey{ownerOf(c.Credential), hex.EncodeToString(c.ReplicaID)}
}

func (h *Hub) reportEdge(ctx context.Context, e edgeCaller, r *hubv1.ReportRequest) error {
	id := e.id()
	known := h.feed.get("edge/" + id).GetEdge()
	spec := &hubv1.Edge{Address: r.GetEdge(), Draining: r.GetDraining()}
	if spec.Address == nil {
		if known == nil {
			return invalid("edge", "", "report the edge's address", "the hub does not know this edge yet")
		}
		spec.Address = known.GetAddress()
	}
	if err := h.checkEdge(spec.Address, e); err != nil {
		return err
	}
	switch {
	case known == nil || known.GetDraining() != spec.GetDraining() || !proto.Equal(known.GetAddress(), spec.GetAddress()):
		if err := h.putEdge(ctx, e, spec, r.GetSoftware()); err != nil {
			return err
		}
	case h.seenDue(id):
		if err := h.store.Write(ctx, func(tx *store.Tx) error { return tx.SeenEdge(id) }); err != nil && ctx.Err() == nil {
			h.log.Warn("time of an edge's report not stored", "edge", id, "error", err)
		}
	}
	h.presence.edge(id, h.cfg.Now(), r)
	if err := h.noteHolders(ctx, id, r); err != nil && ctx.Err() == nil {
		h.log.Warn("the holders of enrolments at an edge were not noted", "edge", id, "error", err)
	}
	h.traffic.add(id, h.cfg.Now(), r.GetTraffic())
	return nil
}

// seenDue is true once a minute for each edge.
func (h *Hub) seenDue(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Now()
	if now.Sub(h.seen[id]) < time.Minute {
		return false
	}
	h.seen[id] = now
	return true
}

func (h *Hub) checkEdge(a *wirev1.EdgeAddress, e edgeCaller) error {
	hash := identity.KeyHash(e.key)
	if !bytes.Equal(a.GetKeyHash(), hash) || a.GetId() != identity.KeyID(hash) {
		return invalid("edge.key_hash", a.GetId(), "report the key that the connection proved", "is not this edge's key")
	}
	if n := len(a.GetAddresses()); n == 0 || n > 16 {
		return invalid("edge.addresses", strconv.Itoa(n), "set --advertise to 1 to 16 addresses that reach only this edge", "is no number of addresses")
	}
	for i, s := range a.GetAddresses() {
		host, port, err := net.SplitHostPort(s)
		if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
			return invalid(fmt.Sprintf("edge.addresses[%d]", i), s, "set --advertise to HOST:PORT", "is no address")
		}
	}
	return nil
}

// putEdge stores a new or changed edge. Its addresses must reach only it: an edge that is heard
// keeps its own, a silent one with the same address has been replaced.
func (h *Hub) putEdge(ctx context.Context, e edgeCaller, spec *hubv1.Edge, software string) error {
	raw, err := proto.Marshal(spec)
	if err != nil {
		return err
	}
	id, now := e.id(), h.cfg.Now()
	var gone []string
	err = h.write(ctx, func(tx *store.Tx) error {
		gone = nil
		if err := notRemoved(tx, id); err != nil {
			return err
		}
		edges, err := tx.Edges()
		if err != nil {
			return err
		}
		if err := h.edgeRoom(tx, edges, e); err != nil {
			return err
		}
		for _, o := range edges {
			other := &hubv1.Edge{}
			if o.ID == id || proto.Unmarshal(o.Spec, other) != nil {
				continue
			}
			shared := sharedAddress(other.GetAddress(), spec.GetAddress())
			if o.TokenID != "" || e.token != "" || h.store.Shared() {
				if shared == "" {
					continue
				}
				if h.edgeHeard(o.ID, now) {
					return conflict(reason.NameConflict, "edge.addresses", shared, "edge "+o.ID, shared,
						"reaches edge "+o.ID+" already", "set --advertise to addresses that reach only this edge")
				}
			} // else: the edge of this process has a new key, the old one is gone
			if err := tx.DeleteEdge(o.ID); err != nil {
				return err
			}
			tx.Gone("edge/" + o.ID)
			gone = append(gone, o.ID)
		}
		tx.Changed("edge/" + id)
		return tx.PutEdge(&store.Edge{ID: id, TokenID: e.token, Key: e.key, Spec: raw, Software: software, LastSeen: now.UnixMilli()})
	})
	if err == nil {
		for _, o := range gone {
			h.presence.dropEdge(o)
		}
	}
	return err
}

// edgeRoom checks that the edge's token is live and has room for it.
func (h *Hub) edgeRoom(tx *store.Tx, edges []*store.Edge, e edgeCaller) error {
	if e.token == "" {
		return nil
	}
	tok, err := tx.Token(e.token)
	if err != nil {
		return err
	}
	if tok.RevokedAt != 0 {
		return reason.New(reason.TokenRevoked, reason.HopHub, "the edge token %q was revoked", tok.Name)
	}
	if tok.MaxEdges == 0 {
		return nil
	}
	n := 0
	for _, o := range edges {
		if o.TokenID == e.token && o.ID != e.id() {
			n++
		}
	}
	if n >= tok.MaxEdges {
		return reason.New(reason.TooManyReplicas, reason.HopHub, "the edge token %q serves %d edges already, its --max-edges; make another one", tok.Name, n)
	}
	return nil
}

func sharedAddress(a, b *wirev1.EdgeAddress) string {
	for _, x := range a.GetAddresses() {
		for _, y := range b.GetAddresses() {
			if x == y {
				return x
			}
		}
	}
	return ""
}

func (h *Hub) edgeHeard(id string, now time.Time) (heard bool) {
	h.presence.look(func(edges map[string]*edgePresence, _ map[replicaKey]*agentPresence) {
		heard = edges[id] != nil && edges[id].fresh(now)
	})
	return heard
}

// dropEdges removes edges that match.
func dropEdges(tx *store.Tx, match func(*store.Edge) bool) error {
	edges, err := tx.Edges()
	if err != nil {
		return err
	}
	for _, e := range edges {
		if !match(e) {
			continue
		}
		if err := tx.DeleteEdge(e.ID); err != nil {
			return err
		}
		tx.Gone("edge/" + e.ID)
	}
	return nil
}

// LocalFeed is the feed of the edge in the hub's own process. It has the methods that an edge
// wants of its feed.
type LocalFeed struct {
	h    *Hub
	edge edgeCaller
}

// LocalFeed is the feed of an edge in the hub's own process.
func (h *Hub) LocalFeed(edge ed25519.PublicKey) *LocalFeed {
	h.localEdge.Store(true)
	return &LocalFeed{h, edgeCaller{key: edge}}
}

// Watch calls apply for each message from revision from on until ctx ends or apply fails.
func (f *LocalFeed) Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error {
	return f.h.Watch(ctx, Watcher{Edge: true}, from, func(m *hubv1.WatchResponse) error {
		// The receiver may keep and change what it gets, as if it had crossed a socket.
		return apply(proto.CloneOf(m))
	})
}

// Report tells the hub what the edge sees.
func (f *LocalFeed) Report(ctx context.Context, r *hubv1.ReportRequest) error {
	return f.h.reportEdge(ctx, f.edge, proto.CloneOf(r))
}
