package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/config"
)

// invite is one invite as commands print it.
type invite struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	Tenant          string     `json:"tenant"`
	State           string     `json:"state"`
	Hostnames       []string   `json:"hostnames"`
	TCPPorts        []string   `json:"tcp_ports"`
	UDPPorts        []string   `json:"udp_ports"`
	Replicas        uint32     `json:"replicas"`
	MaxReplicas     uint32     `json:"max_replicas"`
	From            []string   `json:"from"`
	CreatedAt       *time.Time `json:"created_at"`
	ExpiresAt       *time.Time `json:"expires_at"`
	ExpiresSessions bool       `json:"expires_sessions"`
	RevokedAt       *time.Time `json:"revoked_at"`
	// OldTokenExpiresAt is when a token that was rotated out ends.
	OldTokenExpiresAt *time.Time `json:"old_token_expires_at,omitempty"`
	// Token is shown once, when the invite is created or rotated.
	Token string `json:"token,omitempty"`
}

func when(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	v := t.AsTime()
	return &v
}

// showTime is t for a table; empty for none.
func showTime(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04")
}

// list is never null in JSON.
func list(in []string) []string { return append([]string{}, in...) }

func portTexts(in []*hubv1.PortRange) []string {
	out := make([]string, len(in))
	for i, r := range in {
		out[i] = rangeText(r.GetFirst(), r.GetLast())
	}
	return out
}

func rangeText(first, last uint32) string {
	if last <= first {
		return strconv.Itoa(int(first))
	}
	return fmt.Sprintf("%d-%d", first, last)
}

func inviteView(i *hubv1.Invite) invite {
	v := invite{ID: i.GetId(), Name: i.GetName(), Tenant: i.GetTenant(), State: "active", Hostnames: list(i.GetGrant().GetHostnames()),
		TCPPorts: portTexts(i.GetGrant().GetTcpPorts()), UDPPorts: portTexts(i.GetGrant().GetUdpPorts()),
		Replicas: i.GetReplicas(), MaxReplicas: i.GetMaxReplicas(), From: list(i.GetFrom()), CreatedAt: when(i.GetCreatedAt()),
		ExpiresAt: when(i.GetExpiresAt()), ExpiresSessions: i.GetExpiresSessions(), RevokedAt: when(i.GetRevokedAt())}
	switch {
	case v.RevokedAt != nil:
		v.State = "revoked"
	case v.ExpiresAt != nil && !time.Now().Before(*v.ExpiresAt):
		v.State = "expired"
	}
	return v
}

// grants is what an invite allows, in one cell.
func (i invite) grants() string {
	all := slices.Clone(i.Hostnames)
	for _, p := range i.TCPPorts {
		all = append(all, "tcp:"+p)
	}
	for _, p := range i.UDPPorts {
		all = append(all, "udp:"+p)
	}
	return strings.Join(all, " ")
}

func (a *app) printInvite(v invite) error {
	return a.print(v, func() error {
		replicas := strconv.Itoa(int(v.Replicas))
		if v.MaxReplicas > 0 {
			replicas += " of at most " + strconv.Itoa(int(v.MaxReplicas))
		}
		return a.fields("id", v.ID, "name", v.Name, "tenant", v.Tenant, "state", v.State, "may claim", v.grants(), "replicas", replicas,
			"from", strings.Join(v.From, " "), "created", showTime(v.CreatedAt), "expires", showTime(v.ExpiresAt), "revoked", showTime(v.RevokedAt))
	})
}

func (a *app) inviteCommand() *cobra.Command {
	c := &cobra.Command{Use: "invite", Short: "Tokens for agents: what they may claim"}
	c.AddCommand(a.inviteCreate(), a.inviteList(), a.inviteGet(), a.inviteSet(), a.inviteRotate(), a.inviteRevoke())
	return c
}

