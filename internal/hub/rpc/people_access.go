package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) RotateAgent(ctx context.Context, r *hubv1.RotateAgentRequest) (*hubv1.RotateAgentResponse, error) {
	a, token, ends, err := p.hub.RotateAgent(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.RotateAgentResponse{Agent: a, Token: token, OldExpiresAt: timestamppb.New(ends)}, nil
}

func (p people) DrainAgent(ctx context.Context, r *hubv1.DrainAgentRequest) (*hubv1.DrainAgentResponse, error) {
	n, err := p.hub.DrainAgent(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.DrainAgentResponse{Replicas: n}, nil
}

func (p people) UpdateInvite(ctx context.Context, r *hubv1.UpdateInviteRequest) (*hubv1.UpdateInviteResponse, error) {
	i, err := p.hub.UpdateInvite(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.UpdateInviteResponse{Invite: i}, nil
}

func (p people) RotateInvite(ctx context.Context, r *hubv1.RotateInviteRequest) (*hubv1.RotateInviteResponse, error) {
	i, token, ends, err := p.hub.RotateInvite(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.RotateInviteResponse{Invite: i, Token: token, OldExpiresAt: timestamppb.New(ends)}, nil
}

func (p people) ListTenants(ctx context.Context, r *hubv1.ListTenantsRequest) (*hubv1.ListTenantsResponse, error) {
	l, next, err := p.hub.ListTenants(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListTenantsResponse{Tenants: l, NextPageToken: next}, nil
}

func (p people) ReleaseName(ctx context.Context, r *hubv1.ReleaseNameRequest) (*hubv1.ReleaseNameResponse, error) {
	if err := p.hub.ReleaseName(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &hubv1.ReleaseNameResponse{}, nil
}

func (p people) GetAccess(ctx context.Context, r *hubv1.GetAccessRequest) (*hubv1.GetAccessResponse, error) {
	return p.hub.GetAccess(ctx, r.GetLabel())
}

func (p people) SetAccess(ctx context.Context, r *hubv1.SetAccessRequest) (*hubv1.SetAccessResponse, error) {
	return p.hub.SetAccess(ctx, r)
}

func (p people) AddAccessRule(ctx context.Context, r *hubv1.AddAccessRuleRequest) (*hubv1.AddAccessRuleResponse, error) {
	s, err := p.hub.AddAccessRule(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.AddAccessRuleResponse{Access: s.GetAccess(), Version: s.GetVersion(), Summary: s.GetSummary()}, nil
}

func (p people) RemoveAccessRule(ctx context.Context, r *hubv1.RemoveAccessRuleRequest) (*hubv1.RemoveAccessRuleResponse, error) {
	s, err := p.hub.RemoveAccessRule(ctx, r.GetLabel(), r.GetRuleId())
	if err != nil {
		return nil, err
	}
	return &hubv1.RemoveAccessRuleResponse{Access: s.GetAccess(), Version: s.GetVersion(), Summary: s.GetSummary()}, nil
}

func (p people) ListPolicies(ctx context.Context, r *hubv1.ListPoliciesRequest) (*hubv1.ListPoliciesResponse, error) {
	l, next, err := p.hub.ListPolicies(ctx, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &hubv1.ListPoliciesResponse{Policies: l, NextPageToken: next}, nil
}

func (p people) GetPolicy(ctx context.Context, r *hubv1.GetPolicyRequest) (*hubv1.GetPolicyResponse, error) {
	x, err := p.hub.GetPolicy(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	return &hubv1.GetPolicyResponse{Policy: x}, nil
}

func (p people) SetPolicy(ctx context.Context, r *hubv1.SetPolicyRequest) (*hubv1.SetPolicyResponse, error) {
	x, err := p.hub.SetPolicy(ctx, r.GetPolicy())
	if err != nil {
		return nil, err
	}
	return &hubv1.SetPolicyResponse{Policy: x}, nil
}

func (p people) DeletePolicy(ctx context.Context, r *hubv1.DeletePolicyRequest) (*hubv1.DeletePolicyResponse, error) {
	if err := p.hub.DeletePolicy(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &hubv1.DeletePolicyResponse{}, nil
}
