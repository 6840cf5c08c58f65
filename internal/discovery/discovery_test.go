package discovery

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a provider that says what the test does.
type scripted struct{ to chan func(Sink) }

func (scripted) Name() string { return "host" }

func (p scripted) Run(ctx context.Context, to Sink) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-p.to:
			f(to)
		}
	}
}

func ids(r *hubv1.DiscoveryReport) string {
	if r == nil {
		return "nothing"
	}
	out := fmt.Sprint(r.GetSnapshot(), ":")
	for _, s := range r.GetPuts() {
		out += " +" + s.GetId()
	}
	for _, id := range r.GetDeletes() {
		out += " -" + id
	}
	for _, p := range r.GetProviders() {
		out += " " + p.GetState()
	}
	return out
}

func TestReports(t *testing.T) {
	p := scripted{make(chan func(Sink))}
	changed := make(chan struct{}, 100)
	f := New([]Provider{p}, func() { changed <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	do := func(g func(Sink)) {
		ended := make(chan struct{})
		p.to <- func(s Sink) { g(s); close(ended) }
		<-ended
	}
	a, b := &hubv1.DiscoveredService{Id: "a"}, &hubv1.DiscoveredService{Id: "b"}
	want := func(got *hubv1.DiscoveryReport, text string) {
		t.Helper()
		if ids(got) != text {
			t.Errorf("%s, want %s", ids(got), text)
		}
	}
	do(func(s Sink) { s.State(OK, ""); s.Put(a); s.Put(b) })
	want(f.Report(true), "true: +a +b ok")
	want(f.Report(false), "nothing")
	do(func(s Sink) { s.Put(a); s.State(OK, "") })
	want(f.Report(false), "nothing")
	do(func(s Sink) { s.Delete("a"); s.Delete("x"); s.Put(&hubv1.DiscoveredService{Id: "b", Name: "new"}) })
	want(f.Report(false), "false: +b -a ok")
	do(func(s Sink) { s.State(Unavailable, "no answer") })
	want(f.Report(false), "false: unavailable")
	want(f.Report(true), "true: +b unavailable")
	if !slices.Equal(f.Names(), []string{"host"}) {
		t.Errorf("names %q", f.Names())
	}
	do(func(s Sink) { s.State(Off, "a container") })
	if len(f.Names()) > 0 {
		t.Errorf("names %q", f.Names())
	}
	if n := len(changed); n != 7 {
		t.Errorf("%d changes were told, want 7", n)
	}
	do(func(s Sink) {
		for i := range maxServices + 10 {
			s.Put(&hubv1.DiscoveredService{Id: fmt.Sprint("s", i)})
			for len(changed) > 50 {
				<-changed
			}
		}
	})
	if r := f.Report(true); len(r.GetPuts()) != maxServices {
		t.Errorf("%d services", len(r.GetPuts()))
	}
}
