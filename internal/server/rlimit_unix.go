//go:build unix

package server

import "golang.org/x/sys/unix"

// capConnections keeps max at 0.7 of the descriptor limit: a connection needs one descriptor,
// its origin's lane another now and then, and the rest must go on working.
func capConnections(max int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return max
	}
	if most := float64(l.Cur) * 0.7; most < float64(max) {
		return int(most)
	}
	return max
}
