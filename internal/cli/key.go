package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// key is one API key as commands print it.
type key struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	User         string     `json:"user"`
	Operator     bool       `json:"operator"`
	Scopes       []string   `json:"scopes"`
	Hosts        []string   `json:"hosts"`
	Prefix       string     `json:"prefix"`
	CreatedAt    *time.Time `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at"`
	LastUsedAt   *time.Time `json:"last_used_at"`
	LastUsedFrom string     `json:"last_used_from"`
	// Token is shown once, when the key is created.
	Token string `json:"token,omitempty"`
}

func keyView(k *hubv1.Key) key {
	return key{ID: k.GetId(), Name: k.GetName(), User: k.GetUser(), Operator: k.GetOperator(), Scopes: list(k.GetScopes()), Hosts: list(k.GetHosts()),
		Prefix: k.GetPrefix(), CreatedAt: when(k.GetCreatedAt()), ExpiresAt: when(k.GetExpiresAt()), LastUsedAt: when(k.GetLastUsedAt()), LastUsedFrom: k.GetLastUsedFrom()}
}

// may says what a key is limited to.
func (k key) may() string {
	what := "all its user may"
	switch {
	case k.Operator:
		what = "operator"
	case len(k.Scopes) > 0:
		what = strings.Join(k.Scopes, " ")
	}
	if len(k.Hosts) > 0 {
		what += " on " + strings.Join(k.Hosts, " ")
	}
	return what
}

func (a *app) keyCommand() *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "API keys for scripts, and keys for operators"}
	c.AddCommand(a.keyCreate(), a.keyList(), a.keyDelete())
	return c
}

func (a *app) keyCreate() *cobra.Command {
	req := &hubv1.CreateKeyRequest{}
	var expires, operator string
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Make an API key; it is shown once", Args: cobra.MaximumNArgs(1),
		Long: `Make an API key: it may what its user may, less with --scope and --host. It ends
after 90 days unless --expires says otherwise. It needs a sign-in of the last ten
minutes ("adit login"), or the server's own host with --user.

With --operator NAME it makes the key that a Kubernetes operator starts with
instead; that one belongs to nobody and does not end unless --expires says so.`,
		Example: "  adit key create ci --scope tunnels:write --host '*.ci.example.com'\n  adit key create --operator cluster-1",
		PreRunE: func(_ *cobra.Command, args []string) error {
			switch {
			case operator != "" && len(args) == 1:
				return usageErrorf("the operator's key is named by --operator %s; leave %q away", operator, args[0])
			case operator != "":
				req.Operator, req.Name = true, operator
			case len(args) == 1:
				req.Name = args[0]
			default:
				return usageErrorf("NAME is missing; it is how you will know the key later")
			}
			if expires != "" {
				t, err := parseWhen(expires, time.Now())
				if err != nil {
					return usageErrorf("--expires: %w", err)
				}
				req.ExpiresAt = timestamppb.New(t)
			}
			return nil
		},
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.keys().CreateKey(ctx, req)
			if err != nil {
				return err
			}
			v := keyView(resp.GetKey())
			v.Token = resp.GetToken()
			return a.print(v, func() error {
				if a.quiet {
					_, err := fmt.Fprintln(a.Stdout, v.Token)
					return err
				}
				use := "Put it into a file and set ADIT_API_KEY_FILE to that."
				if v.Operator {
					use = "Put it into the Secret that the operator's chart names."
				}
				_, err := fmt.Fprintf(a.Stdout, "Key %s: %s.\n\n%s\n\nThe key is shown only now. %s\n", v.Name, v.may(), v.Token, use)
				return err
			})
		}),
	}
	f := c.Flags()
	f.StringArrayVar(&req.Scopes, "scope", nil, "what the key may: tunnels, agents, invites, access, certs or audit with :read or :write, or forward; repeatable (default all its user may)")
	f.StringArrayVar(&req.Hosts, "host", nil, "host pattern that writes are limited to; repeatable")
	f.StringVar(&expires, "expires", "", "when it ends: a duration (720h, 30d) or a time (RFC 3339)")
	f.StringVar(&operator, "operator", "", "make an operator's key of this name")
	f.StringVar(&req.User, "user", "", "whose key (default your own; owners only)")
	return c
}

func (a *app) keyList() *cobra.Command {
	var everybody bool
	c := &cobra.Command{
		Use: "list", Short: "List API keys", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []key{}
			err := pages(func(token string) (string, error) {
				resp, err := c.keys().ListKeys(ctx, &hubv1.ListKeysRequest{PageToken: token, All: everybody})
				if err != nil {
					return "", err
				}
				for _, k := range resp.GetKeys() {
					all = append(all, keyView(k))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, k := range all {
					rows = append(rows, []string{k.Name, k.User, k.may(), showTime(k.ExpiresAt), showTime(k.LastUsedAt), k.LastUsedFrom, k.ID})
				}
				return a.table([]string{"NAME", "USER", "MAY", "EXPIRES", "LAST USED", "FROM", "ID"}, rows)
			})
		}),
	}
	c.Flags().BoolVar(&everybody, "all", false, "keys of everybody; for owners and admins")
	return c
}

func (a *app) keyDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID", Short: "End a key at once", Args: oneArg("NAME or ID"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.keys().DeleteKey(ctx, &hubv1.DeleteKeyRequest{Id: args[0]}); err != nil {
				return err
			}
			return a.print(struct {
				Deleted string `json:"deleted"`
			}{args[0]}, func() error { a.say("Key %s has ended.", args[0]); return nil })
		}),
	}
}
