package hub

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// answerer is an agent's watch that answers what it is asked, through report.
type answerer struct {
	asked chan *hubv1.Ask
	stop  func()
}

// watchAs watches as r at h, and answers each question with what answer makes of it; nil = not.
func watchAs(t *testing.T, h *Hub, r *replica, answer func(*hubv1.Ask) *hubv1.Answer) *answerer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &answerer{asked: make(chan *hubv1.Ask, 100)}
	ready := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = h.Watch(ctx, WatcherOf(r.caller), 0, func(m *hubv1.WatchResponse) error {
			for _, q := range m.GetAsks() {
				a.asked <- q
				if x := answer(q); x != nil {
					x.AskId = q.GetId()
					if err := h.Report(ctx, r.caller, &hubv1.ReportRequest{Answers: []*hubv1.Answer{x}}); err != nil {
						t.Errorf("report: %v", err)
					}
				}
			}
			return nil
		})
	})
	go func() {
		for len(h.asks.here(r.key().token, r.key().replica)) == 0 {
			time.Sleep(time.Millisecond)
		}
		close(ready)
	}()
	<-ready
	a.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(a.stop)
	return a
}

func found(id string) func(*hubv1.Ask) *hubv1.Answer {
	return func(*hubv1.Ask) *hubv1.Answer {
		return &hubv1.Answer{Answer: &hubv1.Answer_Preflight{Preflight: &hubv1.PreflightAnswer{Checked: true, Findings: []*hubv1.Finding{{Id: id}}}}}
	}
}

func drainAsk() *hubv1.Ask { return &hubv1.Ask{Ask: &hubv1.Ask_Drain{Drain: &hubv1.DrainAsk{}}} }

func TestAsk(t *testing.T) {
	h := newTestHub(t)
	token := h.invite_("site", "*.example.com")
	r := h.replica(token)
	agent, err := h.GetAgent(t.Context(), "site")
	if err != nil {
		t.Fatal(err)
	}
	preflight := &hubv1.PreflightRequest{Agent: "site", Ask: &hubv1.PreflightAsk{Origin: &hubv1.Origin{Url: "http://a:1"}, Hostname: "A.example.com."}}

	t.Run("nobody is there", func(t *testing.T) {
		if _, err := h.Preflight(t.Context(), preflight); !reason.Is(err, reason.NoAgent) {
			t.Errorf("got %v, want no_agent", err)
		}
	})
	t.Run("no such agent", func(t *testing.T) {
		if _, err := h.Preflight(t.Context(), &hubv1.PreflightRequest{Agent: "other", Ask: preflight.GetAsk()}); !reason.Is(err, reason.NotFound) {
			t.Errorf("got %v, want not_found", err)
		}
	})
	t.Run("answered promptly", func(t *testing.T) {
		w := watchAs(t, h.Hub, r, found("origin_requires_auth"))
		start := time.Now()
		x, err := h.Preflight(t.Context(), preflight)
		if err != nil || len(x.GetFindings()) != 1 {
			t.Fatalf("got %v, %v", x, err)
		}
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("took %v", d)
		}
		if q := <-w.asked; q.GetPreflight().GetHostname() != "a.example.com" || q.GetDeadline() == nil {
			t.Errorf("asked %v", q)
		}
		w.stop()
	})
	t.Run("the agent refuses", func(t *testing.T) {
		w := watchAs(t, h.Hub, r, func(*hubv1.Ask) *hubv1.Answer {
			return &hubv1.Answer{Code: string(reason.RateLimited), Detail: "busy"}
		})
		if _, err := h.Preflight(t.Context(), preflight); !reason.Is(err, reason.RateLimited) {
			t.Errorf("got %v, want rate_limited", err)
		}
		w.stop()
	})
	t.Run("the agent does not answer, and too many wait", func(t *testing.T) {
		w := watchAs(t, h.Hub, r, func(*hubv1.Ask) *hubv1.Answer { return nil })
		var wg sync.WaitGroup
		codes := make(chan reason.Code, 2*maxAsks)
		for range maxAsks + 4 {
			wg.Go(func() {
				_, err := h.ask(t.Context(), agent, "", 300*time.Millisecond, drainAsk())
				var e *reason.Error
				errors.As(err, &e)
				codes <- e.Code
			})
		}
		wg.Wait()
		close(codes)
		n := map[reason.Code]int{}
		for c := range codes {
			n[c]++
		}
		if n[reason.NoAgent] != maxAsks || n[reason.RateLimited] != 4 {
			t.Errorf("got %v, want %d no_agent and 4 rate_limited", n, maxAsks)
		}
		if len(h.asks.waiting) != 0 {
			t.Errorf("%d are still waited for", len(h.asks.waiting))
		}
		w.stop()
	})
	t.Run("nobody answers for another agent", func(t *testing.T) {
		other := h.replica(h.invite_("other", "*.example.org"))
		w := watchAs(t, h.Hub, r, func(q *hubv1.Ask) *hubv1.Answer {
			err := h.Report(t.Context(), other.caller, &hubv1.ReportRequest{Answers: []*hubv1.Answer{{AskId: q.GetId()}}})
			if err != nil {
				t.Error(err)
			}
			return nil
		})
		if _, err := h.ask(t.Context(), agent, "", 200*time.Millisecond, drainAsk()); !reason.Is(err, reason.NoAgent) {
			t.Errorf("got %v, want no_agent", err)
		}
		w.stop()
	})
}

// Two hubs of one database: the question is asked at one, the agent watches at the other.
func TestAskAcrossHubs(t *testing.T) {
	h := newTestHub(t)
	r := h.replica(h.invite_("site", "*.example.com"))
	cfg := h.cfg
	cfg.DataDir = t.TempDir()
	if !h.store.Shared() {
		cfg.SecretKeyFile = h.Hub.cfg.DataDir + "/secret.key"
		cfg.DatabaseURL = "sqlite:" + h.Hub.cfg.DataDir + "/adit.db"
	}
	far, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	h.Hub.asks.elsewhere, far.asks.elsewhere = true, true
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, x := range []*Hub{h.Hub, far} {
		wg.Go(func() { x.every(ctx, 10*time.Millisecond, "asks", x.exchangeAsks) })
	}
	defer wg.Wait()
	defer cancel()
	w := watchAs(t, far, r, found("origin_requires_auth"))
	// Hubs tell each other who watches.
	defer h.Serving(r.caller)()
	x, err := h.Preflight(t.Context(), &hubv1.PreflightRequest{Agent: "site", Ask: &hubv1.PreflightAsk{Origin: &hubv1.Origin{Url: "http://a:1"}}})
	if err != nil || len(x.GetFindings()) != 1 {
		t.Fatalf("got %v, %v", x, err)
	}
	if len(w.asked) != 1 {
		t.Errorf("asked %d times", len(w.asked))
	}
	var open []store.Ask
	if err := h.store.Read(t.Context(), func(tx *store.Tx) (err error) { open, err = tx.OpenAsks(); return err }); err != nil || len(open) > 0 {
		t.Errorf("%d questions are left, %v", len(open), err)
	}
}
