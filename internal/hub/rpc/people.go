package rpc

import (
	"context"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub"
)

// people serves people and their tools.
type people struct {
	hub *hub.Hub
}

func (p people) CreateInvite(ctx context.Context, r *hubv1.CreateInviteRequest) (*hubv1.CreateInviteResponse, error) {
	i, token, err := p.hub.CreateInvite(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateInviteResponse{Invite: i, Token: token}, nil
}

func (p people) ListInvites(ctx context.Context, r *hubv1.ListInvitesRequest) (*hubv1.ListInvitesResponse, error) {
	l, next, err := p.hub.ListInvites(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListInvitesResponse{Invites: l, NextPageToken: next}, nil
}

func (p people) GetInvite(ctx context.Context, r *hubv1.GetInviteRequest) (*hubv1.GetInviteResponse, error) {
	i, err := p.hub.GetInvite(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.GetInviteResponse{Invite: i}, nil
}

func (p people) RevokeInvite(ctx context.Context, r *hubv1.RevokeInviteRequest) (*hubv1.RevokeInviteResponse, error) {
	i, err := p.hub.RevokeInvite(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.RevokeInviteResponse{Invite: i}, nil
}

func (p people) ListTunnels(ctx context.Context, r *hubv1.ListTunnelsRequest) (*hubv1.ListTunnelsResponse, error) {
	l, next, err := p.hub.ListTunnels(ctx, r.GetPageSize(), r.GetPageToken(), r.GetFilter())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListTunnelsResponse{Tunnels: l, NextPageToken: next}, nil
}

func (p people) GetTunnel(ctx context.Context, r *hubv1.GetTunnelRequest) (*hubv1.GetTunnelResponse, error) {
	t, err := p.hub.GetTunnel(ctx, r.GetLabel())
	if err != nil {
		return nil, err
	}
	return &hubv1.GetTunnelResponse{Tunnel: t}, nil
}

func (p people) ListAgents(ctx context.Context, r *hubv1.ListAgentsRequest) (*hubv1.ListAgentsResponse, error) {
	l, next, err := p.hub.ListAgents(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListAgentsResponse{Agents: l, NextPageToken: next}, nil
}

func (p people) GetAgent(ctx context.Context, r *hubv1.GetAgentRequest) (*hubv1.GetAgentResponse, error) {
	a, err := p.hub.GetAgent(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.GetAgentResponse{Agent: a}, nil
}

func (p people) ListPorts(ctx context.Context, r *hubv1.ListPortsRequest) (*hubv1.ListPortsResponse, error) {
	l, next, err := p.hub.ListPorts(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListPortsResponse{Ports: l, NextPageToken: next}, nil
}

func (p people) ReservePort(ctx context.Context, r *hubv1.ReservePortRequest) (*hubv1.ReservePortResponse, error) {
	x, err := p.hub.ReservePort(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ReservePortResponse{Port: x}, nil
}

func (p people) ReleasePort(ctx context.Context, r *hubv1.ReleasePortRequest) (*hubv1.ReleasePortResponse, error) {
	if err := p.hub.ReleasePort(ctx, r.GetKind(), r.GetPort()); err != nil {
		return nil, err
	}
	return &hubv1.ReleasePortResponse{}, nil
}

func (p people) InviteEdge(ctx context.Context, r *hubv1.InviteEdgeRequest) (*hubv1.InviteEdgeResponse, error) {
	id, token, err := p.hub.InviteEdge(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.InviteEdgeResponse{Id: id, Token: token}, nil
}

func (p people) ListEdges(ctx context.Context, r *hubv1.ListEdgesRequest) (*hubv1.ListEdgesResponse, error) {
	l, next, err := p.hub.ListEdges(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListEdgesResponse{Edges: l, NextPageToken: next}, nil
}

func (p people) RevokeEdgeInvite(ctx context.Context, r *hubv1.RevokeEdgeInviteRequest) (*hubv1.RevokeEdgeInviteResponse, error) {
	if err := p.hub.RevokeEdgeInvite(ctx, r.GetId()); err != nil {
		return nil, err
	}
	return &hubv1.RevokeEdgeInviteResponse{}, nil
}

func (p people) GetServer(ctx context.Context, _ *hubv1.GetServerRequest) (*hubv1.GetServerResponse, error) {
	return p.hub.Server(ctx)
}
