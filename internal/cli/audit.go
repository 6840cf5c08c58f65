package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// auditEntry is one row of the audit as it is exported.
type auditEntry struct {
	ID      uint64          `json:"id"`
	At      time.Time       `json:"at"`
	Who     string          `json:"who"`
	What    string          `json:"what"`
	Subject string          `json:"subject"`
	From    string          `json:"from"`
	Result  string          `json:"result"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

func auditView(e *hubv1.AuditEntry) auditEntry {
	v := auditEntry{ID: e.GetId(), At: e.GetAt().AsTime(), Who: e.GetWho(), What: e.GetWhat(), Subject: e.GetSubject(), From: e.GetFrom(), Result: e.GetResult()}
	switch {
	case json.Valid([]byte(e.GetDetail())):
		v.Detail = json.RawMessage(e.GetDetail())
	case e.GetDetail() != "":
		// It was too long and cut.
		v.Detail, _ = json.Marshal(e.GetDetail())
	}
	return v
}

func (a *app) auditCommand() *cobra.Command {
	req := &hubv1.ListAuditRequest{}
	var since, until string
	var limit int
	c := &cobra.Command{
		Use: "audit", Short: "Show who did what, newest first", Args: noArgs,
		Long: `Show who did what, from where, and how it ended, newest first: every change and
every failed sign-in of the last year. With -o json each row is a line of its own,
so that the whole audit can be exported:  adit audit --limit 0 -o json > audit.ndjson`,
		PreRunE: func(*cobra.Command, []string) error {
			for _, t := range []struct {
				flag, text string
				to         **timestamppb.Timestamp
			}{{"since", since, &req.Since}, {"until", until, &req.Until}} {
				if t.text == "" {
					continue
				}
				at, err := parsePast(t.text, time.Now())
				if err != nil {
					return usageErrorf("--%s: %w", t.flag, err)
				}
				*t.to = timestamppb.New(at)
			}
			if limit < 0 {
				return usageErrorf("--limit: %d is negative; give 0 for all rows", limit)
			}
			return nil
		},
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error { return a.audit(ctx, c, req, limit) }),
	}
	f := c.Flags()
	f.StringVar(&req.Who, "who", "", "only of this caller, e.g. alice, key:ci@alice")
	f.StringVar(&req.What, "what", "", "only this procedure, e.g. TunnelService/CreateTunnel, sign_in")
	f.StringVar(&req.Subject, "subject", "", "only where this is part of the subject")
	f.StringVar(&since, "since", "", "only since: a duration before now (24h, 7d) or a time (RFC 3339)")
	f.StringVar(&until, "until", "", "only until: as --since")
	f.IntVar(&limit, "limit", 100, "most rows; 0 = all")
	return c
}

// audit prints page by page: an export is larger than memory should be.
func (a *app) audit(ctx context.Context, c *client, req *hubv1.ListAuditRequest, limit int) error {
	all := []auditEntry{}
	left := limit
	err := pages(func(token string) (string, error) {
		req.PageToken, req.PageSize = token, 1000
		if limit > 0 {
			req.PageSize = uint32(min(left, 1000))
		}
		resp, err := c.audit().ListAudit(ctx, req)
		if err != nil {
			return "", err
		}
		for _, e := range resp.GetEntries() {
			v := auditView(e)
			if a.output == outputJSON {
				if err := a.line(v); err != nil {
					return "", err
				}
				continue
			}
			all = append(all, v)
		}
		if left -= len(resp.GetEntries()); limit > 0 && left <= 0 {
			return "", nil
		}
		return resp.GetNextPageToken(), nil
	})
	if err != nil || a.output == outputJSON {
		return err
	}
	return a.print(all, func() error {
		var rows [][]string
		for _, e := range all {
			rows = append(rows, []string{e.At.Local().Format("2006-01-02 15:04:05"), e.Who, e.What, e.Subject, e.From, e.Result})
		}
		return a.table([]string{"AT", "WHO", "WHAT", "SUBJECT", "FROM", "RESULT"}, rows)
	})
}

// line writes one line of JSON.
func (a *app) line(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// parsePast reads a duration before now (days, too) or a time.
func parsePast(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days+".", "%d.", &n); err == nil && n > 0 && n < 36500 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q is neither a duration nor a time; write for example 24h, 7d or 2026-01-31T12:00:00Z", s)
}
