package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// user is one user as commands print it.
type user struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	DisplayName  string     `json:"display_name"`
	Email        string     `json:"email"`
	Role         string     `json:"role"`
	State        string     `json:"state"`
	CreatedAt    *time.Time `json:"created_at"`
	LastSignInAt *time.Time `json:"last_sign_in_at"`
	// SignsInWith are password and the names of providers.
	SignsInWith []string `json:"signs_in_with"`
	// URL is a one-time link, shown once.
	URL       string     `json:"url,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

func userView(u *hubv1.User) user {
	v := user{ID: u.GetId(), Name: u.GetName(), DisplayName: u.GetDisplayName(), Email: u.GetEmail(), Role: u.GetRole(), State: "active",
		CreatedAt: when(u.GetCreatedAt()), LastSignInAt: when(u.GetLastSignInAt()), SignsInWith: []string{}}
	switch {
	case u.GetDisabled():
		v.State = "disabled"
	case u.GetPending():
		v.State = "invited"
	}
	if u.GetHasPassword() {
		v.SignsInWith = append(v.SignsInWith, "password")
	}
	for _, i := range u.GetIdentities() {
		v.SignsInWith = append(v.SignsInWith, i.GetProvider())
	}
	return v
}

func (a *app) userCommand() *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "People who may sign in: list, invite, change"}
	c.AddCommand(a.userList(), a.userGet(), a.userInvite(), a.userSet(), a.userDisable(), a.userDelete(), a.userReset())
	return c
}

func (a *app) userList() *cobra.Command {
	var filter string
	c := &cobra.Command{
		Use: "list", Short: "List users", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []user{}
			err := pages(func(token string) (string, error) {
				resp, err := c.users().ListUsers(ctx, &hubv1.ListUsersRequest{PageToken: token, Filter: filter})
				if err != nil {
					return "", err
				}
				for _, u := range resp.GetUsers() {
					all = append(all, userView(u))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, u := range all {
					rows = append(rows, []string{u.Name, u.Role, u.State, u.Email, strings.Join(u.SignsInWith, " "), showTime(u.LastSignInAt)})
				}
				return a.table([]string{"NAME", "ROLE", "STATE", "E-MAIL", "SIGNS IN WITH", "LAST SIGN-IN"}, rows)
			})
		}),
	}
	c.Flags().StringVar(&filter, "filter", "", "part of name or e-mail")
	return c
}

func (a *app) printUser(v user) error {
	return a.print(v, func() error {
		return a.fields("id", v.ID, "name", v.Name, "display name", v.DisplayName, "e-mail", v.Email, "role", v.Role, "state", v.State,
			"signs in with", strings.Join(v.SignsInWith, " "), "created", showTime(v.CreatedAt), "last sign-in", showTime(v.LastSignInAt))
	})
}

func (a *app) userGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME|ID", Short: "Show one user", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.users().GetUser(ctx, &hubv1.GetUserRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return a.printUser(userView(resp.GetUser()))
		}),
	}
}

func (a *app) userInvite() *cobra.Command {
	req := &hubv1.InviteUserRequest{}
	c := &cobra.Command{
		Use: "invite NAME", Short: "Make a one-time link with which somebody makes their account", Args: oneArg("NAME"),
		Example: "  adit user invite alice --role admin",
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			req.Name = args[0]
			resp, err := c.users().InviteUser(ctx, req)
			if err != nil {
				return err
			}
			v := userView(resp.GetUser())
			v.URL, v.ExpiresAt = resp.GetUrl(), when(resp.GetExpiresAt())
			return a.printLink(v, fmt.Sprintf("%s is invited as %s. Send this link; it works once:", v.Name, v.Role))
		}),
	}
	c.Flags().StringVar(&req.Role, "role", "viewer", "owner, admin, viewer or visitor")
	c.Flags().StringVar(&req.Email, "email", "", "e-mail address; a provider that vouches for it may be used to sign in")
	return c
}

// printLink shows a one-time link.
func (a *app) printLink(v user, sentence string) error {
	return a.print(v, func() error {
		if a.quiet {
			_, err := fmt.Fprintln(a.Stdout, v.URL)
			return err
		}
		_, err := fmt.Fprintf(a.Stdout, "%s\n\n%s\n\nIt is shown only now and ends at %s.\n", sentence, v.URL, showTime(v.ExpiresAt))
		return err
	})
}

func (a *app) userSet() *cobra.Command {
	var role, display string
	var disabled bool
	c := &cobra.Command{
		Use: "set NAME|ID", Short: "Change role or display name, disable or enable; a change of role ends sign-ins", Args: oneArg("NAME or ID"),
	}
	c.RunE = a.call(func(ctx context.Context, cl *client, args []string) error {
		req := &hubv1.UpdateUserRequest{Id: args[0]}
		f := c.Flags()
		if f.Changed("role") {
			req.Role = &role
		}
		if f.Changed("display-name") {
			req.DisplayName = &display
		}
		if f.Changed("disabled") {
			req.Disabled = &disabled
		}
		if req.Role == nil && req.DisplayName == nil && req.Disabled == nil {
			return usageErrorf("nothing to change; give --role, --display-name or --disabled")
		}
		resp, err := cl.users().UpdateUser(ctx, req)
		if err != nil {
			return err
		}
		return a.printUser(userView(resp.GetUser()))
	})
	c.Flags().StringVar(&role, "role", "", "owner, admin, viewer or visitor")
	c.Flags().StringVar(&display, "display-name", "", "name as others see it")
	c.Flags().BoolVar(&disabled, "disabled", false, "may not sign in; false enables again")
	return c
}

func (a *app) userDisable() *cobra.Command {
	return &cobra.Command{
		Use: "disable NAME|ID", Short: "End all sign-ins and keys of a user until enabled again", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			yes := true
			resp, err := c.users().UpdateUser(ctx, &hubv1.UpdateUserRequest{Id: args[0], Disabled: &yes})
			if err != nil {
				return err
			}
			v := userView(resp.GetUser())
			return a.print(v, func() error { a.say("%s is disabled.", v.Name); return nil })
		}),
	}
}

func (a *app) userDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID", Short: "Delete a user with sign-ins and keys; their tunnels become yours", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.users().DeleteUser(ctx, &hubv1.DeleteUserRequest{Id: args[0]}); err != nil {
				return err
			}
			return a.print(struct {
				Deleted string `json:"deleted"`
			}{args[0]}, func() error { a.say("%s is deleted.", args[0]); return nil })
		}),
	}
}

func (a *app) userReset() *cobra.Command {
	return &cobra.Command{
		Use: "reset NAME|ID", Short: "Make a one-time link that sets a new password; on the server's host only", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.users().ResetUser(ctx, &hubv1.ResetUserRequest{Id: args[0]})
			if err != nil {
				return err
			}
			v := user{Name: args[0], URL: resp.GetUrl(), ExpiresAt: when(resp.GetExpiresAt()), SignsInWith: []string{}}
			return a.printLink(v, "With this link "+args[0]+" sets a new password; it works once:")
		}),
	}
}