func (a *app) inviteCreate() *cobra.Command {
	var req hubv1.CreateInviteRequest
	var tcp, udp []string
	var expires string
	c := &cobra.Command{
		Use: "create", Short: "Make an invite token; it is shown once", Args: noArgs,
		Example: "  adit invite create --name home --hostname '*.example.com' --tcp-port 2222 --udp-port 3478",
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.invites().CreateInvite(ctx, &req)
			if err != nil {
				return err
			}
			v := inviteView(resp.GetInvite())
			v.Token = resp.GetToken()
			return a.print(v, func() error {
				if a.quiet {
					_, err := fmt.Fprintln(a.Stdout, v.Token)
					return err
				}
				_, err := fmt.Fprintf(a.Stdout, "Invite %s of tenant %s may claim: %s\n\n%s\n\nThe token is shown only now. Put it into a file on the agent's host, then:\n\n  adit agent --token-file FILE\n",
					v.Name, v.Tenant, v.grants(), v.Token)
				return err
			})
		}),
	}
	f := c.Flags()
	f.StringVar(&req.Name, "name", "", "name of the invite (required)")
	f.StringArrayVar(&req.Hostnames, "hostname", nil, "hostname it may claim: exact, *.x (one label) or **.x; repeatable")
	f.StringArrayVar(&tcp, "tcp-port", nil, "TCP port P or range A-B it may claim; repeatable")
	f.StringArrayVar(&udp, "udp-port", nil, "UDP port P or range A-B it may claim; repeatable")
	f.StringVar(&req.Tenant, "tenant", "", "existing tenant to add it to (default a new one, named like the invite)")
	f.StringVar(&expires, "expires", "", "when new replicas stop being accepted: a duration (720h, 30d) or a time (RFC 3339)")
	f.BoolVar(&req.ExpiresSessions, "expires-sessions", false, "running sessions end at expiry, too")
	f.Uint32Var(&req.MaxReplicas, "max-replicas", 0, "most replicas at a time; 0 = any number")
	f.StringArrayVar(&req.From, "from", nil, "network agents may come from (CIDR); repeatable")
	c.PreRunE = func(*cobra.Command, []string) error {
		if req.Name == "" {
			return usageErrorf("--name is required; it is how you will know the invite later")
		}
		var err error
		if req.TcpPorts, err = parsePorts("tcp-port", tcp); err != nil {
			return err
		}
		if req.UdpPorts, err = parsePorts("udp-port", udp); err != nil {
			return err
		}
		if len(req.Hostnames)+len(tcp)+len(udp) == 0 {
			return usageErrorf("an invite without --hostname, --tcp-port or --udp-port allows nothing; name at least one")
		}
		if expires != "" {
			t, err := parseWhen(expires, time.Now())
			if err != nil {
				return usageErrorf("--expires: %w", err)
			}
			req.ExpiresAt = timestamppb.New(t)
		}
		return nil
	}
	return c
}

func parsePorts(flag string, in []string) ([]*hubv1.PortRange, error) {
	rs, err := config.ParsePorts(strings.Join(in, ","))
	if err != nil {
		return nil, usageErrorf("--%s: %w", flag, err)
	}
	out := make([]*hubv1.PortRange, len(rs))
	for i, r := range rs {
		out[i] = &hubv1.PortRange{First: uint32(r.First), Last: uint32(r.Last)}
	}
	return out, nil
}

// parseWhen reads a duration from now on (days, too) or a time.
func parseWhen(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 36500 {
			return now.AddDate(0, 0, n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		if !t.After(now) {
			return t, fmt.Errorf("%q is in the past; give a later time", s)
		}
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%q is neither a duration nor a time; write for example 720h, 30d or 2030-01-31T12:00:00Z", s)
}

func (a *app) inviteList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List invites", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []invite{}
			err := pages(func(token string) (string, error) {
				resp, err := c.invites().ListInvites(ctx, &hubv1.ListInvitesRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, i := range resp.GetInvites() {
					all = append(all, inviteView(i))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, i := range all {
					rows = append(rows, []string{i.Name, i.Tenant, i.State, strconv.Itoa(int(i.Replicas)), i.grants(), showTime(i.ExpiresAt), i.ID})
				}
				return a.table([]string{"NAME", "TENANT", "STATE", "REPLICAS", "MAY CLAIM", "EXPIRES", "ID"}, rows)
			})
		}),
	}
}

func (a *app) inviteGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME|ID", Short: "Show one invite", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.invites().GetInvite(ctx, &hubv1.GetInviteRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return a.printInvite(inviteView(resp.GetInvite()))
		}),
	}
}

func (a *app) inviteRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME|ID", Short: "End an invite: its agents are cut off within seconds", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.invites().RevokeInvite(ctx, &hubv1.RevokeInviteRequest{Id: args[0]})
			if err != nil {
				return err
			}
			v := inviteView(resp.GetInvite())
			return a.print(v, func() error { a.say("Invite %s is revoked.", v.Name); return nil })
		}),
	}
}
