package link

import "time"

// clock tells the time of day; tests have it step.
var clock = time.Now

var began = clock()

// steadyNow is the time of day at the start plus what has passed since: a step of the system's
// clock, forward or back, must not make every peer look silent at once.
func steadyNow() time.Time { return began.Add(clock().Sub(began)) }
