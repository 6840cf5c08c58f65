package rpc

import (
	"context"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (p people) ListEvents(ctx context.Context, r *hubv1.ListEventsRequest) (*hubv1.ListEventsResponse, error) {
	l, next, err := p.hub.ListEvents(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListEventsResponse{Events: l, NextPageToken: next}, nil
}

func (p people) WatchEvents(ctx context.Context, r *hubv1.WatchEventsRequest, s *connect.ServerStream[hubv1.WatchEventsResponse]) error {
	// Headers at once: nothing may happen for a long time.
	if err := s.Send(nil); err != nil {
		return err
	}
	return p.hub.WatchEvents(ctx, r, func(events []*hubv1.Event) error {
		return s.Send(&hubv1.WatchEventsResponse{Events: events})
	})
}

func (p people) ListProblems(ctx context.Context, _ *hubv1.ListProblemsRequest) (*hubv1.ListProblemsResponse, error) {
	l, err := p.hub.ListProblems(ctx)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListProblemsResponse{Problems: l}, nil
}

func (p people) ListNoticeTargets(ctx context.Context, _ *hubv1.ListNoticeTargetsRequest) (*hubv1.ListNoticeTargetsResponse, error) {
	l, err := p.hub.ListNoticeTargets(ctx)
	if err != nil {
		return nil, err
	}
	return &hubv1.ListNoticeTargetsResponse{Targets: l}, nil
}

func (p people) SetNoticeTarget(ctx context.Context, r *hubv1.SetNoticeTargetRequest) (*hubv1.SetNoticeTargetResponse, error) {
	t, err := p.hub.SetNoticeTarget(ctx, r.GetTarget())
	if err != nil {
		return nil, err
	}
	return &hubv1.SetNoticeTargetResponse{Target: t}, nil
}

func (p people) DeleteNoticeTarget(ctx context.Context, r *hubv1.DeleteNoticeTargetRequest) (*hubv1.DeleteNoticeTargetResponse, error) {
	if err := p.hub.DeleteNoticeTarget(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &hubv1.DeleteNoticeTargetResponse{}, nil
}

func (p people) TestNoticeTarget(ctx context.Context, r *hubv1.TestNoticeTargetRequest) (*hubv1.TestNoticeTargetResponse, error) {
	failed, err := p.hub.TestNoticeTarget(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	out := &hubv1.TestNoticeTargetResponse{}
	if failed != nil {
		out.Error = failed.Error()
	}
	return out, nil
}

func (p people) GetTraffic(ctx context.Context, r *hubv1.GetTrafficRequest) (*hubv1.GetTrafficResponse, error) {
	return p.hub.GetTraffic(ctx, r)
}
