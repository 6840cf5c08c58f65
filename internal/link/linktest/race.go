//go:build race

package linktest

// Race reports whether the race detector runs: sizes are smaller then.
const Race = true
