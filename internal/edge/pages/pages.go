// Package pages answers visitors when the edge itself must: an error page for browsers, JSON or
// a gRPC status for programs, always with the reason and the request's id.
package pages

import (
	"net/http"

	"github.com/adit-dev/adit/internal/reason"
)

// Write answers r with err's reason. Headers already set on w are kept.
func Write(w http.ResponseWriter, r *http.Request, requestID string, err *reason.Error) {
	panic("unbuilt")
}
