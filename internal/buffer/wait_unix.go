//go:build unix

package buffer

import (
	"os"
	"syscall"
)

const canWait = true

// attempt reads what is there; false means there is nothing, and then nothing is held.
func (s *Socket) attempt(fd uintptr) bool {
	for {
		n, err := syscall.Read(int(fd), s.loan.Bytes())
		switch {
		case err == syscall.EINTR:
			continue
		case err == nil && n > 0:
			s.n, s.err = n, nil
			return true
		}
		s.loan.Return()
		if err == syscall.EAGAIN {
			return false
		}
		s.n, s.err = 0, os.NewSyscallError("read", err)
		return true
	}
}
