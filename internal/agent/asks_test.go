package agent

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// answerOf waits for the answer to a question.
func answerOf(t *testing.T, hub *testHub, id string) *hubv1.Answer {
	t.Helper()
	for {
		r := receive(t, hub.reports, "no answer to "+id)
		for _, x := range r.GetAnswers() {
			if x.GetAskId() == id {
				if len(r.GetTunnels()) > 0 || r.GetDiscovery() != nil {
					t.Errorf("a report with an answer carries more: %v", r)
				}
				return x
			}
		}
	}
}

func TestAsked(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	addr := refusedPort(t)
	a := runAgent(t, Config{Token: token, Services: tcpServices(tcpEntry("x", addr, 2222))})
	eventually(t, "linked to the hub", func() bool { return a.Status().Hub.Connected })
	m := a.current.Load()
	ask := func(q *hubv1.Ask) *hubv1.Answer {
		t.Helper()
		q.Deadline = timestamppb.New(time.Now().Add(10 * time.Second))
		m.asked(t.Context(), q)
		return answerOf(t, hub, q.GetId())
	}
	t.Run("preflight", func(t *testing.T) {
		x := ask(&hubv1.Ask{Id: "p", Ask: &hubv1.Ask_Preflight{Preflight: &hubv1.PreflightAsk{Kind: wirev1.Kind_KIND_TCP, Origin: &hubv1.Origin{Url: "tcp://" + addr}}}})
		if f := x.GetPreflight().GetFindings(); len(f) != 1 || f[0].GetId() != "origin_unreachable" {
			t.Errorf("got %v", x)
		}
	})
	t.Run("logs", func(t *testing.T) {
		x := ask(&hubv1.Ask{Id: "l", Ask: &hubv1.Ask_Logs{Logs: &hubv1.LogsAsk{Lines: 500}}}).GetLogs()
		if len(x.GetLines()) == 0 || x.GetPosition() == 0 {
			t.Fatalf("got %v", x)
		}
		m.log.Info("something new", "token", "adit_invite_abcdefgh")
		next := ask(&hubv1.Ask{Id: "f", Ask: &hubv1.Ask_Logs{Logs: &hubv1.LogsAsk{After: x.GetPosition(), Lines: 500, Follow: true}}}).GetLogs()
		text := ""
		for _, l := range next.GetLines() {
			text += l.GetText() + "\n"
		}
		if !strings.Contains(text, "something new") || strings.Contains(text, "abcdefgh") {
			t.Errorf("got %q", text)
		}
	})
	t.Run("what this version does not know", func(t *testing.T) {
		if x := ask(&hubv1.Ask{Id: "u"}); x.GetCode() != string(reason.VersionUnsupported) {
			t.Errorf("got %v", x)
		}
	})
	t.Run("too many at a time", func(t *testing.T) {
		for range maxAnswering {
			m.answering <- struct{}{}
		}
		if x := ask(&hubv1.Ask{Id: "m"}); x.GetCode() != string(reason.RateLimited) {
			t.Errorf("got %v", x)
		}
		for range maxAnswering {
			<-m.answering
		}
	})
	t.Run("an end", func(t *testing.T) {
		if x := ask(&hubv1.Ask{Id: "d", Ask: &hubv1.Ask_Drain{Drain: &hubv1.DrainAsk{}}}); x.GetCode() != "" || x.GetDrain() == nil {
			t.Errorf("got %v", x)
		}
		if err := receive(t, a.ended, "the agent does not end"); err != nil {
			t.Errorf("ended with %v", err)
		}
		a.ended <- nil // for the end of the test
	})
}

func TestForward(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	target := tcpOrigin(t, echo)
	a := runAgent(t, Config{Token: token, Services: tcpServices(tcpEntry("x", refusedPort(t), 2222)), Origin: origin.Config{AllowForward: []string{target}}})
	r := edge.Replica(t)
	eventually(t, "linked to the hub", func() bool { return a.Status().Hub.Connected })
	if first := receive(t, hub.reports, "no report"); !strings.Contains(strings.Join(first.GetCapabilities(), " "), "forward") {
		t.Errorf("capabilities %q", first.GetCapabilities())
	}
	for _, c := range []struct {
		target string
		want   reason.Code
	}{
		{target, ""}, {refusedPort(t), reason.OriginDenied}, {"169.254.169.254:80", reason.OriginDenied}, {"nonsense", reason.Invalid}, {":80", reason.Invalid}, {"a:0", reason.Invalid},
	} {
		out, err := r.Open(t.Context(), &wirev1.StreamHeader{ForwardTarget: c.target, Kind: wirev1.Kind_KIND_TCP}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = out.Answer(t.Context())
		if c.want != "" {
			if !reason.Is(err, c.want) {
				t.Errorf("%s: %v, want %s", c.target, err, c.want)
			}
			_ = out.Close()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(out, "hello")
		_ = out.CloseWrite()
		if b, err := io.ReadAll(out); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		_ = out.Close()
	}
}

// ports is a provider whose findings the test decides.
type ports struct{ say chan func(discovery.Sink) }

func (ports) Name() string { return "host" }

func (p ports) Run(ctx context.Context, to discovery.Sink) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-p.say:
			f(to)
		}
	}
}

func TestDiscoveryReports(t *testing.T) {
	hub, edge := newTestHub(t), linktest.NewEdge(t, nil, nil)
	token, _ := hub.token(edge)
	p := ports{make(chan func(discovery.Sink))}
	runAgent(t, Config{Token: token, Services: tcpServices(tcpEntry("x", refusedPort(t), 2222)), Providers: []discovery.Provider{p}})
	next := func() *hubv1.DiscoveryReport {
		t.Helper()
		for {
			if d := receive(t, hub.reports, "no report").GetDiscovery(); d != nil {
				return d
			}
		}
	}
	if d := next(); !d.GetSnapshot() || len(d.GetPuts()) > 0 {
		t.Errorf("first %v", d)
	}
	p.say <- func(s discovery.Sink) {
		s.Put(&hubv1.DiscoveredService{Id: "a"})
		s.Put(&hubv1.DiscoveredService{Id: "b"})
		s.State(discovery.OK, "")
	}
	if d := next(); d.GetSnapshot() || len(d.GetPuts()) != 2 {
		t.Errorf("then %v", d)
	}
	p.say <- func(s discovery.Sink) { s.Delete("a") }
	if d := next(); d.GetSnapshot() || len(d.GetDeletes()) != 1 {
		t.Errorf("then %v", d)
	}
	hub.takeAway()()
	if d := next(); !d.GetSnapshot() || len(d.GetPuts()) != 1 {
		t.Errorf("on a new link %v", d)
	}
}
