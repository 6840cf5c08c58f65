package agent

import (
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// Connection is one stream or flow as a live log shows it.
type Connection struct {
	// Kind is http, tls, tcp or udp.
	Kind string
	// Service is the name of the declared entry, empty when there is none.
	Service string
	// Visitor is ip:port as resolved by the edge; Origin a URL.
	Visitor, Origin string
	// Dial is how long the origin took; Err is set when the visitor was refused.
	Dial time.Duration
	Err  *reason.Error
}

// tell reports one stream or flow to whoever listens.
func tell(on func(Connection), h *wirev1.StreamHeader, s *service, spec *origin.Spec, start time.Time, e *reason.Error) {
	if on == nil {
		return
	}
	c := Connection{Kind: kindName(h.GetKind()), Visitor: h.GetVisitorAddress(), Dial: time.Since(start), Err: e}
	if s != nil {
		c.Service = s.declared.GetName()
	}
	if spec != nil {
		c.Origin = spec.String()
	}
	on(c)
}
