package hub

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// receiver is a webhook.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	got    []notice
	signed []string
	bodies [][]byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{status: 204}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		body, _ := io.ReadAll(req.Body)
		var n notice
		if err := json.Unmarshal(body, &n); err != nil {
			t.Error(err)
		}
		if req.Header.Get("Adit-Delivery") != n.ID {
			t.Errorf("Adit-Delivery %q, id %q", req.Header.Get("Adit-Delivery"), n.ID)
		}
		if r.status/100 == 2 {
			r.got, r.bodies = append(r.got, n), append(r.bodies, body)
			r.signed = append(r.signed, req.Header.Get("Adit-Signature"))
		}
		if r.status == http.StatusFound {
			w.Header().Set("Location", "http://127.0.0.1:1/")
		}
		w.WriteHeader(r.status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) subjects() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s []string
	for _, n := range r.got {
		s = append(s, n.Subject)
	}
	return strings.Join(s, " ")
}

func (h *testHub) target(n *hubv1.NoticeTarget) {
	h.t.Helper()
	if _, err := h.SetNoticeTarget(h.t.Context(), n); err != nil {
		h.t.Fatal(err)
	}
}

func (h *testHub) notified() {
	h.t.Helper()
	if err := h.notify(h.t.Context(), map[string]int64{}); err != nil {
		h.t.Fatal(err)
	}
}

func TestWebhookNotices(t *testing.T) {
	h := newTestHub(t)
	r := newReceiver(t)
	h.happen(EventAgentOffline, SeverityWarning, "agent/before")
	h.target(&hubv1.NoticeTarget{Name: "pager", WebhookUrl: r.URL + "/hook?key=s3cret", WebhookSecret: "shared"})
	h.happen(EventTunnelOK, SeverityInfo, "tunnel/unasked")
	h.happen(EventAgentOffline, SeverityWarning, "agent/one")
	h.happen(EventLockedOut, SeverityWarning, "user/two")
	h.notified()
	if got := r.subjects(); got != "agent/one user/two" {
		t.Fatalf("delivered: %q", got)
	}
	if want := sign("shared", h.clock.now(), r.bodies[0]); r.signed[0] != want {
		t.Fatalf("signature %q, want %q", r.signed[0], want)
	}
	if r.got[0].Hub != "hub.example.com" || r.got[0].Kind != EventAgentOffline || r.got[0].Severity != "warning" {
		t.Fatalf("%+v", r.got[0])
	}

	t.Run("what fails is tried again later, in order, and is a problem", func(t *testing.T) {
		r.answer(500)
		h.happen(EventAgentOffline, SeverityWarning, "agent/three")
		h.happen(EventAgentOnline, SeverityInfo, "agent/four")
		for range noticePatience {
			h.notified()
			h.notified() // not before its time
			h.clock.add(2 * time.Hour)
		}
		l, err := h.ListNoticeTargets(t.Context())
		if err != nil || len(l) != 1 || !strings.Contains(l[0].GetLastError(), "500") || l[0].GetWebhookSecret() != "" {
			t.Fatal(l, err)
		}
		if p, err := h.problems(t.Context(), h.clock.now()); err != nil || p["notice_failing/pager"] == nil {
			t.Fatal(p, err)
		}
		r.answer(302) // a redirect is not followed: it would take the signature elsewhere
		h.notified()
		h.clock.add(2 * time.Hour)
		r.answer(200)
		h.notified()
		if got := r.subjects(); got != "agent/one user/two agent/three agent/four" {
			t.Fatalf("delivered: %q", got)
		}
	})
	t.Run("an event that nobody takes for a day is given up", func(t *testing.T) {
		r.answer(500)
		h.happen(EventAgentOffline, SeverityWarning, "agent/five")
		h.notified()
		h.clock.add(noticeLife + time.Hour)
		h.notified()
		r.answer(200)
		h.clock.add(2 * time.Hour)
		h.happen(EventAgentOnline, SeverityInfo, "agent/six")
		h.notified()
		if got := r.subjects(); !strings.HasSuffix(got, "agent/four agent/six") {
			t.Fatalf("delivered: %q", got)
		}
	})
	t.Run("a secret does not follow to another host", func(t *testing.T) {
		other := newReceiver(t)
		h.target(&hubv1.NoticeTarget{Name: "pager", WebhookUrl: r.URL + "/other"})
		h.happen(EventAgentOnline, SeverityInfo, "agent/seven")
		h.notified()
		if r.signed[len(r.signed)-1] == "" {
			t.Fatal("the secret was lost with a change of path")
		}
		h.target(&hubv1.NoticeTarget{Name: "pager", WebhookUrl: other.URL})
		h.happen(EventAgentOnline, SeverityInfo, "agent/eight")
		h.notified()
		if len(other.signed) != 1 || other.signed[0] != "" {
			t.Fatalf("signed for another host: %q", other.signed)
		}
	})
	t.Run("test, disable, delete", func(t *testing.T) {
		n := len(r.got)
		h.target(&hubv1.NoticeTarget{Name: "pager", WebhookUrl: r.URL, Disabled: true})
		h.happen(EventAgentOnline, SeverityInfo, "agent/nine")
		h.notified()
		if len(r.got) != n {
			t.Fatal("a disabled target got a notice")
		}
		if failed, err := h.TestNoticeTarget(t.Context(), "pager"); failed != nil || err != nil || r.got[n].Kind != EventTest {
			t.Fatal(failed, err)
		}
		r.Close()
		if failed, err := h.TestNoticeTarget(t.Context(), "pager"); failed == nil || !strings.Contains(failed.Error(), "refused") || err != nil {
			t.Fatal(failed, err)
		}
		if err := h.DeleteNoticeTarget(t.Context(), "pager"); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, h.DeleteNoticeTarget(t.Context(), "pager"), reason.NotFound, "")
	})
}

