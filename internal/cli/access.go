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

// accessView is an access as commands print it.
type accessView struct {
	Label    string     `json:"label,omitempty"`
	Access   string     `json:"access"`
	Require  string     `json:"require"`
	Policies []string   `json:"policies"`
	Rules    []ruleView `json:"rules"`
	Version  uint64     `json:"version"`
	Summary  string     `json:"summary"`
	Warnings []string   `json:"warnings,omitempty"`
}

type ruleView struct {
	ID        string     `json:"id"`
	Email     string     `json:"email,omitempty"`
	Domain    string     `json:"domain,omitempty"`
	Group     string     `json:"group,omitempty"`
	Provider  string     `json:"provider,omitempty"`
	From      []string   `json:"from,omitempty"`
	Public    bool       `json:"public,omitempty"`
	Paths     []string   `json:"paths,omitempty"`
	NotBefore *time.Time `json:"not_before,omitempty"`
	NotAfter  *time.Time `json:"not_after,omitempty"`
}

func accessOf(label string, a *hubv1.Access, version uint64, summary string) accessView {
	v := accessView{Label: label, Access: accessText(a.GetMode()), Require: a.GetRequire(), Policies: list(a.GetPolicies()), Rules: []ruleView{}, Version: version, Summary: summary}
	for _, r := range a.GetRules() {
		v.Rules = append(v.Rules, ruleView{ID: r.GetId(), Email: r.GetEmail(), Domain: r.GetDomain(), Group: r.GetGroup(), Provider: r.GetProvider(),
			From: r.GetFrom(), Public: r.GetPublic(), Paths: r.GetPaths(), NotBefore: when(r.GetNotBefore()), NotAfter: when(r.GetNotAfter())})
	}
	return v
}

// text is what a rule says, in one cell.
func (r ruleView) text() string {
	switch {
	case r.Public:
		return "public"
	case r.Email != "":
		return "email " + r.Email
	case r.Domain != "":
		return "domain " + r.Domain
	case r.Group != "":
		return "group " + r.Group
	}
	return "from " + strings.Join(r.From, " ")
}

func (a *app) printAccess(v accessView) error {
	for _, w := range v.Warnings {
		if a.output == outputTable {
			a.warn("%s", w)
		}
	}
	return a.print(v, func() error {
		if err := a.fields("tunnel", v.Label, "access", v.Access, "require", v.Require, "policies", strings.Join(v.Policies, " "), "who", v.Summary); err != nil || len(v.Rules) == 0 {
			return err
		}
		fmt.Fprintln(a.Stdout)
		var rows [][]string
		for _, r := range v.Rules {
			rows = append(rows, []string{r.ID, r.text(), r.Provider, strings.Join(r.Paths, " "), showTime(r.NotBefore), showTime(r.NotAfter)})
		}
		return a.table([]string{"RULE", "WHO", "PROVIDER", "PATHS", "FROM", "UNTIL"}, rows)
	})
}

// ruleFlags say rules; each of the first five is a rule of its own.
type ruleFlags struct {
	emails, domains, groups, from []string
	public                        bool
	provider, notBefore, notAfter string
	paths                         []string
}

func (f *ruleFlags) bind(c *cobra.Command) {
	s := c.Flags()
	s.StringArrayVar(&f.emails, "email", nil, "who a provider says is this e-mail address; repeatable")
	s.StringArrayVar(&f.domains, "domain", nil, "everybody with an e-mail address at this domain; repeatable")
	s.StringArrayVar(&f.groups, "group", nil, "everybody in this group of --provider; repeatable")
	s.StringArrayVar(&f.from, "from", nil, "only these networks (CIDR); repeatable")
	s.BoolVar(&f.public, "public", false, "anybody; with --path, below those paths")
	s.StringVar(&f.provider, "provider", "", "the sign-in provider that must say so")
	s.StringArrayVar(&f.paths, "path", nil, "the rules are about these path prefixes only; repeatable")
	s.StringVar(&f.notBefore, "not-before", "", "the rules begin: a duration (24h, 7d) or a time (RFC 3339)")
	s.StringVar(&f.notAfter, "expires", "", "the rules end: a duration (24h, 7d) or a time (RFC 3339)")
}

