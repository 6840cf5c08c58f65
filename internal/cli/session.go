package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// signIn is one sign-in as commands print it.
type signIn struct {
	ID         string     `json:"id"`
	User       string     `json:"user"`
	Method     string     `json:"method"`
	Address    string     `json:"address"`
	Client     string     `json:"client"`
	CreatedAt  *time.Time `json:"created_at"`
	LastSeenAt *time.Time `json:"last_seen_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
}

func (a *app) sessionCommand() *cobra.Command {
	c := &cobra.Command{Use: "session", Short: "Sign-ins of browsers and tools: list, end"}
	c.AddCommand(a.sessionList(), a.sessionRevoke())
	return c
}

func (a *app) sessionList() *cobra.Command {
	var who string
	c := &cobra.Command{
		Use: "list", Short: "List sign-ins", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []signIn{}
			err := pages(func(token string) (string, error) {
				resp, err := c.sessions().ListSessions(ctx, &hubv1.ListSessionsRequest{PageToken: token, User: who})
				if err != nil {
					return "", err
				}
				for _, s := range resp.GetSessions() {
					all = append(all, signIn{ID: s.GetId(), User: s.GetUser(), Method: s.GetMethod(), Address: s.GetAddress(), Client: s.GetUserAgent(),
						CreatedAt: when(s.GetCreatedAt()), LastSeenAt: when(s.GetLastSeenAt()), ExpiresAt: when(s.GetExpiresAt())})
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, s := range all {
					rows = append(rows, []string{s.ID, s.User, s.Method, s.Address, showTime(s.CreatedAt), showTime(s.LastSeenAt), s.Client})
				}
				return a.table([]string{"ID", "USER", "WITH", "FROM", "SINCE", "LAST SEEN", "CLIENT"}, rows)
			})
		}),
	}
	c.Flags().StringVar(&who, "user", "", "whose: a user, or * for everybody; for owners (default your own)")
	return c
}

func (a *app) sessionRevoke() *cobra.Command {
	req := &hubv1.RevokeSessionRequest{}
	c := &cobra.Command{
		Use: "revoke [ID]", Short: "End one sign-in, or with --user all of a user", Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				req.Id = args[0]
			}
			if (req.GetId() == "") == (req.GetUser() == "") {
				return usageErrorf("give the ID of a sign-in, or --user to end all of a user")
			}
			return nil
		},
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.sessions().RevokeSession(ctx, req)
			if err != nil {
				return err
			}
			return a.print(struct {
				Revoked uint32 `json:"revoked"`
			}{resp.GetRevoked()}, func() error { a.say("%d sign-ins have ended.", resp.GetRevoked()); return nil })
		}),
	}
	c.Flags().StringVar(&req.User, "user", "", "end all sign-ins of this user")
	return c
}
