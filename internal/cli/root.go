// Package cli is the command line: one file per noun.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/telemetry"
)

// Env is the world around a command: what tests replace.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
}

// app is one run of the program.
type app struct {
	Env
	output string
	quiet  bool
}

// Main runs the program and returns its exit code.
func Main(args []string) int {
	return Run(context.Background(), args, Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()})
}

// Run runs one command line and returns its exit code.
func Run(ctx context.Context, args []string, env Env) int {
	a := &app{Env: env, output: outputTable}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	f := failureOf(err)
	if f.usage == "" && f.Exit == exitUsage && cmd != nil {
		f.usage = cmd.CommandPath()
	}
	a.printFailure(f, wantsJSON(args))
	return f.Exit
}

// wantsJSON finds the output format even where flags did not parse.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch {
		case arg == "-ojson", arg == "-o=json", arg == "--output=json":
			return true
		case (arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "adit",
		Short: "Give a service behind NAT a public address",
		Long: `Adit gives a service that nobody can reach from outside a public address,
guards that address, and keeps the service where it is.

Start with:  adit demo`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	pf := root.PersistentFlags()
	pf.StringVarP(&a.output, "output", "o", outputTable, "output of read commands: table, json or yaml")
	pf.BoolVarP(&a.quiet, "quiet", "q", false, "print only what was asked for")
	for _, name := range []string{"data-dir", "server-url", "ca-file"} {
		s := config.Lookup(name)
		pf.String(s.Name, s.DefaultText(), s.Help)
	}
	s := config.Lookup("api-key")
	pf.String("api-key", "", s.Help)
	pf.String("api-key-file", "", "file that holds what --api-key says; - is standard input")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch a.output {
		case outputTable, outputJSON, outputYAML:
			return nil
		}
		return usageErrorf("--output: %q is not possible; use table, json or yaml", a.output)
	}
	root.AddCommand(a.demoCommand(), a.serverCommand(), a.agentCommand(), a.exposeCommand(),
		a.inviteCommand(), a.tunnelCommand(), a.agentsCommand(), a.accessCommand(), a.policyCommand(), a.tenantCommand(), a.portCommand(), a.edgeCommand(),
		a.preflightCommand(), a.forwardCommand(), a.logsCommand(),
		a.eventsCommand(), a.problemsCommand(), a.noticeCommand(), a.trafficCommand(),
		a.userCommand(), a.keyCommand(), a.sessionCommand(), a.auditCommand(),
		a.loginCommand(), a.logoutCommand(), a.whoamiCommand(),
		a.doctorCommand(), a.configCommand(), a.versionCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(a.completionCommand(root))
	a.completeNames(root)
	for _, c := range root.Commands() {
		commandArgs(c)
	}
	return root
}

// commandArgs makes a missing or unknown subcommand a usage error everywhere.
func commandArgs(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usageErrorf("%q is not a command of `%s`; `%s --help` lists them", args[0], cmd.CommandPath(), cmd.CommandPath())
		}
	}
	for _, s := range c.Commands() {
		commandArgs(s)
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return usageErrorf("%q is not a command; `%s --help` lists them", args[0], cmd.CommandPath())
	}
	return usageErrorf("%q is one argument too many for `%s`", args[0], cmd.CommandPath())
}

// oneArg wants exactly one argument, named so in the error.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usageErrorf("%s is missing: %s", name, cmd.UseLine())
		case len(args) > 1:
			return usageErrorf("%q is one argument too many for `%s`", args[1], cmd.CommandPath())
		}
		return nil
	}
}

// load reads the settings of a program for cmd and says its warnings through warn.
func (a *app) load(cmd *cobra.Command, p config.Program, file string) (*config.Values, error) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		file = f.Value.String()
	}
	v, err := config.Load(config.Sources{Program: p, Flags: cmd.Flags(), Environ: a.Environ, File: file, Stdin: a.Stdin})
	if err != nil {
		return nil, usageError(err)
	}
	return v, nil
}

func (a *app) getenv(name string) string {
	for _, e := range a.Environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{telemetry.Version(), telemetry.GoVersion()}
			return a.print(v, func() error {
				_, err := fmt.Fprintf(a.Stdout, "adit %s (%s)\n", v.Version, v.Go)
				return err
			})
		},
	}
}

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a completion script: bash, zsh, fish or powershell",
		Args: oneArg("SHELL"), ValidArgs: shells,
		RunE: func(_ *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.Stdout)
			}
			return usageErrorf("%q is not a shell with completion; use %s", args[0], strings.Join(shells, ", "))
		},
	}
}
