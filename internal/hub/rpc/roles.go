package rpc

import (
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hub"
)

// Roles of people, each with all that the next one may do.
const (
	owner   = hub.RoleOwner
	admin   = hub.RoleAdmin
	viewer  = hub.RoleViewer
	visitor = hub.RoleVisitor
)

// Scopes of keys, each with ":read" or ":write" behind it, but forward.
const (
	// anyScope is a procedure that every key may call.
	anyScope = "*"
	// noScope is one that no key with scopes may call: it needs a sign-in, a key without scopes or
	// the server's own admin.key.
	noScope = ""
)

// who may call a procedure: machines of some roles, or people from a role on.
type who struct {
	machines []wirev1.Role
	people   string
	// scope a key with scopes needs; ":write" includes ":read".
	scope string
	// fresh procedures need a sign-in younger than ten minutes where a sign-in is the credential.
	fresh bool
	// local procedures are for admin.key only.
	local bool
	// open procedures need no credential.
	open bool
}

var (
	edges  = wirev1.Role_ROLE_EDGE
	agents = wirev1.Role_ROLE_AGENT
	ops    = wirev1.Role_ROLE_OPERATOR
)

// access is the one table of who may call what. A procedure that is not here is refused.
var access = map[string]who{
	hubv1connect.MachineServiceDeclareProcedure: {machines: []wirev1.Role{agents, ops}},
	hubv1connect.MachineServiceWatchProcedure:   {machines: []wirev1.Role{agents, ops, edges}},
	hubv1connect.MachineServiceReportProcedure:  {machines: []wirev1.Role{agents, ops, edges}},

	hubv1connect.InviteServiceCreateInviteProcedure: {people: admin, scope: "invites:write"},
	hubv1connect.InviteServiceRevokeInviteProcedure: {people: admin, scope: "invites:write"},
	hubv1connect.InviteServiceUpdateInviteProcedure: {people: admin, scope: "invites:write"},
	hubv1connect.InviteServiceRotateInviteProcedure: {people: admin, scope: "invites:write"},
	hubv1connect.InviteServiceListInvitesProcedure:  {people: viewer, scope: "invites:read"},
	hubv1connect.InviteServiceGetInviteProcedure:    {people: viewer, scope: "invites:read"},

	hubv1connect.TunnelServiceListTunnelsProcedure:  {people: viewer, scope: "tunnels:read"},
	hubv1connect.TunnelServiceGetTunnelProcedure:    {people: viewer, scope: "tunnels:read"},
	hubv1connect.TunnelServiceCreateTunnelProcedure: {people: admin, scope: "tunnels:write"},
	hubv1connect.TunnelServiceUpdateTunnelProcedure: {people: admin, scope: "tunnels:write"},
	hubv1connect.TunnelServiceDeleteTunnelProcedure: {people: admin, scope: "tunnels:write"},

	hubv1connect.AgentServiceListAgentsProcedure:      {people: viewer, scope: "agents:read"},
	hubv1connect.AgentServiceGetAgentProcedure:        {people: viewer, scope: "agents:read"},
	hubv1connect.AgentServiceListServicesProcedure:    {people: viewer, scope: "agents:read"},
	hubv1connect.AgentServiceCreateAgentProcedure:     {people: admin, scope: "agents:write"},
	hubv1connect.AgentServiceDeleteAgentProcedure:     {people: admin, scope: "agents:write"},
	hubv1connect.AgentServiceRotateAgentProcedure:     {people: admin, scope: "agents:write"},
	hubv1connect.AgentServiceSetAgentEnabledProcedure: {people: admin, scope: "agents:write"},
	hubv1connect.AgentServiceDrainAgentProcedure:      {people: admin, scope: "agents:write"},
	hubv1connect.AgentServicePreflightProcedure:       {people: admin, scope: "tunnels:write"},
	hubv1connect.AgentServiceLogsProcedure:            {people: admin, scope: "agents:read"},
	hubv1connect.AgentServiceOpenForwardProcedure:     {people: admin, scope: "forward"},

	hubv1connect.TenantServiceListTenantsProcedure: {people: viewer, scope: "invites:read"},
	hubv1connect.TenantServiceReleaseNameProcedure: {people: admin, scope: "invites:write"},

	hubv1connect.PortServiceListPortsProcedure:   {people: viewer, scope: "tunnels:read"},
	hubv1connect.PortServiceReservePortProcedure: {people: admin, scope: "tunnels:write"},
	hubv1connect.PortServiceReleasePortProcedure: {people: admin, scope: "tunnels:write"},

	hubv1connect.EdgeServiceListEdgesProcedure:        {people: viewer, scope: "agents:read"},
	hubv1connect.EdgeServiceListEdgeInvitesProcedure:  {people: viewer, scope: "agents:read"},
	hubv1connect.EdgeServiceInviteEdgeProcedure:       {people: admin, scope: noScope, fresh: true},
	hubv1connect.EdgeServiceRevokeEdgeInviteProcedure: {people: admin, scope: noScope, fresh: true},
	hubv1connect.EdgeServiceDrainEdgeProcedure:        {people: admin, scope: noScope, fresh: true},
	hubv1connect.EdgeServiceRemoveEdgeProcedure:       {people: admin, scope: noScope, fresh: true},

	hubv1connect.AccessServiceGetAccessProcedure:        {people: viewer, scope: "access:read"},
	hubv1connect.AccessServiceSetAccessProcedure:        {people: admin, scope: "access:write"},
	hubv1connect.AccessServiceAddAccessRuleProcedure:    {people: admin, scope: "access:write"},
	hubv1connect.AccessServiceRemoveAccessRuleProcedure: {people: admin, scope: "access:write"},

	hubv1connect.PolicyServiceListPoliciesProcedure: {people: viewer, scope: "access:read"},
	hubv1connect.PolicyServiceGetPolicyProcedure:    {people: viewer, scope: "access:read"},
	hubv1connect.PolicyServiceSetPolicyProcedure:    {people: admin, scope: "access:write"},
	hubv1connect.PolicyServiceDeletePolicyProcedure: {people: admin, scope: "access:write"},

	hubv1connect.UserServiceWhoAmIProcedure:     {people: visitor, scope: anyScope},
	hubv1connect.UserServiceListUsersProcedure:  {people: admin, scope: noScope},
	hubv1connect.UserServiceGetUserProcedure:    {people: admin, scope: noScope},
	hubv1connect.UserServiceInviteUserProcedure: {people: admin, scope: noScope, fresh: true},
	hubv1connect.UserServiceUpdateUserProcedure: {people: admin, scope: noScope, fresh: true},
	hubv1connect.UserServiceDeleteUserProcedure: {people: admin, scope: noScope, fresh: true},
	hubv1connect.UserServiceResetUserProcedure:  {people: owner, scope: noScope, local: true},

	hubv1connect.UserServiceCreateSignInLinkProcedure: {people: owner, scope: noScope, local: true},
	hubv1connect.UserServiceCreateSetupLinkProcedure:  {people: owner, scope: noScope, local: true},

	hubv1connect.SessionServiceListSessionsProcedure: {people: visitor, scope: noScope},
	// A tool with any key may end its own sign-in.
	hubv1connect.SessionServiceRevokeSessionProcedure: {people: visitor, scope: anyScope},

	hubv1connect.KeyServiceCreateKeyProcedure: {people: viewer, scope: noScope, fresh: true},
	hubv1connect.KeyServiceDeleteKeyProcedure: {people: viewer, scope: noScope, fresh: true},
	hubv1connect.KeyServiceListKeysProcedure:  {people: viewer, scope: noScope},

	hubv1connect.ProviderServiceListProvidersProcedure:  {people: admin, scope: noScope},
	hubv1connect.ProviderServiceSetProviderProcedure:    {people: owner, scope: noScope, fresh: true},
	hubv1connect.ProviderServiceDeleteProviderProcedure: {people: owner, scope: noScope, fresh: true},

	hubv1connect.DeviceServiceStartDeviceProcedure: {open: true},
	hubv1connect.DeviceServicePollDeviceProcedure:  {open: true},

	hubv1connect.AuditServiceListAuditProcedure: {people: admin, scope: "audit:read"},

	hubv1connect.EventServiceListEventsProcedure:   {people: viewer, scope: "audit:read"},
	hubv1connect.EventServiceWatchEventsProcedure:  {people: viewer, scope: "audit:read"},
	hubv1connect.EventServiceListProblemsProcedure: {people: viewer, scope: "audit:read"},

	hubv1connect.NoticeServiceListNoticeTargetsProcedure:  {people: admin, scope: noScope},
	hubv1connect.NoticeServiceSetNoticeTargetProcedure:    {people: owner, scope: noScope},
	hubv1connect.NoticeServiceDeleteNoticeTargetProcedure: {people: owner, scope: noScope},
	hubv1connect.NoticeServiceTestNoticeTargetProcedure:   {people: owner, scope: noScope},

	hubv1connect.TrafficServiceGetTrafficProcedure: {people: viewer, scope: "tunnels:read"},

	hubv1connect.ServerServiceGetServerProcedure: {people: viewer, scope: anyScope},
}
