// Package route holds the edge's table of tunnels: which one answers on an address, a port and a
// host. A table is immutable; a change makes a new one that shares almost everything with the
// old one, so that readers need no lock and a running request keeps the table it began with.
package route

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// Entry is a tunnel as the table holds it.
type Entry struct {
	Tunnel *hubv1.Tunnel

	pattern hostname.Pattern
	address netip.Addr // the zero value: all
	once    sync.Once
	rules   *Rules
}

// NewEntry returns an entry of t.
func NewEntry(t *hubv1.Tunnel) *Entry {
	e := &Entry{Tunnel: t}
	e.address, _ = netip.ParseAddr(t.GetAddress())
	e.address = e.address.Unmap()
	if byHost(t) {
		// A name that does not parse matches nothing: the hub never sends one.
		e.pattern, _ = hostname.Parse(t.GetHostname())
	}
	return e
}

// Rules are the tunnel's rules, compiled when they are first asked for.
func (e *Entry) Rules() *Rules {
	e.once.Do(func() { e.rules = Compile(e.Tunnel) })
	return e.rules
}

func byHost(t *hubv1.Tunnel) bool {
	return t.GetKind() == wirev1.Kind_KIND_HTTP || t.GetKind() == wirev1.Kind_KIND_TLS
}

// hostKey is a pattern without its wildcard, and how deep that reaches.
type hostKey struct {
	name  string
	depth hostname.Depth
}

// Table is an immutable set of entries.
type Table struct {
	ids   *shards[string, *Entry]
	hosts *shards[hostKey, []*Entry]
	ports *shards[uint16, []*Entry]
	// wild counts hosts of each depth, so that a table without wildcards never looks for any.
	wild [hostname.Many + 1]int
}

// Empty is the table without entries.
func Empty() *Table {
	return &Table{ids: newShards[string, *Entry](), hosts: newShards[hostKey, []*Entry](), ports: newShards[uint16, []*Entry]()}
}

// Len is the number of entries.
func (t *Table) Len() int { return t.ids.n }

// Get returns the entry of a tunnel id, or nil.
func (t *Table) Get(id string) *Entry { return t.ids.get(id) }

// All calls yield for every entry, in no order, until it returns false.
func (t *Table) All(yield func(*Entry) bool) { t.ids.all(yield) }

// Host returns the most specific entry of kind http or tls for a normalized host name on an edge
// address: exact names first, then one-label wildcards, then the longest **. one. An entry bound
// to that very address (or port) wins over the same name on all of them.
func (t *Table) Host(local netip.AddrPort, host string) *Entry {
	if e := t.host(local, host, hostKey{host, hostname.Exact}); e != nil {
		return e
	}
	i := strings.IndexByte(host, '.')
	if i < 0 {
		return nil
	}
	if t.wild[hostname.One] > 0 {
		if e := t.host(local, host, hostKey{host[i+1:], hostname.One}); e != nil {
			return e
		}
	}
	if t.wild[hostname.Many] == 0 {
		return nil
	}
	for rest := host[i+1:]; ; rest = rest[i+1:] {
		if e := t.host(local, host, hostKey{rest, hostname.Many}); e != nil {
			return e
		}
		if i = strings.IndexByte(rest, '.'); i < 0 {
			return nil
		}
	}
}

func (t *Table) host(local netip.AddrPort, host string, k hostKey) *Entry {
	e := pick(t.hosts.get(k), local, false)
	// The rule for claiming has the last word on what matches.
	if e == nil || !e.pattern.Match(host) {
		return nil
	}
	return e
}

// Port returns the entry of kind tcp on an edge address, or nil.
func (t *Table) Port(local netip.AddrPort) *Entry {
	return pick(t.ports.get(local.Port()), local, true)
}

// pick returns the first of es, the most specific first, that is there on local. An entry of a
// name has a port only where it is not the port of all names.
func pick(es []*Entry, local netip.AddrPort, byPort bool) *Entry {
	for _, e := range es {
		if e.address.IsValid() && e.address != local.Addr().Unmap() {
			continue
		}
		if p := e.Tunnel.GetPort(); !byPort && p != 0 && p != uint32(local.Port()) {
			continue
		}
		return e
	}
	return nil
}

// order puts entries of one key in the one order that does not depend on how they came: bound to
// an address first, then to a port, then the oldest.
func order(a, b *Entry) int {
	return cmp.Or(
		-a.address.Compare(b.address),
		-cmp.Compare(a.Tunnel.GetPort(), b.Tunnel.GetPort()),
		a.Tunnel.GetCreatedAt().AsTime().Compare(b.Tunnel.GetCreatedAt().AsTime()),
		strings.Compare(a.Tunnel.GetId(), b.Tunnel.GetId()),
	)
}

// Apply returns a table with puts added or replaced (by tunnel id) and deletes (ids) removed.
func (t *Table) Apply(puts []*Entry, deletes []string) *Table {
	n := &Table{ids: t.ids.clone(), hosts: t.hosts.clone(), ports: t.ports.clone(), wild: t.wild}
	for _, id := range deletes {
		n.remove(id)
	}
	for _, e := range puts {
		n.remove(e.Tunnel.GetId())
		n.add(e)
	}
	n.ids.seal()
	n.hosts.seal()
	n.ports.seal()
	return n
}

func (t *Table) remove(id string) {
	e := t.ids.get(id)
	if e == nil {
		return
	}
	t.ids.delete(id)
	if e.pattern.Name != "" {
		k := hostKey{e.pattern.Name, e.pattern.Depth}
		t.wild[k.depth]--
		without(t.hosts, k, e)
	}
	if e.Tunnel.GetKind() == wirev1.Kind_KIND_TCP {
		without(t.ports, uint16(e.Tunnel.GetPort()), e)
	}
}

func (t *Table) add(e *Entry) {
	t.ids.set(e.Tunnel.GetId(), e)
	if e.pattern.Name != "" {
		k := hostKey{e.pattern.Name, e.pattern.Depth}
		t.wild[k.depth]++
		with(t.hosts, k, e)
	}
	if e.Tunnel.GetKind() == wirev1.Kind_KIND_TCP {
		with(t.ports, uint16(e.Tunnel.GetPort()), e)
	}
}

// with and without never change a slice that an older table may hold.
func with[K comparable](s *shards[K, []*Entry], k K, e *Entry) {
	es := append(slices.Clip(slices.Clone(s.get(k))), e)
	slices.SortFunc(es, order)
	s.set(k, es)
}

func without[K comparable](s *shards[K, []*Entry], k K, e *Entry) {
	es := slices.DeleteFunc(slices.Clone(s.get(k)), func(o *Entry) bool { return o == e })
	if len(es) == 0 {
		s.delete(k)
		return
	}
	s.set(k, es)
}
