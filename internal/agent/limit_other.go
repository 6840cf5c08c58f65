//go:build !unix

package agent

// descriptorLimit is how many files this process may have open; 0 where the system does not tell.
func descriptorLimit() int { return 0 }
