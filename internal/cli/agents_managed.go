package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// printToken shows a token once, with what to do with it.
func (a *app) printToken(v any, token, head, next string) error {
	return a.print(v, func() error {
		if a.quiet {
			_, err := fmt.Fprintln(a.Stdout, token)
			return err
		}
		_, err := fmt.Fprintf(a.Stdout, "%s\n\n%s\n\nThe token is shown only now. %s\n", head, token, next)
		return err
	})
}

func (a *app) agentsCreate() *cobra.Command {
	req := &hubv1.CreateAgentRequest{Grant: &hubv1.Grant{}}
	var tcp, udp []string
	c := &cobra.Command{
		Use: "create NAME", Short: "Make an enrolled agent and its token; the token is shown once", Args: oneArg("NAME"),
		Long: `Make an enrolled agent and its token, which is shown once.

One process on one machine runs with the token; a second one waits as standby. What it
serves is managed here: adit tunnel create. It may declare services of its own too, as
far as --hostname, --tcp-port and --udp-port grant.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Name = args[0]
			if req.Grant.TcpPorts, err = parsePorts("tcp-port", tcp); err != nil {
				return err
			}
			if req.Grant.UdpPorts, err = parsePorts("udp-port", udp); err != nil {
				return err
			}
			return a.call(func(ctx context.Context, c *client, _ []string) error {
				resp, err := c.agents().CreateAgent(ctx, req)
				if err != nil {
					return err
				}
				v := agentOf(resp.GetAgent())
				v.Token = resp.GetToken()
				return a.printToken(v, v.Token, "The agent "+v.Name+" is enrolled.",
					"Put it into a file on the agent's host, then:\n\n  adit agent --token-file FILE\n\nand expose services behind it:\n\n  adit tunnel create LABEL ORIGIN --agent "+v.Name)
			})(cmd, args)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&req.Grant.Hostnames, "hostname", nil, "hostname it may declare itself: exact, *.x (one label) or **.x; repeatable")
	f.StringArrayVar(&tcp, "tcp-port", nil, "TCP port P or range A-B it may declare itself; repeatable")
	f.StringArrayVar(&udp, "udp-port", nil, "UDP port P or range A-B it may declare itself; repeatable")
	f.StringArrayVar(&req.From, "from", nil, "network it may come from (CIDR); repeatable")
	return c
}

func (a *app) agentsDelete() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "delete NAME|ID", Short: "Delete an enrolled agent: it is cut off within seconds", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.agents().DeleteAgent(ctx, &hubv1.DeleteAgentRequest{Id: args[0], Force: force}); err != nil {
				return err
			}
			return a.print(map[string]string{"deleted": args[0]}, func() error { a.say("The agent %s is deleted.", args[0]); return nil })
		}),
	}
	c.Flags().BoolVar(&force, "force", false, "delete its managed tunnels too")
	return c
}

func (a *app) agentsRotate() *cobra.Command {
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate NAME|ID", Short: "Make a new token; the old one works on for a while", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.agents().RotateAgent(ctx, &hubv1.RotateAgentRequest{Id: args[0], Overlap: durationpb.New(overlap)})
			if err != nil {
				return err
			}
			v := agentOf(resp.GetAgent())
			v.Token, v.OldTokenExpiresAt = resp.GetToken(), when(resp.GetOldExpiresAt())
			return a.printToken(v, v.Token, "The agent "+v.Name+" has a new token.",
				"Put it into the agent's token file; a running agent takes it over.\nThe old token ends at "+showTime(v.OldTokenExpiresAt)+".")
		}),
	}
	c.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old token works on, at most 720h")
	return c
}

func (a *app) agentsEnable(name, short, done string, enabled bool) *cobra.Command {
	return &cobra.Command{
		Use: name + " NAME|ID", Short: short, Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.agents().SetAgentEnabled(ctx, &hubv1.SetAgentEnabledRequest{Id: args[0], Enabled: enabled})
			if err != nil {
				return err
			}
			v := agentOf(resp.GetAgent())
			return a.print(v, func() error { a.say("The agent %s is %s.", v.Name, done); return nil })
		}),
	}
}

func (a *app) agentsDrain() *cobra.Command {
	return &cobra.Command{
		Use: "drain NAME|ID", Short: "Ask an agent's processes to end: running streams finish first", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.agents().DrainAgent(ctx, &hubv1.DrainAgentRequest{Id: args[0]})
			if err != nil {
				return err
			}
			v := map[string]any{"agent": args[0], "replicas": resp.GetReplicas()}
			return a.print(v, func() error { a.say("%d processes of %s were told to end.", resp.GetReplicas(), args[0]); return nil })
		}),
	}
}
