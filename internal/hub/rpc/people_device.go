package rpc

import (
	"context"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) StartDevice(ctx context.Context, r *hubv1.StartDeviceRequest) (*hubv1.StartDeviceResponse, error) {
	return p.hub.StartDevice(ctx, r)
}

func (p people) PollDevice(ctx context.Context, r *hubv1.PollDeviceRequest) (*hubv1.PollDeviceResponse, error) {
	return p.hub.PollDevice(ctx, r.GetDeviceCode())
}
