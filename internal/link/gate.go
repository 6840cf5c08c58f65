package link

import (
	"net/netip"
	"sync"
)

const (
	// maxUnproven and maxUnprovenPerAddress cap connections before authentication. An address
	// may hold many agents, and each dials a few lanes at once.
	maxUnproven           = 4096
	maxUnprovenPerAddress = 256
)

// gate counts connections that have not proven themselves.
type gate struct {
	mu    sync.Mutex
	total int
	by    map[netip.Prefix]int
}

// enter counts a connection from addr (IPv6 by /64); leave must be called once.
func (g *gate) enter(addr netip.Addr) (leave func(), ok bool) {
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	key, _ := addr.Prefix(bits)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= maxUnproven || g.by[key] >= maxUnprovenPerAddress {
		return nil, false
	}
	if g.by == nil {
		g.by = map[netip.Prefix]int{}
	}
	g.total++
	g.by[key]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.total--
		if g.by[key]--; g.by[key] == 0 {
			delete(g.by, key)
		}
	}, true
}
