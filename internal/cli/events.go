package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// event is an event as commands print it.
type event struct {
	ID         string            `json:"id"`
	At         time.Time         `json:"at"`
	Kind       string            `json:"kind"`
	Severity   string            `json:"severity"`
	Subject    string            `json:"subject"`
	Text       string            `json:"text"`
	Reason     string            `json:"reason"`
	Attributes map[string]string `json:"attributes"`
}

func eventView(e *hubv1.Event) event {
	return event{ID: strconv.FormatUint(e.GetId(), 10), At: e.GetAt().AsTime(), Kind: e.GetKind(), Severity: e.GetSeverity(), Subject: e.GetSubject(),
		Text: e.GetText(), Reason: e.GetReason(), Attributes: e.GetAttributes()}
}

func (e event) row() []string {
	return []string{e.At.Local().Format(time.DateTime), e.Severity, e.Kind, e.Subject, e.Text}
}

var eventHead = []string{"AT", "SEVERITY", "KIND", "SUBJECT", "TEXT"}

func (a *app) eventsCommand() *cobra.Command {
	var kind, subject, severity string
	var since time.Duration
	var limit int
	var follow bool
	c := &cobra.Command{
		Use: "events", Short: "What happened: agents that came and went, certificates, lock-outs", Args: noArgs,
		Long: `Prints events, the oldest first. With --follow it goes on with new ones until Ctrl-C;
with -o json each event is one line then.`,
	}
	f := c.Flags()
	f.StringVar(&kind, "kind", "", "only events of this kind, as agent_offline")
	f.StringVar(&subject, "subject", "", "only events whose subject contains this, as agent/home")
	f.StringVar(&severity, "severity", "", "info, warning or error: this severity and above")
	f.DurationVar(&since, "since", 0, "only events of this last time, as 24h (default: all that are kept)")
	f.IntVarP(&limit, "lines", "n", 100, "at most this many, the newest")
	f.BoolVarP(&follow, "follow", "f", false, "go on with new ones")
	c.RunE = a.call(func(ctx context.Context, c *client, _ []string) error {
		if limit < 1 || limit > 1000 {
			return usageErrorf("--lines: %d is not possible; use 1 to 1000", limit)
		}
		r := &hubv1.ListEventsRequest{PageSize: uint32(limit), Kind: kind, Subject: subject, Severity: severity}
		if since > 0 {
			r.Since = timestamppb.New(time.Now().Add(-since))
		}
		resp, err := c.events().ListEvents(ctx, r)
		if err != nil {
			return err
		}
		all := []event{}
		for i := len(resp.GetEvents()) - 1; i >= 0; i-- {
			all = append(all, eventView(resp.GetEvents()[i]))
		}
		if !follow {
			return a.print(all, func() error {
				var rows [][]string
				for _, e := range all {
					rows = append(rows, e.row())
				}
				return a.table(eventHead, rows)
			})
		}
		return a.followEvents(ctx, c, all, r)
	})
	return c
}

// followEvents prints events and then new ones as they happen.
func (a *app) followEvents(ctx context.Context, c *client, all []event, r *hubv1.ListEventsRequest) error {
	var last uint64
	show := func(e event) {
		if id, err := strconv.ParseUint(e.ID, 10, 64); err == nil {
			last = max(last, id)
		}
		if a.output == outputTable {
			row := e.row()
			fmt.Fprintf(a.Stdout, "%s  %-7s  %s  %s %s\n", row[0], row[1], row[2], row[3], row[4])
			return
		}
		_ = json.NewEncoder(a.Stdout).Encode(e)
	}
	for _, e := range all {
		show(e)
	}
	stream, err := c.events().WatchEvents(ctx, &hubv1.WatchEventsRequest{AfterId: last, Severity: r.GetSeverity()})
	if err != nil {
		return explainCall(err, c.where)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		for _, e := range stream.Msg().GetEvents() {
			if v := eventView(e); (r.GetKind() == "" || r.GetKind() == v.Kind) && strings.Contains(strings.ToLower(v.Subject), strings.ToLower(r.GetSubject())) {
				show(v)
			}
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return explainCall(stream.Err(), c.where)
}

// problem is something that is wrong now, as commands print it.
type problem struct {
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"`
	Subject  string    `json:"subject"`
	Text     string    `json:"text"`
	Reason   string    `json:"reason"`
	Remedy   string    `json:"remedy"`
	Since    time.Time `json:"since"`
}

func (a *app) problemsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "problems", Short: "What is wrong now, and what to do about it", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.events().ListProblems(ctx, &hubv1.ListProblemsRequest{})
			if err != nil {
				return err
			}
			all := []problem{}
			for _, p := range resp.GetProblems() {
				all = append(all, problem{Kind: p.GetKind(), Severity: p.GetSeverity(), Subject: p.GetSubject(), Text: p.GetText(), Reason: p.GetReason(),
					Remedy: p.GetRemedy(), Since: p.GetSince().AsTime()})
			}
			return a.print(all, func() error {
				if len(all) == 0 {
					a.say("Nothing is wrong.")
					return nil
				}
				var rows [][]string
				for _, p := range all {
					rows = append(rows, []string{p.Subject, p.Severity, p.Since.Local().Format(time.DateTime), p.Text, p.Remedy})
				}
				return a.table([]string{"SUBJECT", "SEVERITY", "SINCE", "WHAT", "REMEDY"}, rows)
			})
		}),
	}
}
