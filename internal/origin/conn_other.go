//go:build !linux

package origin

import "net"

// closedByPeer is not known here: a write that fails says so soon enough.
func closedByPeer(*net.TCPConn) bool { return false }

// resetPending is not known here: the next read tells.
func resetPending(*net.TCPConn) bool { return false }
