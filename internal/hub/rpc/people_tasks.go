package rpc

import (
	"context"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) Preflight(ctx context.Context, r *hubv1.PreflightRequest) (*hubv1.PreflightResponse, error) {
	x, err := p.hub.Preflight(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.PreflightResponse{Answer: x}, nil
}

func (p people) OpenForward(ctx context.Context, r *hubv1.OpenForwardRequest) (*hubv1.OpenForwardResponse, error) {
	return p.hub.OpenForward(ctx, r)
}

func (p people) Logs(ctx context.Context, r *hubv1.LogsRequest, s *connect.ServerStream[hubv1.LogsResponse]) error {
	return p.hub.Logs(ctx, r, s.Send)
}

func (p people) ListServices(ctx context.Context, r *hubv1.ListServicesRequest) (*hubv1.ListServicesResponse, error) {
	return p.hub.ListServices(ctx, r)
}
