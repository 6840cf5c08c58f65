package cli

import "github.com/adit-dev/adit/api/hub/v1/hubv1connect"

// The services of the hub API, as one client calls them.

func (c *client) invites() hubv1connect.InviteServiceClient {
	return hubv1connect.NewInviteServiceClient(c.http, c.base, c.opts...)
}

func (c *client) tunnels() hubv1connect.TunnelServiceClient {
	return hubv1connect.NewTunnelServiceClient(c.http, c.base, c.opts...)
}

func (c *client) agents() hubv1connect.AgentServiceClient {
	return hubv1connect.NewAgentServiceClient(c.http, c.base, c.opts...)
}

func (c *client) ports() hubv1connect.PortServiceClient {
	return hubv1connect.NewPortServiceClient(c.http, c.base, c.opts...)
}

func (c *client) edges() hubv1connect.EdgeServiceClient {
	return hubv1connect.NewEdgeServiceClient(c.http, c.base, c.opts...)
}

func (c *client) tenants() hubv1connect.TenantServiceClient {
	return hubv1connect.NewTenantServiceClient(c.http, c.base, c.opts...)
}

func (c *client) access() hubv1connect.AccessServiceClient {
	return hubv1connect.NewAccessServiceClient(c.http, c.base, c.opts...)
}

func (c *client) policies() hubv1connect.PolicyServiceClient {
	return hubv1connect.NewPolicyServiceClient(c.http, c.base, c.opts...)
}

func (c *client) users() hubv1connect.UserServiceClient {
	return hubv1connect.NewUserServiceClient(c.http, c.base, c.opts...)
}

func (c *client) sessions() hubv1connect.SessionServiceClient {
	return hubv1connect.NewSessionServiceClient(c.http, c.base, c.opts...)
}

func (c *client) keys() hubv1connect.KeyServiceClient {
	return hubv1connect.NewKeyServiceClient(c.http, c.base, c.opts...)
}

func (c *client) devices() hubv1connect.DeviceServiceClient {
	return hubv1connect.NewDeviceServiceClient(c.http, c.base, c.opts...)
}

func (c *client) audit() hubv1connect.AuditServiceClient {
	return hubv1connect.NewAuditServiceClient(c.http, c.base, c.opts...)
}

func (c *client) events() hubv1connect.EventServiceClient {
	return hubv1connect.NewEventServiceClient(c.http, c.base, c.opts...)
}

func (c *client) notices() hubv1connect.NoticeServiceClient {
	return hubv1connect.NewNoticeServiceClient(c.http, c.base, c.opts...)
}

func (c *client) traffic() hubv1connect.TrafficServiceClient {
	return hubv1connect.NewTrafficServiceClient(c.http, c.base, c.opts...)
}
