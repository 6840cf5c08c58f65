//go:build !linux

package link

import (
	"net"
	"syscall"
	"time"
)

// tuneSocket does nothing where the options of Linux do not exist; keep-alive is set anyway.
func tuneSocket(syscall.RawConn) {}

func peek(uintptr) (data, again bool, err error) { return false, false, syscall.ENOSYS }

func closedByPeer(syscall.RawConn) bool { return false }

// unanswered is not known here: silence ends a connection by the kernel's own limits.
func unanswered(*net.TCPConn) time.Duration { return 0 }

const canWaitReadable = false
