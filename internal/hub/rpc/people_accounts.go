package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) WhoAmI(ctx context.Context, _ *hubv1.WhoAmIRequest) (*hubv1.WhoAmIResponse, error) {
	return p.hub.WhoAmI(ctx)
}

func (p people) ListUsers(ctx context.Context, r *hubv1.ListUsersRequest) (*hubv1.ListUsersResponse, error) {
	l, next, err := p.hub.ListUsers(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListUsersResponse{Users: l, NextPageToken: next}, nil
}

func (p people) GetUser(ctx context.Context, r *hubv1.GetUserRequest) (*hubv1.GetUserResponse, error) {
	u, err := p.hub.GetUser(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.GetUserResponse{User: u}, nil
}

func (p people) InviteUser(ctx context.Context, r *hubv1.InviteUserRequest) (*hubv1.InviteUserResponse, error) {
	u, url, until, err := p.hub.InviteUser(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.InviteUserResponse{User: u, Url: url, ExpiresAt: timestamppb.New(until)}, nil
}

func (p people) UpdateUser(ctx context.Context, r *hubv1.UpdateUserRequest) (*hubv1.UpdateUserResponse, error) {
	u, err := p.hub.UpdateUser(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.UpdateUserResponse{User: u}, nil
}

func (p people) DeleteUser(ctx context.Context, r *hubv1.DeleteUserRequest) (*hubv1.DeleteUserResponse, error) {
	if err := p.hub.DeleteUser(ctx, r.GetId()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteUserResponse{}, nil
}

func (p people) ResetUser(ctx context.Context, r *hubv1.ResetUserRequest) (*hubv1.ResetUserResponse, error) {
	url, until, err := p.hub.ResetUser(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.ResetUserResponse{Url: url, ExpiresAt: timestamppb.New(until)}, nil
}

func (p people) CreateSignInLink(ctx context.Context, r *hubv1.CreateSignInLinkRequest) (*hubv1.CreateSignInLinkResponse, error) {
	url, until, err := p.hub.SignInLink(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateSignInLinkResponse{Url: url, ExpiresAt: timestamppb.New(until)}, nil
}

func (p people) CreateSetupLink(ctx context.Context, _ *hubv1.CreateSetupLinkRequest) (*hubv1.CreateSetupLinkResponse, error) {
	url, until, err := p.hub.SetUpLink(ctx)
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateSetupLinkResponse{Url: url, ExpiresAt: timestamppb.New(until)}, nil
}

func (p people) ListSessions(ctx context.Context, r *hubv1.ListSessionsRequest) (*hubv1.ListSessionsResponse, error) {
	l, next, err := p.hub.ListSessions(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListSessionsResponse{Sessions: l, NextPageToken: next}, nil
}

func (p people) RevokeSession(ctx context.Context, r *hubv1.RevokeSessionRequest) (*hubv1.RevokeSessionResponse, error) {
	n, err := p.hub.RevokeSession(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.RevokeSessionResponse{Revoked: uint32(n)}, nil
}

func (p people) CreateKey(ctx context.Context, r *hubv1.CreateKeyRequest) (*hubv1.CreateKeyResponse, error) {
	k, token, err := p.hub.CreateKey(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.CreateKeyResponse{Key: k, Token: token}, nil
}

func (p people) ListKeys(ctx context.Context, r *hubv1.ListKeysRequest) (*hubv1.ListKeysResponse, error) {
	l, next, err := p.hub.ListKeys(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListKeysResponse{Keys: l, NextPageToken: next}, nil
}

func (p people) DeleteKey(ctx context.Context, r *hubv1.DeleteKeyRequest) (*hubv1.DeleteKeyResponse, error) {
	if err := p.hub.DeleteKey(ctx, r.GetId()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteKeyResponse{}, nil
}

func (p people) ListAudit(ctx context.Context, r *hubv1.ListAuditRequest) (*hubv1.ListAuditResponse, error) {
	l, next, err := p.hub.ListAudit(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListAuditResponse{Entries: l, NextPageToken: next}, nil
}
