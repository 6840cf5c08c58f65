// Package freeport finds free ports for tests that have to name one before it is bound.
package freeport

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// One returns a port that is free for TCP and UDP on loopback. It is taken from below the
// kernel's range for outgoing connections, so that nothing else is given it meanwhile.
func One(t testing.TB) int { return Run(t, 1) }

// Run returns the first of n adjoining free ports.
func Run(t testing.TB, n int) int {
	t.Helper()
search:
	for range 200 {
		first := 10000 + rand.IntN(20000)
		for p := first; p < first+n; p++ {
			if !free(p) {
				continue search
			}
		}
		return first
	}
	t.Fatal("no free port found")
	return 0
}

func free(port int) bool {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	_ = l.Close()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
