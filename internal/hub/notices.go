package hub

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// maxNoticeTargets caps the targets of a hub, maxRecipients those of one e-mail.
const (
	maxNoticeTargets = 100
	maxRecipients    = 50
)

// usualNotices are the kinds that a target without kinds gets.
var usualNotices = []string{EventAgentOffline, EventAgentOnline, EventReplicaNew, EventCertificateFailing, EventLockedOut}

var targetName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

func noticePurpose(name string) string { return "notice target " + name }

// ListNoticeTargets returns all targets, without secrets.
func (h *Hub) ListNoticeTargets(ctx context.Context) ([]*hubv1.NoticeTarget, error) {
	var rows []*store.NoticeTarget
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.NoticeTargets(); return err }); err != nil {
		return nil, err
	}
	out := make([]*hubv1.NoticeTarget, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = noticeTargetOf(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func noticeTargetOf(r *store.NoticeTarget) (*hubv1.NoticeTarget, error) {
	t := &hubv1.NoticeTarget{}
	if err := proto.Unmarshal(r.Spec, t); err != nil {
		return nil, fmt.Errorf("notice target %s: %w", r.Name, err)
	}
	t.LastError = r.LastError
	if r.LastDelivery != 0 {
		t.LastDeliveryAt = stamp(r.LastDelivery)
	}
	return t, nil
}

// SetNoticeTarget makes or replaces a target. Secrets that are empty stay as they were, as long as
// they go to the same host.
func (h *Hub) SetNoticeTarget(ctx context.Context, t *hubv1.NoticeTarget) (*hubv1.NoticeTarget, error) {
	if err := checkNoticeTarget(t); err != nil {
		return nil, err
	}
	secrets := &hubv1.NoticeTarget{WebhookSecret: t.GetWebhookSecret(), SmtpPassword: t.GetSmtpPassword()}
	spec := proto.CloneOf(t)
	spec.WebhookSecret, spec.SmtpPassword, spec.LastError, spec.LastDeliveryAt = "", "", "", nil
	raw, err := proto.Marshal(spec)
	if err != nil {
		return nil, err
	}
	row := &store.NoticeTarget{Name: t.GetName(), Spec: raw}
	err = h.write(ctx, func(tx *store.Tx) error {
		all, err := tx.NoticeTargets()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(o *store.NoticeTarget) bool { return o.Name == row.Name })
		if i < 0 && len(all) >= maxNoticeTargets {
			return invalid("target.name", t.GetName(), "delete one that is not needed", "is one more than the %d targets a hub may have", maxNoticeTargets)
		}
		if row.Cursor, err = tx.LastEventID(); err != nil {
			return err
		}
		if i >= 0 {
			row.Cursor, row.LastDelivery = all[i].Cursor, all[i].LastDelivery
			if err := h.keepSecrets(all[i], spec, secrets); err != nil {
				return err
			}
		}
		if spec.GetSmtpUser() != "" && secrets.GetSmtpPassword() == "" {
			return invalid("target.smtp_password", "", "give the password of "+spec.GetSmtpUser(), "is empty")
		}
		if row.Secrets, err = h.sealNotice(row.Name, secrets); err != nil {
			return err
		}
		return tx.PutNoticeTarget(row)
	})
	if err != nil {
		return nil, err
	}
	return noticeTargetOf(row)
}

// keepSecrets fills in what was left empty from the row before. A secret never follows to another
// host: who changes the address gives it again.
func (h *Hub) keepSecrets(old *store.NoticeTarget, spec, secrets *hubv1.NoticeTarget) error {
	before, err := noticeTargetOf(old)
	if err != nil {
		return err
	}
	kept, err := h.openNotice(old)
	if err != nil {
		return err
	}
	if secrets.WebhookSecret == "" && sameHost(before.GetWebhookUrl(), spec.GetWebhookUrl()) {
		secrets.WebhookSecret = kept.GetWebhookSecret()
	}
	if secrets.SmtpPassword == "" && sameHost(before.GetSmtpUrl(), spec.GetSmtpUrl()) && before.GetSmtpUser() == spec.GetSmtpUser() {
		secrets.SmtpPassword = kept.GetSmtpPassword()
	}
	return nil
}

func sameHost(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX == nil && errY == nil && x.Host != "" && x.Host == y.Host && x.Scheme == y.Scheme
}

func (h *Hub) sealNotice(name string, secrets *hubv1.NoticeTarget) ([]byte, error) {
	raw, err := proto.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	return h.sealer.Seal(noticePurpose(name), raw)
}

func (h *Hub) openNotice(r *store.NoticeTarget) (*hubv1.NoticeTarget, error) {
	raw, err := h.sealer.Open(noticePurpose(r.Name), r.Secrets)
	if err != nil {
		return nil, fmt.Errorf("secrets of notice target %s: %w", r.Name, err)
	}
	t := &hubv1.NoticeTarget{}
	return t, proto.Unmarshal(raw, t)
}

// DeleteNoticeTarget removes a target.
func (h *Hub) DeleteNoticeTarget(ctx context.Context, name string) error {
	err := h.write(ctx, func(tx *store.Tx) error { return tx.DeleteNoticeTarget(name) })
	if errors.Is(err, store.ErrNotFound) {
		return notFound("notice target", name, "list them with adit notice list")
	}
	return err
}

// TestNoticeTarget sends a test event to a target now; failed is why it was not delivered.
func (h *Hub) TestNoticeTarget(ctx context.Context, name string) (failed, err error) {
	var row *store.NoticeTarget
	err = h.store.Read(ctx, func(tx *store.Tx) (err error) { row, err = tx.NoticeTarget(name); return err })
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound("notice target", name, "list them with adit notice list")
	}
	if err != nil {
		return nil, err
	}
	now := h.cfg.Now()
	return h.deliver(ctx, row, &hubv1.Event{
		Id: uint64(now.UnixMicro()), At: stamp(now.UnixMilli()), Kind: EventTest, Severity: SeverityInfo, Subject: "notice/" + name,
		Text: "is a test of the notices of this hub",
	}), nil
}

