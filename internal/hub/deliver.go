package hub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/mail"
	"net/smtp"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
)

// deliverTimeout bounds one delivery.
const deliverTimeout = 15 * time.Second

// notice is the body of a webhook: names that receivers rely on.
type notice struct {
	ID         string            `json:"id"`
	At         time.Time         `json:"at"`
	Kind       string            `json:"kind"`
	Severity   string            `json:"severity"`
	Subject    string            `json:"subject"`
	Text       string            `json:"text"`
	Reason     string            `json:"reason,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Hub        string            `json:"hub"`
}

// deliver sends one event to a target.
func (h *Hub) deliver(ctx context.Context, row *store.NoticeTarget, e *hubv1.Event) error {
	target, err := noticeTargetOf(row)
	if err != nil {
		return err
	}
	secrets, err := h.openNotice(row)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	if target.GetWebhookUrl() != "" {
		return h.postNotice(ctx, target, secrets.GetWebhookSecret(), e)
	}
	return h.mailNotice(ctx, target, secrets.GetSmtpPassword(), e)
}

func (h *Hub) postNotice(ctx context.Context, t *hubv1.NoticeTarget, secret string, e *hubv1.Event) error {
	body, err := json.Marshal(notice{
		ID: strconv.FormatUint(e.GetId(), 10), At: e.GetAt().AsTime(), Kind: e.GetKind(), Severity: e.GetSeverity(), Subject: e.GetSubject(),
		Text: e.GetText(), Reason: e.GetReason(), Attributes: e.GetAttributes(), Hub: h.cfg.HubHost,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.GetWebhookUrl(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "adit/"+h.cfg.Version)
	req.Header.Set("Adit-Delivery", strconv.FormatUint(e.GetId(), 10))
	if secret != "" {
		req.Header.Set("Adit-Signature", sign(secret, h.cfg.Now(), body))
	}
	resp, err := noticeClient(req.URL.Scheme == "http").Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which may hold a secret
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook answered %s", resp.Status)
	}
	return nil
}

// sign is the value of Adit-Signature: the time and HMAC-SHA256(secret, time "." body), so that a
// receiver can refuse what is old.
func sign(secret string, at time.Time, body []byte) string {
	ts := strconv.FormatInt(at.Unix(), 10)
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(ts + "."))
	m.Write(body)
	return "t=" + ts + ",v1=" + hex.EncodeToString(m.Sum(nil))
}

// noticeClient follows no redirect: what is signed for one host is for nobody else.
func noticeClient(plain bool) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: noticeDialer(plain).DialContext, TLSHandshakeTimeout: deliverTimeout, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// noticeDialer refuses what no notice has business with: link-local addresses, where clouds keep
// credentials, and, in plain text, anything that is not private.
func noticeDialer(plain bool) *net.Dialer {
	return &net.Dialer{Timeout: deliverTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		if ip := net.ParseIP(host); ip == nil || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsMulticast() || ip.IsUnspecified() {
			return fmt.Errorf("%s is no address for notices", host)
		}
		if plain {
			return privateOnly(address)
		}
		return nil
	}}
}

// privateOnly refuses addresses that a plain connection must not go to.
func privateOnly(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsPrivate() && !ip.IsLoopback() {
		return fmt.Errorf("%s is not a private address; use https", host)
	}
	return nil
}

func (h *Hub) mailNotice(ctx context.Context, t *hubv1.NoticeTarget, password string, e *hubv1.Event) error {
	u, err := url.Parse(t.GetSmtpUrl())
	if err != nil {
		return err
	}
	implicit := u.Scheme == "smtps"
	port := cmp.Or(u.Port(), map[bool]string{true: "465", false: "587"}[implicit])
	conn, err := noticeDialer(false).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	tc := &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	if implicit {
		conn = tls.Client(conn, tc)
	}
	c, err := smtp.NewClient(conn, u.Hostname())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.Hello(h.hostName); err != nil {
		return err
	}
	if ok, _ := c.Extension("STARTTLS"); ok && !implicit {
		if err := c.StartTLS(tc); err != nil {
			return err
		}
	}
	if t.GetSmtpUser() != "" {
		// PlainAuth refuses to speak in clear text, except on this host.
		if err := c.Auth(smtp.PlainAuth("", t.GetSmtpUser(), password, u.Hostname())); err != nil {
			return err
		}
	}
	return sendMail(c, t, h.message(t, e))
}

func sendMail(c *smtp.Client, t *hubv1.NoticeTarget, message []byte) error {
	from, err := mail.ParseAddress(t.GetMailFrom())
	if err != nil {
		return err
	}
	if err := c.Mail(from.Address); err != nil {
		return err
	}
	for _, to := range t.GetMailTo() {
		a, err := mail.ParseAddress(to)
		if err != nil {
			return err
		}
		if err := c.Rcpt(a.Address); err != nil {
			return fmt.Errorf("%s: %w", a.Address, err)
		}
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(message); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return c.Quit()
}

// message is an e-mail about an event (RFC 5322).
func (h *Hub) message(t *hubv1.NoticeTarget, e *hubv1.Event) []byte {
	oneLine := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	var b bytes.Buffer
	header := func(name, value string) { fmt.Fprintf(&b, "%s: %s\r\n", name, value) }
	header("From", oneLine(t.GetMailFrom()))
	header("To", oneLine(strings.Join(t.GetMailTo(), ", ")))
	header("Subject", mime.QEncoding.Encode("utf-8", oneLine("["+h.cfg.HubHost+"] "+e.GetSubject()+" "+e.GetKind())))
	header("Date", e.GetAt().AsTime().Format(time.RFC1123Z))
	header("Message-ID", fmt.Sprintf("<%d.%s@%s>", e.GetId(), t.GetName(), h.cfg.HubHost))
	header("Auto-Submitted", "auto-generated")
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "8bit")
	b.WriteString("\r\n")
	for _, line := range []string{
		e.GetSubject() + " " + oneLine(e.GetText()), "", "kind:     " + e.GetKind(), "severity: " + e.GetSeverity(),
		"at:       " + e.GetAt().AsTime().Format(time.RFC3339), "reason:   " + e.GetReason(), "hub:      " + h.cfg.HubHost,
	} {
		if !strings.HasSuffix(line, ":   ") {
			b.WriteString(line + "\r\n")
		}
	}
	return b.Bytes()
}
