package cli

import (
	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Effective settings, and whether they are valid"}
	print := &cobra.Command{Use: "print", Short: "Print the effective settings, secrets hidden"}
	validate := &cobra.Command{Use: "validate", Short: "Check the settings without starting anything"}
	for _, p := range []config.Program{config.ForServer, config.ForAgent} {
		print.AddCommand(a.configOf(p, "Print the effective settings of the "+p.String()+" and where each comes from", a.printSettings))
		validate.AddCommand(a.configOf(p, "Check the settings of the "+p.String(), a.validateSettings))
	}
	for _, verb := range []*cobra.Command{print, validate} {
		verb.Args = noArgs
		verb.RunE = func(cmd *cobra.Command, _ []string) error {
			return usageErrorf("say whose settings: `%[1]s server` or `%[1]s agent`", cmd.CommandPath())
		}
	}
	c.AddCommand(print, validate)
	return c
}

func (a *app) configOf(p config.Program, short string, run func(*config.Values) error) *cobra.Command {
	c := &cobra.Command{
		Use: p.String(), Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := a.load(cmd, p, "")
			if err != nil {
				return err
			}
			return run(v)
		},
	}
	config.Bind(c.Flags(), p)
	return c
}

func (a *app) printSettings(v *config.Values) error {
	lines := v.Lines()
	return a.print(lines, func() error {
		var rows [][]string
		for _, l := range lines {
			rows = append(rows, []string{l.Name, l.Value, l.Source, l.Env})
		}
		return a.table([]string{"SETTING", "VALUE", "FROM", "ENVIRONMENT"}, rows)
	})
}

func (a *app) validateSettings(v *config.Values) error {
	var err error
	if v.Program == config.ForAgent {
		err = validateAgent(v)
	} else {
		_, err = v.Server()
	}
	if err != nil {
		return usageError(err)
	}
	for _, w := range v.Warnings {
		a.warn("%s", w)
	}
	return a.print(struct {
		Valid    bool     `json:"valid"`
		Warnings []string `json:"warnings"`
	}{true, list(v.Warnings)}, func() error { a.say("The settings of the %s are valid.", v.Program); return nil })
}
