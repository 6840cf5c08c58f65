// Package route holds the edge's table of tunnels: which one answers on an address, a port and a
// host. A table is immutable; a change makes a new one that shares almost everything with the
// old one, so that readers need no lock and a running request keeps the table it began with.
package route

import (
	"net/netip"
	"sync"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Entry is a tunnel as the table holds it.
type Entry struct {
	Tunnel *hubv1.Tunnel
	once   sync.Once
	rules  *Rules
}

// NewEntry returns an entry of t.
func NewEntry(t *hubv1.Tunnel) *Entry { return &Entry{Tunnel: t} }

// Rules are the tunnel's rules, compiled when they are first asked for.
func (e *Entry) Rules() *Rules {
	e.once.Do(func() { e.rules = Compile(e.Tunnel) })
	return e.rules
}

// Table is an immutable set of entries.
type Table struct{}

// Empty is the table without entries.
func Empty() *Table { panic("unbuilt") }

// Apply returns a table with puts added or replaced (by tunnel id) and deletes (ids) removed.
func (t *Table) Apply(puts []*Entry, deletes []string) *Table { panic("unbuilt") }

// Len is the number of entries.
func (t *Table) Len() int { panic("unbuilt") }

// Get returns the entry of a tunnel id, or nil.
func (t *Table) Get(id string) *Entry { panic("unbuilt") }

// Host returns the most specific entry of kind http or tls for a normalized host name on an edge
// address: exact names first, then one-label wildcards, then the longest **. one. An entry bound
// to that very address wins over the same name on all addresses.
func (t *Table) Host(local netip.AddrPort, host string) *Entry { panic("unbuilt") }

// Port returns the entry of kind tcp or udp on an edge address, or nil.
func (t *Table) Port(kind wirev1.Kind, local netip.AddrPort) *Entry { panic("unbuilt") }
