package edge

import (
	"errors"
	"maps"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/edge/route"
)

// view is what the edge knows at one revision. It is immutable; maps that a change does not touch
// are shared with the view before.
type view struct {
	// complete is false until a first whole snapshot.
	complete     bool
	revision     uint64
	table        *route.Table
	credentials  map[string]*hubv1.Credential
	edges        map[string]*hubv1.Edge
	certificates map[string]*certificate
	challenges   map[string]*hubv1.Challenge // by token (HTTP-01), or name (TLS-ALPN-01)
	forwarders   map[string]*hubv1.Forwarder
	settings     *hubv1.Settings
}

func emptyView() *view {
	return &view{
		table: route.Empty(), credentials: map[string]*hubv1.Credential{}, edges: map[string]*hubv1.Edge{},
		certificates: map[string]*certificate{}, challenges: map[string]*hubv1.Challenge{}, settings: &hubv1.Settings{}, forwarders: map[string]*hubv1.Forwarder{},
	}
}

// change is the difference between two views, for those who must act on it.
type change struct {
	// tunnels that were added, changed or removed, by id: what they were and what they are.
	tunnels            map[string]tunnelChange
	credentials, edges bool
	forwarders         bool
}

type tunnelChange struct{ old, now *hubv1.Tunnel }

// book is all resources of the feed by key, and what is known of a snapshot under way.
type book struct {
	items   map[string]*hubv1.Resource
	pending map[string]*hubv1.Resource
}

var errMidSnapshot = errors.New("the hub sent a delta amid a snapshot")

// take adds one message. Of a snapshot nothing counts until it is complete; then only what
// differs does.
func (b *book) take(m *hubv1.WatchResponse) (puts []*hubv1.Resource, deletes []string, complete bool, err error) {
	if !m.GetSnapshot() {
		if b.pending != nil {
			return nil, nil, false, errMidSnapshot
		}
		return m.GetPuts(), m.GetDeletes(), true, nil
	}
	if b.pending == nil {
		b.pending = map[string]*hubv1.Resource{}
	}
	for _, r := range m.GetPuts() {
		if k := r.Key(); k != "" {
			b.pending[k] = r
		}
	}
	if !m.GetComplete() {
		return nil, nil, false, nil
	}
	for k, r := range b.pending {
		if !proto.Equal(b.items[k], r) {
			puts = append(puts, r)
		}
	}
	for k := range b.items {
		if b.pending[k] == nil {
			deletes = append(deletes, k)
		}
	}
	b.pending = nil
	return puts, deletes, true, nil
}

// next makes the view after puts and deletes, and notes them in the book.
func (b *book) next(v *view, revision uint64, puts []*hubv1.Resource, deletes []string) (*view, *change) {
	w := *v
	n := &viewBuilder{view: &w, change: &change{tunnels: map[string]tunnelChange{}}, copied: map[any]bool{}}
	w.complete, w.revision = true, revision
	for _, k := range deletes {
		if old := b.items[k]; old != nil {
			n.remove(old)
			delete(b.items, k)
		}
	}
	for _, r := range puts {
		k := r.Key()
		if k == "" {
			continue // a newer hub's, of a kind that this version does not serve with
		}
		if proto.Equal(b.items[k], r) {
			continue
		}
		n.put(b.items[k], r)
		b.items[k] = r
	}
	w.table = v.table.Apply(n.entries, n.gone)
	return &w, n.change
}

// viewBuilder copies the maps of a view when it first writes to them.
type viewBuilder struct {
	*view
	*change
	copied  map[any]bool
	entries []*route.Entry
	gone    []string
}

func writable[V any](n *viewBuilder, m *map[string]V) map[string]V {
	if !n.copied[m] {
		*m = maps.Clone(*m)
		n.copied[m] = true
	}
	return *m
}

func (n *viewBuilder) put(old, r *hubv1.Resource) {
	switch i := r.GetItem().(type) {
	case *hubv1.Resource_Tunnel:
		was := old.GetTunnel()
		if was.GetDisabled() {
			was = nil
		}
		if i.Tunnel.GetDisabled() {
			// As if it were not there.
			n.gone = append(n.gone, i.Tunnel.GetId())
			n.change.tunnels[i.Tunnel.GetId()] = tunnelChange{old: was}
			return
		}
		n.entries = append(n.entries, route.NewEntry(i.Tunnel))
		n.change.tunnels[i.Tunnel.GetId()] = tunnelChange{old: was, now: i.Tunnel}
	case *hubv1.Resource_Credential:
		writable(n, &n.view.credentials)[i.Credential.GetTokenId()] = i.Credential
		n.change.credentials = true
	case *hubv1.Resource_Edge:
		writable(n, &n.view.edges)[i.Edge.GetAddress().GetId()] = i.Edge
		n.change.edges = true
	case *hubv1.Resource_Certificate:
		writable(n, &n.view.certificates)[i.Certificate.GetName()] = &certificate{res: i.Certificate}
	case *hubv1.Resource_Challenge:
		if old != nil {
			n.remove(old)
		}
		writable(n, &n.view.challenges)[challengeKey(i.Challenge)] = i.Challenge
	case *hubv1.Resource_Forwarder:
		writable(n, &n.view.forwarders)[i.Forwarder.GetId()] = i.Forwarder
		n.change.forwarders = true
	case *hubv1.Resource_Settings:
		n.view.settings = i.Settings
	}
}

func (n *viewBuilder) remove(r *hubv1.Resource) {
	switch i := r.GetItem().(type) {
	case *hubv1.Resource_Tunnel:
		n.gone = append(n.gone, i.Tunnel.GetId())
		n.change.tunnels[i.Tunnel.GetId()] = tunnelChange{old: i.Tunnel}
	case *hubv1.Resource_Credential:
		delete(writable(n, &n.view.credentials), i.Credential.GetTokenId())
		n.change.credentials = true
	case *hubv1.Resource_Edge:
		delete(writable(n, &n.view.edges), i.Edge.GetAddress().GetId())
		n.change.edges = true
	case *hubv1.Resource_Certificate:
		delete(writable(n, &n.view.certificates), i.Certificate.GetName())
	case *hubv1.Resource_Challenge:
		delete(writable(n, &n.view.challenges), challengeKey(i.Challenge))
	case *hubv1.Resource_Forwarder:
		delete(writable(n, &n.view.forwarders), i.Forwarder.GetId())
		n.change.forwarders = true
	case *hubv1.Resource_Settings:
		n.view.settings = &hubv1.Settings{}
	}
}
