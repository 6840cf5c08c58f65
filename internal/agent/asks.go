package agent

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// maxAnswering bounds the questions that are being answered at a time.
const maxAnswering = 8

// asked answers one question of the hub, in a goroutine of its own: it never waits for the next
// periodic report.
func (m *member) asked(ctx context.Context, q *hubv1.Ask) {
	select {
	case m.answering <- struct{}{}:
	default:
		m.asking.Go(func() {
			m.answer(ctx, &hubv1.Answer{AskId: q.GetId(), Code: string(reason.RateLimited), Detail: "the agent answers other questions; try again"})
		})
		return
	}
	m.asking.Go(func() {
		defer func() { <-m.answering }()
		if d := q.GetDeadline(); d != nil {
			// The hub's clock may differ: a deadline bounds, it does not start anything late.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, min(max(time.Until(d.AsTime()), time.Second), time.Minute))
			defer cancel()
		}
		x := m.a.answerTo(ctx, q)
		x.AskId = q.GetId()
		m.answer(ctx, x)
		if q.GetDrain() != nil && x.GetCode() == "" {
			m.log.Info("the hub asks this agent to end")
			m.a.end()
		}
	})
}

// answerTo does what a question wants.
func (a *Agent) answerTo(ctx context.Context, q *hubv1.Ask) *hubv1.Answer {
	switch k := q.GetAsk().(type) {
	case *hubv1.Ask_Preflight:
		return &hubv1.Answer{Answer: &hubv1.Answer_Preflight{Preflight: a.checker.Check(ctx, k.Preflight)}}
	case *hubv1.Ask_Logs:
		return &hubv1.Answer{Answer: &hubv1.Answer_Logs{Logs: a.logLines(ctx, k.Logs)}}
	case *hubv1.Ask_Drain:
		return &hubv1.Answer{Answer: &hubv1.Answer_Drain{Drain: &hubv1.DrainAnswer{}}}
	}
	return &hubv1.Answer{Code: string(reason.VersionUnsupported), Detail: "this agent's version does not know the question; update it"}
}

// answer sends an answer at once. Whoever asked gives up by itself when it does not arrive.
func (m *member) answer(ctx context.Context, x *hubv1.Answer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := m.hub.Report(ctx, &hubv1.ReportRequest{Answers: []*hubv1.Answer{x}}); err != nil {
		m.log.Debug("the hub took no answer", "error", err)
	}
}

// end makes Run drain and return, as at the end of its context.
func (a *Agent) end() {
	select {
	case a.ending <- struct{}{}:
	default:
	}
}

// followMargin is what is left of a question's time when there is no line to answer with.
const followMargin = 3 * time.Second

// logLines answers with lines of this agent's log.
func (a *Agent) logLines(ctx context.Context, q *hubv1.LogsAsk) *hubv1.LogsAnswer {
	n := int(min(max(q.GetLines(), 1), 500))
	if end, ok := ctx.Deadline(); q.GetFollow() && ok {
		wait, cancel := context.WithDeadline(ctx, end.Add(-followMargin))
		a.ring.Wait(wait, q.GetAfter())
		cancel()
	}
	lines, position, lost := a.ring.After(q.GetAfter(), n)
	out := &hubv1.LogsAnswer{Position: position, Truncated: lost}
	for _, l := range lines {
		out.Lines = append(out.Lines, &hubv1.LogLine{At: timestamppb.New(l.At), Level: l.Level, Text: l.Text})
	}
	return out
}
