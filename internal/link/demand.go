package link

import "time"

// demand works out how many lanes a replica should have: one spare above what was in use or
// waited for, remembered for a while so that a pause does not cost the lanes of the next rush.
type demand struct {
	window  time.Duration // how long a peak counts
	buckets [demandBuckets]int
	index   int
	turned  time.Time
}

const (
	demandBuckets = 6
	// maxSpare bounds the lanes beyond those in use: idle ones cost both ends memory and descriptors.
	maxSpare = 32
)

// note records that n lanes are busy or waited for.
func (d *demand) note(n int, now time.Time) {
	d.turn(now)
	d.buckets[d.index] = max(d.buckets[d.index], n)
}

// turn moves on to the bucket of now.
func (d *demand) turn(now time.Time) {
	step := d.window / demandBuckets
	for i := 0; now.Sub(d.turned) >= step; i++ {
		if i == demandBuckets || d.turned.IsZero() {
			d.turned = now
			return
		}
		d.turned = d.turned.Add(step)
		d.index = (d.index + 1) % demandBuckets
		d.buckets[d.index] = 0
	}
}

// target is the number of lanes wanted, at least one, at most limit.
func (d *demand) target(limit int, now time.Time) int {
	d.turn(now)
	peak := 0
	for _, b := range d.buckets {
		peak = max(peak, b)
	}
	return min(limit, peak+1+min(peak/8, maxSpare))
}
