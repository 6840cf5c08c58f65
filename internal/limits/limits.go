// Package limits counts what strangers hold (connections, flows) and refuses above a cap.
package limits

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Counter counts holders by key, at most Max for each.
type Counter[K comparable] struct {
	max int
	mu  sync.Mutex
	n   map[K]int
}

// NewCounter returns a counter with max holders per key; max <= 0 means no cap.
func NewCounter[K comparable](max int) *Counter[K] {
	return &Counter[K]{max: max, n: map[K]int{}}
}

// Acquire counts one more holder of k, or reports false at the cap.
func (c *Counter[K]) Acquire(k K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n[k]
	if c.max > 0 && n >= c.max {
		return false
	}
	c.n[k] = n + 1
	return true
}

// Release undoes one Acquire of k.
func (c *Counter[K]) Release(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.n[k]; n > 1 {
		c.n[k] = n - 1
	} else {
		delete(c.n, k)
	}
}

// Count is the number of holders of k.
func (c *Counter[K]) Count(k K) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[k]
}

// Source is what counts as one visitor address: an IPv4 address, or the /64 of an IPv6 address.
func Source(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a
}

// Conns caps open visitor connections in total and per visitor address.
type Conns struct {
	max   int64
	total atomic.Int64
	addr  *Counter[netip.Addr]
}

// NewConns returns caps; 0 means none.
func NewConns(total, perAddress int) *Conns {
	return &Conns{max: int64(total), addr: NewCounter[netip.Addr](perAddress)}
}

// AcquireTotal counts a connection whose visitor is not known yet.
func (c *Conns) AcquireTotal() bool {
	if n := c.total.Add(1); c.max > 0 && n > c.max {
		c.total.Add(-1)
		return false
	}
	return true
}

// ReleaseTotal undoes AcquireTotal.
func (c *Conns) ReleaseTotal() { c.total.Add(-1) }

// AcquireAddress counts a connection of a.
func (c *Conns) AcquireAddress(a netip.Addr) bool { return c.addr.Acquire(Source(a)) }

// ReleaseAddress undoes AcquireAddress.
func (c *Conns) ReleaseAddress(a netip.Addr) { c.addr.Release(Source(a)) }

// Total is the number of open visitor connections.
func (c *Conns) Total() int { return int(c.total.Load()) }
