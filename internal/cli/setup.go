package cli

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func (a *app) setupLinkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "setup-link", Short: "Make a new link with which the first owner makes their account", Args: noArgs,
		Long: `Makes a new set-up link, on the server's own host. It works once, for 24 hours, and only
while the hub has no owner.`,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			r, err := c.users().CreateSetupLink(ctx, &hubv1.CreateSetupLinkRequest{})
			if err != nil {
				return err
			}
			v := struct {
				URL       string    `json:"url"`
				ExpiresAt time.Time `json:"expires_at"`
			}{r.GetUrl(), r.GetExpiresAt().AsTime()}
			return a.print(v, func() error {
				return a.fields("link", v.URL, "until", v.ExpiresAt.Local().Format(time.DateTime))
			})
		}),
	}
}

// demoUser is the owner of the demo's hub.
const demoUser = "demo"

// signInLink makes the demo's owner, where there is none yet, and a link that signs them in.
func signInLink(ctx context.Context, c *client) (string, error) {
	_, err := c.users().InviteUser(ctx, &hubv1.InviteUserRequest{Name: demoUser, Role: "owner"})
	if err != nil && connect.CodeOf(err) != connect.CodeAlreadyExists {
		return "", err
	}
	r, err := c.users().CreateSignInLink(ctx, &hubv1.CreateSignInLinkRequest{Id: demoUser})
	return r.GetUrl(), err
}
