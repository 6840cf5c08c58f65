package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// tenantView is one tenant as commands print it.
type tenantView struct {
	Name    string     `json:"name"`
	Invites uint32     `json:"invites"`
	Tunnels uint32     `json:"tunnels"`
	Held    []heldView `json:"held"`
}

type heldView struct {
	Name  string     `json:"name"`
	Until *time.Time `json:"until"`
}

func (a *app) tenantCommand() *cobra.Command {
	c := &cobra.Command{Use: "tenant", Short: "Who owns names and ports"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List tenants, with names they keep after a tunnel was deleted", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []tenantView{}
			err := pages(func(token string) (string, error) {
				resp, err := c.tenants().ListTenants(ctx, &hubv1.ListTenantsRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, t := range resp.GetTenants() {
					v := tenantView{Name: t.GetName(), Invites: t.GetInvites(), Tunnels: t.GetTunnels(), Held: []heldView{}}
					for _, h := range t.GetHeld() {
						v.Held = append(v.Held, heldView{h.GetName(), when(h.GetUntil())})
					}
					all = append(all, v)
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, t := range all {
					var held []string
					for _, h := range t.Held {
						held = append(held, h.Name+" until "+showTime(h.Until))
					}
					rows = append(rows, []string{t.Name, strconv.Itoa(int(t.Invites)), strconv.Itoa(int(t.Tunnels)), strings.Join(held, ", ")})
				}
				return a.table([]string{"NAME", "TOKENS", "TUNNELS", "KEPT NAMES"}, rows)
			})
		}),
	}, &cobra.Command{
		Use: "release NAME", Short: "Give up a name that a tenant keeps after its tunnel was deleted", Args: oneArg("NAME"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.tenants().ReleaseName(ctx, &hubv1.ReleaseNameRequest{Name: args[0]}); err != nil {
				return err
			}
			return a.print(map[string]string{"released": args[0]}, func() error { a.say("The name %s is free.", args[0]); return nil })
		}),
	})
	return c
}
