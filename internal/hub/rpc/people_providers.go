package rpc

import (
	"context"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) ListProviders(ctx context.Context, _ *hubv1.ListProvidersRequest) (*hubv1.ListProvidersResponse, error) {
	l, err := p.hub.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListProvidersResponse{Providers: l}, nil
}

func (p people) SetProvider(ctx context.Context, r *hubv1.SetProviderRequest) (*hubv1.SetProviderResponse, error) {
	x, err := p.hub.SetProvider(ctx, r.GetProvider())
	if err != nil {
		return nil, err
	}
	return &hubv1.SetProviderResponse{Provider: x}, nil
}

func (p people) DeleteProvider(ctx context.Context, r *hubv1.DeleteProviderRequest) (*hubv1.DeleteProviderResponse, error) {
	if err := p.hub.DeleteProvider(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteProviderResponse{}, nil
}