func checkNoticeTarget(t *hubv1.NoticeTarget) error {
	if !targetName.MatchString(t.GetName()) {
		return invalid("target.name", t.GetName(), "use 1 to 63 of a-z, 0-9, \".\", \"_\" and \"-\"", "is no name")
	}
	for i, k := range t.GetKinds() {
		if !slices.Contains(eventKinds, k) {
			return invalid(fmt.Sprintf("target.kinds[%d]", i), k, "use some of "+strings.Join(eventKinds, ", "), "is no kind of event")
		}
	}
	switch {
	case t.GetWebhookUrl() != "" && t.GetSmtpUrl() != "":
		return invalid("target.smtp_url", t.GetSmtpUrl(), "make two targets", "cannot be set beside webhook_url")
	case t.GetWebhookUrl() != "":
		return checkWebhook(t)
	case t.GetSmtpUrl() != "":
		return checkMail(t)
	}
	return invalid("target.webhook_url", "", "set webhook_url, or smtp_url with mail_from and mail_to", "is empty")
}

func checkWebhook(t *hubv1.NoticeTarget) error {
	u, err := url.Parse(t.GetWebhookUrl())
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return invalid("target.webhook_url", t.GetWebhookUrl(), "give https://HOST/PATH", "is no address of a webhook")
	}
	if u.User != nil {
		return invalid("target.webhook_url", u.Redacted(), "leave user and password out; the receiver can check Adit-Signature", "holds a password")
	}
	if t.GetMailFrom() != "" || len(t.GetMailTo()) > 0 || t.GetSmtpUser() != "" || t.GetSmtpPassword() != "" {
		return invalid("target.mail_to", strings.Join(t.GetMailTo(), ","), "leave the fields of e-mail empty", "does not go with webhook_url")
	}
	return nil
}

func checkMail(t *hubv1.NoticeTarget) error {
	u, err := url.Parse(t.GetSmtpUrl())
	if err != nil || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Hostname() == "" || u.Path != "" || u.User != nil {
		return invalid("target.smtp_url", t.GetSmtpUrl(), "give smtp://HOST:587 or smtps://HOST:465, the user in smtp_user", "is no address of a mail server")
	}
	if t.GetWebhookSecret() != "" {
		return invalid("target.webhook_secret", "", "leave it empty", "does not go with smtp_url")
	}
	if _, err := mail.ParseAddress(t.GetMailFrom()); err != nil {
		return invalid("target.mail_from", t.GetMailFrom(), "give an address, as adit@example.com", "is no e-mail address")
	}
	if n := len(t.GetMailTo()); n == 0 || n > maxRecipients {
		return invalid("target.mail_to", fmt.Sprint(n), fmt.Sprintf("give 1 to %d addresses", maxRecipients), "is no number of recipients")
	}
	for i, a := range t.GetMailTo() {
		if _, err := mail.ParseAddress(a); err != nil {
			return invalid(fmt.Sprintf("target.mail_to[%d]", i), a, "give an address, as you@example.com", "is no e-mail address")
		}
	}
	return nil
}

const (
	// noticeStep is how often targets are looked at when nothing happens.
	noticeStep = 2 * time.Second
	// noticeLife is how long an event is tried; after that the next one has its turn.
	noticeLife = 24 * time.Hour
	// noticeClaim is how long one hub has for a delivery before another one tries.
	noticeClaim = time.Minute
	// noticePatience is how many failures in a row are a problem.
	noticePatience = 3
)

