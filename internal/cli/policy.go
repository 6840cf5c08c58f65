package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// policyView is a policy as commands print it.
type policyView struct {
	Name string `json:"name"`
	accessView
	UsedBy []string `json:"used_by"`
}

func policyOf(p *hubv1.Policy) policyView {
	return policyView{Name: p.GetName(), accessView: accessOf("", p.GetAccess(), p.GetVersion(), p.GetSummary()), UsedBy: list(p.GetUsedBy())}
}

func (a *app) printPolicy(v policyView) error {
	return a.print(v, func() error {
		if err := a.fields("policy", v.Name, "used by", strings.Join(v.UsedBy, " ")); err != nil {
			return err
		}
		return a.printAccess(v.accessView)
	})
}

func (a *app) policyCommand() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Named rules that several tunnels use"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List policies", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			all := []policyView{}
			err := pages(func(token string) (string, error) {
				resp, err := c.policies().ListPolicies(ctx, &hubv1.ListPoliciesRequest{PageToken: token})
				if err != nil {
					return "", err
				}
				for _, p := range resp.GetPolicies() {
					all = append(all, policyOf(p))
				}
				return resp.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, p := range all {
					rows = append(rows, []string{p.Name, p.Summary, strconv.Itoa(len(p.UsedBy))})
				}
				return a.table([]string{"NAME", "WHO", "TUNNELS"}, rows)
			})
		}),
	}, &cobra.Command{
		Use: "get NAME", Short: "Show one policy and the tunnels that use it", Args: oneArg("NAME"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.policies().GetPolicy(ctx, &hubv1.GetPolicyRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return a.printPolicy(policyOf(resp.GetPolicy()))
		}),
	}, a.policySet(), &cobra.Command{
		Use: "delete NAME", Short: "Delete a policy that no tunnel uses", Args: oneArg("NAME"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.policies().DeletePolicy(ctx, &hubv1.DeletePolicyRequest{Name: args[0]}); err != nil {
				return err
			}
			return a.print(map[string]string{"deleted": args[0]}, func() error { a.say("The policy %s is deleted.", args[0]); return nil })
		}),
	})
	return c
}

func (a *app) policySet() *cobra.Command {
	f := &ruleFlags{}
	var require string
	var version uint64
	c := &cobra.Command{
		Use: "set NAME", Short: "Make or replace a policy", Args: oneArg("NAME"),
		Example: "  adit policy set staff --domain example.com --provider google",
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			rules, err := f.rules()
			if err != nil {
				return err
			}
			resp, err := c.policies().SetPolicy(ctx, &hubv1.SetPolicyRequest{Policy: &hubv1.Policy{Name: args[0], Version: version,
				Access: &hubv1.Access{Require: require, Rules: rules}}})
			if err != nil {
				return err
			}
			return a.printPolicy(policyOf(resp.GetPolicy()))
		}),
	}
	f.bind(c)
	c.Flags().StringVar(&require, "require", "", "how rules combine: any (default) or all")
	c.Flags().Uint64Var(&version, "version", 0, "replace this version only, as policy get shows it")
	return c
}
