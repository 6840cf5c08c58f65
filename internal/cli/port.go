package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/config"
)

// port is one claim on public ports as commands print it.
type port struct {
	Kind     string `json:"kind"`
	Port     uint32 `json:"port"`
	PortLast uint32 `json:"port_last"`
	Tenant   string `json:"tenant"`
	Source   string `json:"source"`
	TunnelID string `json:"tunnel_id"`
	Problem  string `json:"problem"`
}

func portView(p *hubv1.Port) port {
	v := port{Kind: kindText(p.GetKind()), Port: p.GetFirst(), PortLast: p.GetLast(), Tenant: p.GetTenant(), Source: p.GetSource(),
		TunnelID: p.GetTunnelId(), Problem: p.GetProblem()}
	v.PortLast = max(v.PortLast, v.Port)
	return v
}

func (p port) label() string { return p.Kind + ":" + rangeText(p.Port, p.PortLast) }

// parsePort reads tcp:PORT, udp:PORT or a range; a bare tcp or udp means any free port.
func parsePort(s string) (kind wirev1.Kind, first, last uint32, err error) {
	name, num, hasPort := strings.Cut(s, ":")
	switch name {
	case "tcp":
		kind = wirev1.Kind_KIND_TCP
	case "udp":
		kind = wirev1.Kind_KIND_UDP
	default:
		return 0, 0, 0, usageErrorf("%q is not a port; write tcp:PORT or udp:PORT", s)
	}
	if !hasPort {
		return kind, 0, 0, nil
	}
	rs, err := config.ParsePorts(num)
	if err != nil || len(rs) != 1 {
		return 0, 0, 0, usageErrorf("%q is not a port; write tcp:PORT or udp:PORT, or a range as udp:A-B", s)
	}
	if rs[0].First != rs[0].Last {
		last = uint32(rs[0].Last)
	}
	return kind, uint32(rs[0].First), last, nil
}

func (a *app) portCommand() *cobra.Command {
	c := &cobra.Command{Use: "port", Short: "Public TCP and UDP ports"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List ports that are reserved, granted or in use", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []port{}
			err := pages(func(token string) (string, error) {
				resp, err := c.ports().ListPorts(ctx, &hubv1.ListPortsRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, p := range resp.GetPorts() {
					all = append(all, portView(p))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, p := range all {
					rows = append(rows, []string{p.label(), p.Source, p.Tenant, p.TunnelID, p.Problem})
				}
				return a.table([]string{"PORT", "BY", "TENANT", "TUNNEL", "PROBLEM"}, rows)
			})
		}),
	}, a.portReserve(), &cobra.Command{
		Use: "release tcp:PORT|udp:PORT", Short: "Give up a reservation", Args: oneArg("tcp:PORT or udp:PORT"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			kind, first, _, err := parsePort(args[0])
			if err != nil {
				return err
			}
			if first == 0 {
				return usageErrorf("%q names no port; write for example %s:%d", args[0], args[0], 2222)
			}
			if _, err := c.ports().ReleasePort(ctx, &hubv1.ReleasePortRequest{Kind: kind, Port: first}); err != nil {
				return err
			}
			a.say("Port %s:%s is released.", kindText(kind), strconv.Itoa(int(first)))
			return nil
		}),
	})
	return c
}

func (a *app) portReserve() *cobra.Command {
	var tenant string
	c := &cobra.Command{
		Use: "reserve tcp[:PORT]|udp[:PORT]", Short: "Keep a port (without PORT: any free one) for a tenant", Args: oneArg("tcp[:PORT] or udp[:PORT]"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			kind, first, last, err := parsePort(args[0])
			if err != nil {
				return err
			}
			resp, err := c.ports().ReservePort(ctx, &hubv1.ReservePortRequest{Kind: kind, Port: first, Last: last, Tenant: tenant})
			if err != nil {
				return err
			}
			p := portView(resp.GetPort())
			return a.print(p, func() error { a.say("Port %s is reserved for tenant %s.", p.label(), p.Tenant); return nil })
		}),
	}
	c.Flags().StringVar(&tenant, "tenant", "", "tenant that owns it (default \"default\")")
	return c
}