func TestNoticeTargetBadInput(t *testing.T) {
	h := newTestHub(t)
	mailTo := func(change func(*hubv1.NoticeTarget)) *hubv1.NoticeTarget {
		n := &hubv1.NoticeTarget{Name: "m", SmtpUrl: "smtp://mail.example.com:587", MailFrom: "adit@example.com", MailTo: []string{"you@example.com"}}
		change(n)
		return n
	}
	for _, c := range []struct {
		field string
		n     *hubv1.NoticeTarget
	}{
		{"target.name", nil},
		{"target.name", &hubv1.NoticeTarget{Name: "A b"}},
		{"target.webhook_url", &hubv1.NoticeTarget{Name: "a"}},
		{"target.webhook_url", &hubv1.NoticeTarget{Name: "a", WebhookUrl: "ftp://x"}},
		{"target.webhook_url", &hubv1.NoticeTarget{Name: "a", WebhookUrl: "https://user:pw@x/"}},
		{"target.mail_to", &hubv1.NoticeTarget{Name: "a", WebhookUrl: "https://x/", MailTo: []string{"a@b"}}},
		{"target.kinds[1]", &hubv1.NoticeTarget{Name: "a", WebhookUrl: "https://x/", Kinds: []string{EventTest, "thunder"}}},
		{"target.smtp_url", &hubv1.NoticeTarget{Name: "a", WebhookUrl: "https://x/", SmtpUrl: "smtp://y"}},
		{"target.smtp_url", mailTo(func(n *hubv1.NoticeTarget) { n.SmtpUrl = "smtp://u:p@mail" })},
		{"target.mail_from", mailTo(func(n *hubv1.NoticeTarget) { n.MailFrom = "nobody" })},
		{"target.mail_to", mailTo(func(n *hubv1.NoticeTarget) { n.MailTo = nil })},
		{"target.mail_to[0]", mailTo(func(n *hubv1.NoticeTarget) { n.MailTo = []string{"x\r\nBcc: all@example.com"} })},
		{"target.webhook_secret", mailTo(func(n *hubv1.NoticeTarget) { n.WebhookSecret = "x" })},
		{"target.smtp_password", mailTo(func(n *hubv1.NoticeTarget) { n.SmtpUser = "adit" })},
	} {
		_, err := h.SetNoticeTarget(t.Context(), c.n)
		p := wantProblem(t, err, reason.Invalid, c.field)
		if p.Remedy == "" {
			t.Errorf("%s: no remedy", c.field)
		}
		if strings.Contains(p.Error(), "pw@") {
			t.Errorf("the error tells a password: %s", p)
		}
	}
}

func TestNoticeAddresses(t *testing.T) {
	for _, c := range []struct {
		address string
		plain   bool
		ok      bool
	}{
		{"169.254.169.254:80", true, false}, {"169.254.169.254:443", false, false}, {"[fe80::1]:443", false, false}, {"0.0.0.0:80", false, false},
		{"192.0.2.1:80", true, false}, {"192.0.2.1:443", false, true}, {"10.0.0.5:80", true, true}, {"127.0.0.1:80", true, true}, {"[fd00::1]:80", true, true},
	} {
		if err := noticeDialer(c.plain).Control("tcp", c.address, nil); (err == nil) != c.ok {
			t.Errorf("%s, plain %v: %v", c.address, c.plain, err)
		}
	}
}

// mailServer takes one message after the other and returns what it was sent.
func mailServer(t *testing.T) (address string, messages <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 4)
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serveMail(c, out)
		}
	})
	return l.Addr().String(), out
}

func serveMail(c net.Conn, out chan<- string) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewScanner(c)
	say := func(s string) { fmt.Fprintf(c, "%s\r\n", s) }
	say("220 test")
	var b strings.Builder
	data := false
	for r.Scan() {
		line := r.Text()
		switch {
		case data && line == ".":
			data = false
			out <- b.String()
			b.Reset()
			say("250 taken")
		case data:
			b.WriteString(line + "\n")
		case strings.HasPrefix(line, "EHLO"):
			say("250-test\r\n250 8BITMIME")
		case line == "DATA":
			data = true
			say("354 go on")
		case line == "QUIT":
			say("221 bye")
			return
		default:
			b.WriteString(line + "\n")
			say("250 ok")
		}
	}
}

func TestMailNotices(t *testing.T) {
	h := newTestHub(t)
	address, messages := mailServer(t)
	h.target(&hubv1.NoticeTarget{Name: "mail", SmtpUrl: "smtp://" + address, MailFrom: "Adit <adit@example.com>", MailTo: []string{"you@example.com", "her@example.com"}})
	h.happen(EventAgentOffline, SeverityWarning, "agent/größe\r\nBcc: all@example.com")
	h.notified()
	m := <-messages
	for _, want := range []string{
		"MAIL FROM:<adit@example.com>", "RCPT TO:<you@example.com>", "RCPT TO:<her@example.com>", "From: Adit <adit@example.com>",
		"Subject: =?utf-8?q?", "Auto-Submitted: auto-generated", "kind:     agent_offline", "hub:      hub.example.com",
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %q in\n%s", want, m)
		}
	}
	if head, _, _ := strings.Cut(m, "\n\n"); strings.Contains(head, "\nBcc:") {
		t.Errorf("a subject became a header:\n%s", m)
	}
	if l, err := h.ListNoticeTargets(t.Context()); err != nil || l[0].GetLastError() != "" || l[0].GetLastDeliveryAt() == nil {
		t.Fatal(l, err)
	}
}
