package cli

import (
	"cmp"
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// completeTime bounds what a completion may ask the hub: a shell waits for it.
const completeTime = time.Second

// completeNames gives every command that takes the name of something the names that there are. Where no
// hub can be asked there are none, and nothing is said about it.
func (a *app) completeNames(root *cobra.Command) {
	for noun, list := range map[string]lister{
		"tunnel": tunnelNames, "access": tunnelNames, "traffic": tunnelNames, "agents": agentNames, "logs": agentNames, "forward": agentNames,
		"invite": inviteNames, "policy": policyNames, "user": userNames, "key": keyNames, "edge": edgeNames, "notice": noticeNames,
	} {
		c, _, err := root.Find([]string{noun})
		if err != nil {
			continue
		}
		for _, c := range append([]*cobra.Command{c}, c.Commands()...) {
			if verb := c.Name(); verb != "create" && verb != "invite" && strings.ContainsAny(c.Use, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
				c.ValidArgsFunction = a.complete(list, 0)
			}
		}
	}
	for _, path := range [][]string{{"preflight"}, {"tunnel", "create"}, {"tunnel", "set"}} {
		if c, _, err := root.Find(path); err == nil && c.Flags().Lookup("agent") != nil {
			_ = c.RegisterFlagCompletionFunc("agent", a.complete(agentNames, -1))
		}
	}
}

// lister asks a hub for names.
type lister func(ctx context.Context, c *client) ([]string, error)

// complete offers names for the argument at a place; at -1 for a flag.
func (a *app) complete(list lister, at int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if at >= 0 && len(args) != at {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet := *a
		quiet.Stderr = io.Discard
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmdContext(cmd)), completeTime)
		defer cancel()
		c, err := quiet.dial(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []cobra.Completion
		for _, n := range names {
			if n != "" && strings.HasPrefix(n, begun) {
				out = append(out, n)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func cmdContext(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func tunnelNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.tunnels().ListTunnels(ctx, &hubv1.ListTunnelsRequest{PageSize: 1000})
	for _, t := range r.GetTunnels() {
		out = append(out, cmp.Or(t.GetTunnel().GetLabel(), tunnelView(t).label()))
	}
	return out, err
}

func agentNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.agents().ListAgents(ctx, &hubv1.ListAgentsRequest{PageSize: 1000})
	for _, x := range r.GetAgents() {
		out = append(out, x.GetName())
	}
	return out, err
}

func inviteNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.invites().ListInvites(ctx, &hubv1.ListInvitesRequest{PageSize: 1000})
	for _, x := range r.GetInvites() {
		out = append(out, x.GetName())
	}
	return out, err
}

func policyNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.policies().ListPolicies(ctx, &hubv1.ListPoliciesRequest{PageSize: 1000})
	for _, x := range r.GetPolicies() {
		out = append(out, x.GetName())
	}
	return out, err
}

func userNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.users().ListUsers(ctx, &hubv1.ListUsersRequest{PageSize: 1000})
	for _, x := range r.GetUsers() {
		out = append(out, x.GetName())
	}
	return out, err
}

func keyNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.keys().ListKeys(ctx, &hubv1.ListKeysRequest{PageSize: 1000})
	for _, x := range r.GetKeys() {
		out = append(out, x.GetName())
	}
	return out, err
}

func edgeNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.edges().ListEdges(ctx, &hubv1.ListEdgesRequest{PageSize: 1000})
	for _, x := range r.GetEdges() {
		out = append(out, x.GetEdge().GetAddress().GetId())
	}
	return out, err
}

func noticeNames(ctx context.Context, c *client) (out []string, err error) {
	r, err := c.notices().ListNoticeTargets(ctx, &hubv1.ListNoticeTargetsRequest{})
	for _, x := range r.GetTargets() {
		out = append(out, x.GetName())
	}
	return out, err
}
