package stack

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"
)

// Eventually tries until the condition holds, and fails with its last error at the limit.
func Eventually(t testing.TB, limit time.Duration, condition func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	pause := 10 * time.Millisecond
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, 250*time.Millisecond)
	}
}

// Always fails if the condition fails before the time is over.
func Always(t testing.TB, length time.Duration, condition func() error) {
	t.Helper()
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := condition(); err != nil {
			t.Fatal(err)
		}
	}
}

// FreePort returns a port that is free for TCP and UDP on loopback. It is taken from below the
// kernel's range for outgoing connections, so that nothing else is given it meanwhile.
func FreePort(t testing.TB) int { return FreePorts(t, 1) }

// FreePorts returns the first of n adjoining free ports.
func FreePorts(t testing.TB, n int) int {
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
	l.Close()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
