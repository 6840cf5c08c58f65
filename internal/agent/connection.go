package agent

import (
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// Connection is one stream, flow or HTTP request as a live log shows it.
type Connection struct {
	// Kind is http, tls, tcp or udp.
	Kind string
	// Service is the name of the declared entry, empty when there is none.
	Service string
	// Visitor is ip:port as resolved by the edge; Origin a URL.
	Visitor, Origin string
	// Method, Target and Status are set for a request.
	Method, Target string
	Status         int
	// Took is the time to the response header, or to dial the origin.
	Took time.Duration
	// Err is set when the visitor was refused.
	Err *reason.Error
}

func newConnection(h *wirev1.StreamHeader, s *service, spec *origin.Spec, took time.Duration, e *reason.Error) Connection {
	c := Connection{Kind: kindName(h.GetKind()), Visitor: h.GetVisitorAddress(), Took: took, Err: e}
	if s != nil {
		c.Service = s.declared.GetName()
	}
	if spec != nil {
		c.Origin = spec.String()
	}
	return c
}
