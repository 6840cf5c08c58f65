// Package edge is the public data plane. It holds no truth: everything it knows came from the
// hub's feed, or from the snapshot of it on disk.
package edge

import (
	"context"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// Feed is how an edge hears from its hub. The local edge of a server and a joined edge get the
// same interface.
type Feed interface {
	// Watch calls apply for each message from revision from on (0 = snapshot first) until ctx
	// ends, the connection breaks or apply fails.
	Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error
	Report(ctx context.Context, r *hubv1.ReportRequest) error
}
