package link

import "time"

var began = time.Now()

// steadyNow is the time of day at the start plus what has passed since: a step of the system's
// clock, forward or back, must not make every peer look silent at once.
func steadyNow() time.Time { return began.Add(time.Since(began)) }
