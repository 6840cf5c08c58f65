package rpc

import (
	"context"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) CreateTunnel(ctx context.Context, r *hubv1.CreateTunnelRequest) (*hubv1.CreateTunnelResponse, error) {
	s, err := p.hub.CreateTunnel(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateTunnelResponse{Tunnel: s}, nil
}

func (p people) UpdateTunnel(ctx context.Context, r *hubv1.UpdateTunnelRequest) (*hubv1.UpdateTunnelResponse, error) {
	s, err := p.hub.UpdateTunnel(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.UpdateTunnelResponse{Tunnel: s}, nil
}

func (p people) DeleteTunnel(ctx context.Context, r *hubv1.DeleteTunnelRequest) (*hubv1.DeleteTunnelResponse, error) {
	if err := p.hub.DeleteTunnel(ctx, r.GetLabel(), r.GetRelease()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteTunnelResponse{}, nil
}

func (p people) CreateAgent(ctx context.Context, r *hubv1.CreateAgentRequest) (*hubv1.CreateAgentResponse, error) {
	a, token, err := p.hub.CreateAgent(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateAgentResponse{Agent: a, Token: token}, nil
}

func (p people) DeleteAgent(ctx context.Context, r *hubv1.DeleteAgentRequest) (*hubv1.DeleteAgentResponse, error) {
	if err := p.hub.DeleteAgent(ctx, r.GetId(), r.GetForce()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteAgentResponse{}, nil
}

func (p people) SetAgentEnabled(ctx context.Context, r *hubv1.SetAgentEnabledRequest) (*hubv1.SetAgentEnabledResponse, error) {
	a, err := p.hub.SetAgentEnabled(ctx, r.GetId(), r.GetEnabled())
	if err != nil {
		return nil, err
	}
	return &hubv1.SetAgentEnabledResponse{Agent: a}, nil
}

func (p people) ListEdgeInvites(ctx context.Context, r *hubv1.ListEdgeInvitesRequest) (*hubv1.ListEdgeInvitesResponse, error) {
	l, next, err := p.hub.ListEdgeInvites(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListEdgeInvitesResponse{Invites: l, NextPageToken: next}, nil
}

func (p people) DrainEdge(ctx context.Context, r *hubv1.DrainEdgeRequest) (*hubv1.DrainEdgeResponse, error) {
	e, err := p.hub.DrainEdge(ctx, r.GetId(), r.GetUndo())
	if err != nil {
		return nil, err
	}
	return &hubv1.DrainEdgeResponse{Edge: e}, nil
}

func (p people) RemoveEdge(ctx context.Context, r *hubv1.RemoveEdgeRequest) (*hubv1.RemoveEdgeResponse, error) {
	if err := p.hub.RemoveEdge(ctx, r.GetId()); err != nil {
		return nil, err
	}
	return &hubv1.RemoveEdgeResponse{}, nil
}
