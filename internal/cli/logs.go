package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// logLine is one line of an agent's log as commands print it.
type logLine struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
}

func (a *app) logsCommand() *cobra.Command {
	var lines uint32
	var follow bool
	c := &cobra.Command{
		Use: "logs AGENT", Short: "Show the log of a running agent", Args: oneArg("AGENT"),
		Long: `Shows the last lines of an agent's log, without secrets. With --follow it goes on with new ones until
Ctrl-C; with -o json each line is an object of its own.`,
		Example: `  adit logs home -f`,
		RunE: a.call(func(parent context.Context, c *client, args []string) error {
			ctx, _, stop := lifetime(parent)
			defer stop()
			stream, err := c.agents().Logs(ctx, &hubv1.LogsRequest{Agent: args[0], Lines: lines, Follow: follow})
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			for first := true; stream.Receive(); first = false {
				if stream.Msg().GetTruncated() && !first {
					a.warn("lines are missing here: more came than the agent keeps, or it was started again")
				}
				for _, l := range stream.Msg().GetLines() {
					if err := a.printLogLine(logLine{l.GetAt().AsTime(), l.GetLevel(), l.GetText()}); err != nil {
						return err
					}
				}
			}
			if ctx.Err() != nil || errors.Is(stream.Err(), context.Canceled) {
				return nil
			}
			return explainCall(stream.Err(), c.where)
		}),
	}
	f := c.Flags()
	f.Uint32VarP(&lines, "lines", "n", 200, "begin with this many of the last lines, 1 to 500")
	f.BoolVarP(&follow, "follow", "f", false, "go on with new lines")
	return c
}

func (a *app) printLogLine(l logLine) error {
	if a.output == outputJSON {
		return json.NewEncoder(a.Stdout).Encode(l)
	}
	_, err := fmt.Fprintf(a.Stdout, "%s %-5s %s\n", l.At.Local().Format(time.DateTime), l.Level, l.Text)
	return err
}
