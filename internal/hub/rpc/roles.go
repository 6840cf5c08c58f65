package rpc

import (
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// Roles of people, each with all that the next one may do.
const (
	owner  = "owner"
	admin  = "admin"
	viewer = "viewer"
)

var rank = map[string]int{viewer: 1, admin: 2, owner: 3}

// who may call a procedure: machines of some roles, or people from a role on.
type who struct {
	machines []wirev1.Role
	people   string
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

	hubv1connect.InviteServiceCreateInviteProcedure: {people: admin},
	hubv1connect.InviteServiceListInvitesProcedure:  {people: viewer},
	hubv1connect.InviteServiceGetInviteProcedure:    {people: viewer},
	hubv1connect.InviteServiceRevokeInviteProcedure: {people: admin},

	hubv1connect.TunnelServiceListTunnelsProcedure: {people: viewer},
	hubv1connect.TunnelServiceGetTunnelProcedure:   {people: viewer},

	hubv1connect.AgentServiceListAgentsProcedure: {people: viewer},
	hubv1connect.AgentServiceGetAgentProcedure:   {people: viewer},

	hubv1connect.PortServiceListPortsProcedure:   {people: viewer},
	hubv1connect.PortServiceReservePortProcedure: {people: admin},
	hubv1connect.PortServiceReleasePortProcedure: {people: admin},

	hubv1connect.EdgeServiceInviteEdgeProcedure:       {people: admin},
	hubv1connect.EdgeServiceListEdgesProcedure:        {people: viewer},
	hubv1connect.EdgeServiceRevokeEdgeInviteProcedure: {people: admin},

	hubv1connect.ServerServiceGetServerProcedure: {people: viewer},
}
