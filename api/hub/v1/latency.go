package hubv1

import (
	"math"
	"time"
)

// LatencyBuckets is how many buckets TrafficReport.latency_counts has.
const LatencyBuckets = 40

const (
	// firstBound is the upper bound of bucket 0; each further bound is bucketFactor times as long.
	// The last bucket, from about 21 minutes on, has no upper bound.
	firstBound   = 500 * time.Microsecond
	bucketFactor = 1.4765
)

// LatencyBound is the upper bound of a bucket.
func LatencyBound(i int) time.Duration {
	return time.Duration(float64(firstBound) * math.Pow(bucketFactor, float64(i)))
}

// LatencyBucket is the index of the bucket that d falls into.
func LatencyBucket(d time.Duration) int {
	if d <= firstBound {
		return 0
	}
	i := int(math.Ceil(math.Log(float64(d)/float64(firstBound))/math.Log(bucketFactor) - 1e-9))
	return min(i, LatencyBuckets-1)
}

// LatencyQuantile is the time within which the part q (0 to 1) of the counted answers began;
// within a bucket they are taken as spread evenly. 0 if nothing was counted.
func LatencyQuantile(counts []uint64, q float64) time.Duration {
	var total uint64
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := q * float64(total)
	var below float64
	for i, n := range counts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		lower := time.Duration(0)
		if i > 0 {
			lower = LatencyBound(i - 1)
		}
		return lower + time.Duration((rank-below)/float64(n)*float64(LatencyBound(i)-lower))
	}
	return LatencyBound(len(counts) - 1)
}

// Add adds what o counted to r; their tunnel and seq are left alone.
func (r *TrafficReport) Add(o *TrafficReport) {
	r.Requests += o.GetRequests()
	r.Connections += o.GetConnections()
	r.BytesIn += o.GetBytesIn()
	r.BytesOut += o.GetBytesOut()
	r.Dropped += o.GetDropped()
	for reason, n := range o.GetErrors() {
		if r.Errors == nil {
			r.Errors = map[string]uint64{}
		}
		r.Errors[reason] += n
	}
	r.LatencyCounts = addCounts(r.LatencyCounts, o.GetLatencyCounts())
	r.Statuses = addCounts(r.Statuses, o.GetStatuses())
}

func addCounts(to, from []uint64) []uint64 {
	for len(to) < len(from) {
		to = append(to, 0)
	}
	for i, n := range from {
		to[i] += n
	}
	return to
}
