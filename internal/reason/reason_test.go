package reason_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/reason"
)

func TestRefusalRoundTrip(t *testing.T) {
	e := reason.Wrap(errors.New("connection refused"), reason.OriginRefused, reason.HopOrigin, "dial %s", "10.0.0.5:3000").Safe()
	got := reason.FromRefusal(e.Refusal())
	if got.Code != reason.OriginRefused || got.Hop != reason.HopOrigin || !got.Untouched {
		t.Fatalf("got %+v", got)
	}
	if !strings.Contains(got.Detail, "10.0.0.5:3000") || !strings.Contains(got.Detail, "connection refused") {
		t.Fatalf("detail lost: %q", got.Detail)
	}
}

func TestOfFindsWrapped(t *testing.T) {
	e := reason.New(reason.NoAgent, reason.HopEdge, "no agent serves it")
	wrapped := fmt.Errorf("round trip: %w", e)
	if reason.Of(wrapped, reason.HopEdge) != e || !reason.Is(wrapped, reason.NoAgent) {
		t.Fatal("the reason was lost in wrapping")
	}
	if o := reason.Of(errors.New("x"), reason.HopHub); o.Code != reason.Internal || o.Hop != reason.HopHub {
		t.Fatalf("a plain error became %+v", o)
	}
}

func TestHTTPStatus(t *testing.T) {
	for code, want := range map[reason.Code]int{
		reason.BadRequest: 400, reason.AccessDenied: 403, reason.NoRoute: 404, reason.WrongHost: 421,
		reason.OriginRefused: 502, reason.NoAgent: 503, reason.OriginTimeout: 504, reason.LoopDetected: 508,
		reason.GrantMissing: 500,
	} {
		if got := code.HTTPStatus(); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
}
