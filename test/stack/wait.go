package stack

import (
	"testing"
	"time"
)

// Eventually tries until the condition holds, and fails with its last error at the limit.
func Eventually(t testing.TB, limit time.Duration, condition func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	pause := 10 * time.Millisecond
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, 250*time.Millisecond)
	}
}

// Always fails if the condition fails before the time is over.
func Always(t testing.TB, length time.Duration, condition func() error) {
	t.Helper()
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := condition(); err != nil {
			t.Fatal(err)
		}
	}
}
