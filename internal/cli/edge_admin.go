package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// edgeInviteView is one token of edges as commands print it.
type edgeInviteView struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	MaxEdges  uint32     `json:"max_edges"`
	Edges     uint32     `json:"edges"`
	CreatedAt *time.Time `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
}

func (a *app) edgeInvites() *cobra.Command {
	return &cobra.Command{
		Use: "invites", Short: "List the tokens with which edges join", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []edgeInviteView{}
			err := pages(func(token string) (string, error) {
				resp, err := c.edges().ListEdgeInvites(ctx, &hubv1.ListEdgeInvitesRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, i := range resp.GetInvites() {
					all = append(all, edgeInviteView{i.GetId(), i.GetName(), i.GetMaxEdges(), i.GetEdges(), when(i.GetCreatedAt()), when(i.GetExpiresAt())})
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, i := range all {
					most := "any"
					if i.MaxEdges > 0 {
						most = strconv.Itoa(int(i.MaxEdges))
					}
					rows = append(rows, []string{i.Name, strconv.Itoa(int(i.Edges)), most, showTime(i.ExpiresAt), i.ID})
				}
				return a.table([]string{"NAME", "EDGES", "AT MOST", "EXPIRES", "ID"}, rows)
			})
		}),
	}
}

func (a *app) edgeRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME|ID", Short: "End a token of edges: its edges are removed", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.edges().RevokeEdgeInvite(ctx, &hubv1.RevokeEdgeInviteRequest{Id: args[0]}); err != nil {
				return err
			}
			return a.print(map[string]string{"revoked": args[0]}, func() error { a.say("The token %s is revoked.", args[0]); return nil })
		}),
	}
}

func (a *app) edgeDrain() *cobra.Command {
	var undo bool
	c := &cobra.Command{
		Use: "drain ID", Short: "Take an edge out of service: agents go to the others", Args: oneArg("ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.edges().DrainEdge(ctx, &hubv1.DrainEdgeRequest{Id: args[0], Undo: undo})
			if err != nil {
				return err
			}
			v := edgeOf(resp.GetEdge())
			return a.print(v, func() error {
				if undo {
					a.say("The edge %s is in service again.", v.ID)
				} else {
					a.say("The edge %s is taken out of service; --undo ends that.", v.ID)
				}
				return nil
			})
		}),
	}
	c.Flags().BoolVar(&undo, "undo", false, "put it back into service")
	return c
}

func (a *app) edgeRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove ID", Short: "Forget an edge: its key is refused from then on", Args: oneArg("ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.edges().RemoveEdge(ctx, &hubv1.RemoveEdgeRequest{Id: args[0]}); err != nil {
				return err
			}
			return a.print(map[string]string{"removed": args[0]}, func() error { a.say("The edge %s is removed.", args[0]); return nil })
		}),
	}
}
