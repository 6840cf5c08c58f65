package rpc

import (
	"context"

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
