package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (a *app) inviteSet() *cobra.Command {
	to := &hubv1.Invite{Grant: &hubv1.Grant{}}
	var tcp, udp []string
	var expires string
	c := &cobra.Command{
		Use: "set NAME|ID", Short: "Change what an invite may claim, and how long; grants are replaced as a whole", Args: oneArg("NAME or ID"),
		Example: "  adit invite set home --hostname app.example.com --hostname '*.lab.example.com'\n  adit invite set home --max-replicas 2",
	}
	c.RunE = a.call(func(ctx context.Context, cl *client, args []string) (err error) {
		var fields []string
		note := func(field string, flags ...string) bool {
			for _, f := range flags {
				if c.Flags().Changed(f) {
					fields = append(fields, field)
					return true
				}
			}
			return false
		}
		if note("grant", "hostname", "tcp-port", "udp-port") {
			if to.Grant.TcpPorts, err = parsePorts("tcp-port", tcp); err != nil {
				return err
			}
			if to.Grant.UdpPorts, err = parsePorts("udp-port", udp); err != nil {
				return err
			}
		}
		if note("expires_at", "expires") && expires != "never" {
			t, err := parseWhen(expires, time.Now())
			if err != nil {
				return usageErrorf("--expires: %w", err)
			}
			to.ExpiresAt = timestamppb.New(t)
		}
		note("expires_sessions", "expires-sessions")
		note("max_replicas", "max-replicas")
		note("from", "from")
		if len(fields) == 0 {
			return usageErrorf("nothing to change: name at least one setting, as --max-replicas 2")
		}
		resp, err := cl.invites().UpdateInvite(ctx, &hubv1.UpdateInviteRequest{Id: args[0], Invite: to, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
		if err != nil {
			return err
		}
		return a.printInvite(inviteView(resp.GetInvite()))
	})
	f := c.Flags()
	f.StringArrayVar(&to.Grant.Hostnames, "hostname", nil, "hostname it may claim: exact, *.x (one label) or **.x; repeatable")
	f.StringArrayVar(&tcp, "tcp-port", nil, "TCP port P or range A-B it may claim; repeatable")
	f.StringArrayVar(&udp, "udp-port", nil, "UDP port P or range A-B it may claim; repeatable")
	f.StringVar(&expires, "expires", "", "when new replicas stop being accepted: a duration (720h, 30d), a time (RFC 3339), or never")
	f.BoolVar(&to.ExpiresSessions, "expires-sessions", false, "running sessions end at expiry, too")
	f.Uint32Var(&to.MaxReplicas, "max-replicas", 0, "most replicas at a time; 0 = any number")
	f.StringArrayVar(&to.From, "from", nil, "network agents may come from (CIDR); repeatable")
	return c
}

func (a *app) inviteRotate() *cobra.Command {
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate NAME|ID", Short: "Make a new token with the same grants; the old one works on for a while", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.invites().RotateInvite(ctx, &hubv1.RotateInviteRequest{Id: args[0], Overlap: durationpb.New(overlap)})
			if err != nil {
				return err
			}
			v := inviteView(resp.GetInvite())
			v.Token, v.OldTokenExpiresAt = resp.GetToken(), when(resp.GetOldExpiresAt())
			return a.printToken(v, v.Token, "The invite "+v.Name+" has a new token.",
				"Put it into the agents' token files; running agents take it over.\nThe old token ends at "+showTime(v.OldTokenExpiresAt)+".")
		}),
	}
	c.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old token works on, at most 720h")
	return c
}
