//go:build !unix

package link

// descriptorLimit is how many files this process may have open: enough where nobody counts.
func descriptorLimit() int { return 1 << 20 }
