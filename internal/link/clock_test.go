package link

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// wallStep is by how much the system's clock is off, in seconds; what passes since stays right, as
// after a step of a real clock.
var wallStep atomic.Int64

func init() {
	clock = func() time.Time {
		t := time.Now()
		// Package time keeps seconds of the day above 30 bits of nanoseconds, and what has passed
		// since the start of the program apart from them.
		*(*uint64)(unsafe.Pointer(&t)) += uint64(wallStep.Load()) << 30
		return t
	}
}

// StepClock has the system's clock jump by d, which is undone when the test ends.
func StepClock(t testing.TB, d time.Duration) {
	wallStep.Add(int64(d / time.Second))
	t.Cleanup(func() { wallStep.Add(-int64(d / time.Second)) })
}

// TestStepClock holds the simulation to what package time makes of a clock that steps.
func TestStepClock(t *testing.T) {
	wall, steady, before := clock(), steadyNow(), time.Now()
	StepClock(t, time.Hour)
	if d := clock().Round(0).Sub(wall.Round(0)); d < time.Hour || d > time.Hour+time.Minute {
		t.Errorf("the time of day moved by %v", d)
	}
	if d, passed := clock().Sub(wall), time.Since(before); d < 0 || d > passed+time.Second {
		t.Errorf("%v passed by the stepped clock, %v did", d, passed)
	}
	if d := steadyNow().Sub(steady); d < 0 || d > time.Minute {
		t.Errorf("the steady clock moved by %v", d)
	}
}
