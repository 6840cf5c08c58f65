//go:build unix

package agent

import "syscall"

// descriptorLimit is how many files this process may have open; 0 where the system does not tell.
func descriptorLimit() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int(min(r.Cur, 1<<20))
}
