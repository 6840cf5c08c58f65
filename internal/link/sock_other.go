//go:build !linux

package link

import (
	"syscall"
	"time"
)

// tuneSocket does nothing where the options of Linux do not exist; keep-alive is set anyway.
func tuneSocket(syscall.RawConn, time.Duration) {}

func readAvailable(uintptr, []byte) (int, bool, error) { return 0, false, syscall.ENOSYS }

func peek(uintptr) (data, again bool, err error) { return false, false, syscall.ENOSYS }

func closedByPeer(syscall.RawConn) bool { return false }

const canWaitReadable = false
