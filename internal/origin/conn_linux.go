package origin

import (
	"net"

	"golang.org/x/sys/unix"
)

// closedByPeer reports whether the connection is gone altogether, not half-closed: after a reset.
func closedByPeer(c *net.TCPConn) bool {
	const stateClose = 7
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == stateClose
	})
	return closed
}

// resetPending reports a reset that no call has been told of.
func resetPending(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	pending := false
	_ = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		pending = n > 0 && err == nil && p[0].Revents&unix.POLLERR != 0
	})
	return pending
}
