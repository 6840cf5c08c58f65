package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// noticeTarget is where events go, as commands print it.
type noticeTarget struct {
	Name         string     `json:"name"`
	Webhook      string     `json:"webhook_url"`
	SMTP         string     `json:"smtp_url"`
	From         string     `json:"mail_from"`
	To           []string   `json:"mail_to"`
	Kinds        []string   `json:"kinds"`
	Disabled     bool       `json:"disabled"`
	LastError    string     `json:"last_error"`
	LastDelivery *time.Time `json:"last_delivery_at"`
}

func noticeTargetView(t *hubv1.NoticeTarget) noticeTarget {
	v := noticeTarget{Name: t.GetName(), Webhook: t.GetWebhookUrl(), SMTP: t.GetSmtpUrl(), From: t.GetMailFrom(), To: t.GetMailTo(), Kinds: t.GetKinds(),
		Disabled: t.GetDisabled(), LastError: t.GetLastError()}
	if t.GetLastDeliveryAt() != nil {
		at := t.GetLastDeliveryAt().AsTime()
		v.LastDelivery = &at
	}
	return v
}

func (t noticeTarget) row() []string {
	where := t.Webhook
	if t.SMTP != "" {
		where = strings.Join(t.To, ", ")
	}
	state := "ok"
	switch {
	case t.Disabled:
		state = "disabled"
	case t.LastError != "":
		state = t.LastError
	}
	last := ""
	if t.LastDelivery != nil {
		last = t.LastDelivery.Local().Format(time.DateTime)
	}
	return []string{t.Name, where, strings.Join(t.Kinds, ","), last, state}
}

func (a *app) noticeCommand() *cobra.Command {
	c := &cobra.Command{Use: "notice", Short: "Where events are sent: webhooks and e-mail"}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List the targets", Args: noArgs,
		RunE: a.call(func(ctx context.Context, c *client, _ []string) error {
			resp, err := c.notices().ListNoticeTargets(ctx, &hubv1.ListNoticeTargetsRequest{})
			if err != nil {
				return err
			}
			all := []noticeTarget{}
			for _, t := range resp.GetTargets() {
				all = append(all, noticeTargetView(t))
			}
			return a.print(all, func() error {
				var rows [][]string
				for _, t := range all {
					rows = append(rows, t.row())
				}
				return a.table([]string{"NAME", "TO", "KINDS", "LAST DELIVERY", "STATE"}, rows)
			})
		}),
	}, a.noticeSet(), &cobra.Command{
		Use: "test NAME", Short: "Send a test event to a target now", Args: oneArg("NAME"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			resp, err := c.notices().TestNoticeTarget(ctx, &hubv1.TestNoticeTargetRequest{Name: args[0]})
			if err != nil {
				return err
			}
			if resp.GetError() != "" {
				return failWith(exitFailed, "not_delivered", "check its address, and that the server may reach it", "%s", resp.GetError())
			}
			a.say("%s took a test event.", args[0])
			return nil
		}),
	}, &cobra.Command{
		Use: "delete NAME", Short: "Remove a target", Args: oneArg("NAME"),
		RunE: a.call(func(ctx context.Context, c *client, args []string) error {
			if _, err := c.notices().DeleteNoticeTarget(ctx, &hubv1.DeleteNoticeTargetRequest{Name: args[0]}); err != nil {
				return err
			}
			a.say("%s gets no events any more.", args[0])
			return nil
		}),
	})
	return c
}

func (a *app) noticeSet() *cobra.Command {
	t := &hubv1.NoticeTarget{}
	var secretFile, passwordFile string
	c := &cobra.Command{
		Use: "set NAME", Short: "Make or replace a target", Args: oneArg("NAME"),
		Example: `  adit notice set pager --webhook https://hooks.example.com/adit --webhook-secret-file secret
  adit notice set mail --smtp smtp://mail.example.com:587 --smtp-user adit --smtp-password-file pw --from adit@example.com --to you@example.com`,
	}
	f := c.Flags()
	f.StringVar(&t.WebhookUrl, "webhook", "", "https address that events are posted to as JSON (http to a private address)")
	f.StringVar(&secretFile, "webhook-secret-file", "", "file with the secret that signs the posts (Adit-Signature); - is standard input")
	f.StringVar(&t.SmtpUrl, "smtp", "", "mail server: smtp://HOST:587 (STARTTLS) or smtps://HOST:465")
	f.StringVar(&t.SmtpUser, "smtp-user", "", "user of the mail server")
	f.StringVar(&passwordFile, "smtp-password-file", "", "file with that user's password; - is standard input")
	f.StringVar(&t.MailFrom, "from", "", "sender of the e-mails")
	f.StringSliceVar(&t.MailTo, "to", nil, "recipients")
	f.StringSliceVar(&t.Kinds, "kind", nil, "kinds of events (default: agent_offline, agent_online, replica_new, certificate_failing, locked_out)")
	f.BoolVar(&t.Disabled, "disabled", false, "keep it, but send nothing")
	c.RunE = a.call(func(ctx context.Context, c *client, args []string) error {
		t.Name = args[0]
		var err error
		if t.WebhookSecret, err = a.readSecret("webhook-secret-file", secretFile); err != nil {
			return err
		}
		if t.SmtpPassword, err = a.readSecret("smtp-password-file", passwordFile); err != nil {
			return err
		}
		resp, err := c.notices().SetNoticeTarget(ctx, &hubv1.SetNoticeTargetRequest{Target: t})
		if err != nil {
			return err
		}
		v := noticeTargetView(resp.GetTarget())
		return a.print(v, func() error {
			a.say("%s gets events from now on. Try it with: adit notice test %s", v.Name, v.Name)
			return nil
		})
	})
	return c
}
