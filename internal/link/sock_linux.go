package link

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tuneSocket prepares a TCP socket for lanes: best congestion control the kernel offers, a low
// retransmission floor. What the kernel lacks is left as it is.
func tuneSocket(c syscall.RawConn) {
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr")
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMinUs, 20_000)
	})
}

// tcpRTOMinUs is TCP_RTO_MIN_US of Linux 6.15.
const tcpRTOMinUs = 45

// peek reports whether there is something to read, an end or an error; again means nothing is.
func peek(fd uintptr) (data, again bool, err error) {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false, true, nil
		}
		return n > 0, false, err
	}
}

// closedByPeer reports whether the connection is gone altogether, not half-closed: after a reset.
func closedByPeer(c syscall.RawConn) (closed bool) {
	const stateClose = 7
	_ = c.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == stateClose
	})
	return closed
}

// unanswered is how long the peer's kernel has left questions of ours unanswered: data, probes of a
// window that is closed, keep-alives. 0 while it owes at most one answer.
func unanswered(t *net.TCPConn) (silent time.Duration) {
	c, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	_ = c.Control(func(fd uintptr) {
		i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && (i.Probes >= 2 || i.Unacked > 0 && i.Retransmits >= 2) {
			silent = time.Duration(min(i.Last_ack_recv, i.Last_data_recv)) * time.Millisecond
		}
	})
	return silent
}

const canWaitReadable = true

var _ syscall.Conn = (*net.TCPConn)(nil)
