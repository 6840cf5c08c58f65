package agent

import (
	"context"
	"net"
	"strconv"

	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// forward serves a stream to a target that no tunnel has: the hub let a person open it, but whether
// this agent dials it is decided here, by --allow-forward and the guard.
func (h *handler) forward(ctx context.Context, in link.Incoming) {
	hd := in.Header()
	log := h.log.With("target", hd.GetForwardTarget(), "from", hd.GetVisitorAddress())
	host, port, err := net.SplitHostPort(hd.GetForwardTarget())
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" {
		in.Refuse(reason.New(reason.Invalid, reason.HopAgent, "the target %q of the forward is not host:port", hd.GetForwardTarget()).Safe())
		return
	}
	c, err := h.dialer.Dial(ctx, &origin.Spec{Scheme: origin.SchemeTCP, Host: host, Port: uint16(n), Forward: true}, hd)
	if err != nil {
		e := reason.Of(err, reason.HopAgent)
		log.Warn("a forward was refused", "reason", e.Code, "detail", e.Detail)
		in.Refuse(e)
		h.m.refused(e)
		return
	}
	st, err := in.Accept("")
	if err != nil {
		c.Abort()
		return
	}
	log.Info("forward opened")
	h.sweep.carry(ctx, st, c, h.m, nil)
}