// sendNotices delivers what happened to the targets until ctx ends.
func (h *Hub) sendNotices(ctx context.Context) {
	// scanned is up to which event a target has nothing to get.
	scanned := map[string]int64{}
	t := time.NewTicker(noticeStep)
	defer t.Stop()
	for {
		more := h.happened.wait()
		if !h.Leads() {
			clear(scanned)
		} else if err := h.notify(ctx, scanned); err != nil && ctx.Err() == nil {
			h.log.Error("notices not sent, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		case <-t.C:
		}
	}
}

func (h *Hub) notify(ctx context.Context, scanned map[string]int64) error {
	var rows []*store.NoticeTarget
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.NoticeTargets(); return err }); err != nil {
		return err
	}
	for _, row := range rows {
		for ctx.Err() == nil {
			sent, err := h.notifyOne(ctx, row, scanned)
			if err != nil {
				return err
			}
			if !sent {
				break
			}
		}
	}
	return nil
}

// notifyOne sends the next event to a target. It reports whether there may be more.
func (h *Hub) notifyOne(ctx context.Context, row *store.NoticeTarget, scanned map[string]int64) (more bool, err error) {
	target, err := noticeTargetOf(row)
	if err != nil || target.GetDisabled() || h.cfg.Now().UnixMilli() < row.NextTry {
		return false, err
	}
	e, err := h.nextNotice(ctx, row, target, scanned)
	if e == nil || err != nil {
		return false, err
	}
	claimed := false
	err = h.store.Write(ctx, func(tx *store.Tx) error {
		now, err := tx.NoticeTarget(row.Name)
		if err != nil {
			return err
		}
		if claimed = now.Cursor == row.Cursor && now.NextTry == row.NextTry; !claimed {
			return nil // another hub has it
		}
		*row = *now
		row.NextTry = tx.Now.Add(noticeClaim).UnixMilli()
		return tx.PutNoticeTarget(row)
	})
	if err != nil || !claimed {
		return false, ignoreNotFound(err)
	}
	failed := h.deliver(ctx, row, e)
	if ctx.Err() != nil {
		return false, ctx.Err() // the claim runs out, and the event is sent again
	}
	h.settle(row, e, failed)
	err = h.store.Write(ctx, func(tx *store.Tx) error {
		// Somebody may have changed it meanwhile: only how the delivery went is written.
		now, err := tx.NoticeTarget(row.Name)
		if err != nil {
			return err
		}
		now.Cursor, now.NextTry, now.Tries, now.LastError, now.LastDelivery = row.Cursor, row.NextTry, row.Tries, row.LastError, row.LastDelivery
		return tx.PutNoticeTarget(now)
	})
	return failed == nil, ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// nextNotice is the next event that the target wants; nil if there is none.
func (h *Hub) nextNotice(ctx context.Context, row *store.NoticeTarget, target *hubv1.NoticeTarget, scanned map[string]int64) (*hubv1.Event, error) {
	kinds := target.GetKinds()
	if len(kinds) == 0 {
		kinds = usualNotices
	}
	for {
		var rows []store.Event
		err := h.store.Read(ctx, func(tx *store.Tx) (err error) {
			rows, err = tx.Events(store.EventFilter{Before: -1, After: max(row.Cursor, scanned[row.Name]), Limit: defaultPage, OldestFirst: true})
			return err
		})
		if err != nil || len(rows) == 0 {
			return nil, err
		}
		events, err := eventsOf(rows)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if slices.Contains(kinds, e.GetKind()) {
				return e, nil
			}
			scanned[row.Name] = int64(e.GetId())
		}
	}
}

// settle notes how a delivery went.
func (h *Hub) settle(row *store.NoticeTarget, e *hubv1.Event, failed error) {
	now := h.cfg.Now()
	if failed == nil {
		row.Cursor, row.Tries, row.NextTry, row.LastError, row.LastDelivery = int64(e.GetId()), 0, 0, "", now.UnixMilli()
		return
	}
	row.Tries++
	row.LastError = failed.Error()
	row.NextTry = now.Add(min(time.Hour, 10*time.Second<<min(row.Tries, 10))).UnixMilli()
	if now.Sub(e.GetAt().AsTime()) > noticeLife {
		row.Cursor = int64(e.GetId())
		row.LastError = fmt.Sprintf("an event of %s was given up after a day: %s", e.GetAt().AsTime().Format(time.RFC3339), failed)
	}
	h.log.Warn("notice not delivered", "target", row.Name, "event", e.GetKind(), "tries", row.Tries, "error", failed)
}

// noticeProblems finds targets that take nothing.
func (h *Hub) noticeProblems(ctx context.Context, add func(string, *hubv1.CurrentProblem)) error {
	var rows []*store.NoticeTarget
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.NoticeTargets(); return err }); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Tries >= noticePatience {
			add(r.Name, &hubv1.CurrentProblem{Kind: EventNoticeFailing, Severity: SeverityWarning, Subject: "notice/" + r.Name, Text: r.LastError,
				Reason: string(reason.Internal), Remedy: "see `adit notice test " + r.Name + "`"})
		}
	}
	return nil
}