func (f *ruleFlags) rules() ([]*hubv1.AccessRule, error) {
	var out []*hubv1.AccessRule
	for _, e := range f.emails {
		out = append(out, &hubv1.AccessRule{Email: e, Provider: f.provider})
	}
	for _, d := range f.domains {
		out = append(out, &hubv1.AccessRule{Domain: d, Provider: f.provider})
	}
	for _, g := range f.groups {
		out = append(out, &hubv1.AccessRule{Group: g, Provider: f.provider})
	}
	if f.public {
		out = append(out, &hubv1.AccessRule{Public: true})
	}
	if len(f.from) > 0 {
		out = append(out, &hubv1.AccessRule{From: f.from})
	}
	for _, r := range out {
		r.Paths = f.paths
		for _, x := range []struct {
			flag, text string
			set        func(*timestamppb.Timestamp)
		}{{"not-before", f.notBefore, func(t *timestamppb.Timestamp) { r.NotBefore = t }}, {"expires", f.notAfter, func(t *timestamppb.Timestamp) { r.NotAfter = t }}} {
			if x.text == "" {
				continue
			}
			t, err := parseWhen(x.text, time.Now())
			if err != nil {
				return nil, usageErrorf("--%s: %w", x.flag, err)
			}
			x.set(timestamppb.New(t))
		}
	}
	return out, nil
}

func (a *app) accessCommand() *cobra.Command {
	c := &cobra.Command{Use: "access", Short: "Who may visit a managed tunnel"}
	c.AddCommand(&cobra.Command{
		Use: "list LABEL", Short: "Show who gets in, and the rules with their ids", Args: oneArg("LABEL"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			r, err := c.access().GetAccess(ctx, &hubv1.GetAccessRequest{Label: args[0]})
			if err != nil {
				return err
			}
			return a.printAccess(accessOf(args[0], r.GetAccess(), r.GetVersion(), r.GetSummary()))
		}),
	}, a.accessAdd(), &cobra.Command{
		Use: "remove LABEL RULE", Short: "Remove a rule by its id", Args: twoArgs("LABEL", "RULE"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			r, err := c.access().RemoveAccessRule(ctx, &hubv1.RemoveAccessRuleRequest{Label: args[0], RuleId: args[1]})
			if err != nil {
				return err
			}
			return a.printAccess(accessOf(args[0], r.GetAccess(), r.GetVersion(), r.GetSummary()))
		}),
	}, a.accessReplace())
	return c
}

// twoArgs wants exactly two arguments, named so in the error.
func twoArgs(first, second string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usageErrorf("%s is missing: %s", first, cmd.UseLine())
		case len(args) == 1:
			return usageErrorf("%s is missing: %s", second, cmd.UseLine())
		case len(args) > 2:
			return usageErrorf("%q is one argument too many for `%s`", args[2], cmd.CommandPath())
		}
		return nil
	}
}

func (a *app) accessAdd() *cobra.Command {
	f := &ruleFlags{}
	c := &cobra.Command{
		Use: "add LABEL", Short: "Add rules; a public tunnel is protected from then on", Args: oneArg("LABEL"),
		Example: "  adit access add app --email me@example.com\n  adit access add app --from 192.0.2.0/24",
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			rules, err := f.rules()
			if err != nil {
				return err
			}
			if len(rules) == 0 {
				return usageErrorf("name at least one of --email, --domain, --group, --from and --public")
			}
			var r *hubv1.AddAccessRuleResponse
			for _, rule := range rules {
				if r, err = c.access().AddAccessRule(ctx, &hubv1.AddAccessRuleRequest{Label: args[0], Rule: rule}); err != nil {
					return err
				}
			}
			return a.printAccess(accessOf(args[0], r.GetAccess(), r.GetVersion(), r.GetSummary()))
		}),
	}
	f.bind(c)
	return c
}

func (a *app) accessReplace() *cobra.Command {
	f := &ruleFlags{}
	var mode, auth, require string
	var policies []string
	var version uint64
	c := &cobra.Command{
		Use: "replace LABEL", Short: "Replace the whole access: mode, rules and policies", Args: oneArg("LABEL"),
		Example: "  adit access replace app --access public\n  adit access replace app --policy staff --from 192.0.2.0/24",
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			m, err := exposeFlags{access: mode, auth: auth}.mode()
			if err != nil {
				return usageErrorf("%w", err)
			}
			x, err := accessMode(m)
			if err != nil {
				return err
			}
			x.Require, x.Policies = require, policies
			if x.Rules, err = f.rules(); err != nil {
				return err
			}
			r, err := c.access().SetAccess(ctx, &hubv1.SetAccessRequest{Label: args[0], Access: x, Version: version})
			if err != nil {
				return err
			}
			v := accessOf(args[0], r.GetAccess(), r.GetVersion(), r.GetSummary())
			v.Warnings = r.GetWarnings()
			return a.printAccess(v)
		}),
	}
	f.bind(c)
	c.Flags().StringVar(&mode, "access", "", "public, or protected (default)")
	c.Flags().StringVar(&auth, "auth", "", "alias of --access: none = public, sso = protected")
	c.Flags().StringVar(&require, "require", "", "how rules combine: any (default) or all")
	c.Flags().StringArrayVar(&policies, "policy", nil, "a policy that admits, too; repeatable")
	c.Flags().Uint64Var(&version, "version", 0, "replace this version only, as access list shows it")
	return c
}
