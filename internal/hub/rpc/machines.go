package rpc

import (
	"context"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/reason"
)

// machines serves agents, edges and operators.
type machines struct{ hub *hub.Hub }

// caller is there because the guard has admitted it; without one nothing is served.
func caller(ctx context.Context) (*hublink.Caller, error) {
	c, ok := hublink.CallerFrom(ctx)
	if !ok {
		return nil, reason.New(reason.Unauthenticated, reason.HopHub, "no proven caller")
	}
	return c, nil
}

func (m machines) Declare(ctx context.Context, r *hubv1.DeclareRequest) (*hubv1.DeclareResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	v, err := m.hub.Declare(ctx, c, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.DeclareResponse{Verdicts: v}, nil
}

func (m machines) Watch(ctx context.Context, r *hubv1.WatchRequest, s *connect.ServerStream[hubv1.WatchResponse]) error {
	c, err := caller(ctx)
	if err != nil {
		return err
	}
	// Headers at once: a resumed watch may have nothing to say for a long time.
	if err := s.Send(nil); err != nil {
		return err
	}
	defer m.hub.Serving(c)()
	return m.hub.Watch(ctx, hub.WatcherOf(c), r.GetFromRevision(), s.Send)
}

func (m machines) Report(ctx context.Context, r *hubv1.ReportRequest) (*hubv1.ReportResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.hub.Report(ctx, c, r); err != nil {
		return nil, err
	}
	return &hubv1.ReportResponse{}, nil
}
