package hub

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/limits"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// freeFailures of one address are free; then it waits a minute, doubling to an hour.
	freeFailures = 5
	firstWait    = time.Minute
	longestWait  = time.Hour
	// accountFailures in an hour, from all addresses together, close an account to browsers that
	// it was never signed in with.
	accountFailures = 100
)

// LockedOut is the refusal of somebody who guessed too often.
type LockedOut struct {
	*Problem
	// RetryAfter is when the next attempt is taken.
	RetryAfter time.Duration
}

func (e *LockedOut) Unwrap() error { return e.Problem }

func lockedOut(wait time.Duration) error {
	wait = wait.Round(time.Second)
	return &LockedOut{&Problem{Code: reason.RateLimited, Text: "too many failed attempts",
		Remedy: fmt.Sprintf("wait %s and try again", strings.TrimSuffix(max(wait, time.Second).String(), "0s"))}, max(wait, time.Second)}
}

// budget is what an attempt to sign in is counted against.
type budget struct {
	address netip.Addr
	// account is a user's id; empty where there is no such user.
	account string
	// known: the browser was signed in to this account before.
	known bool
}

func (b budget) subjects() []string {
	s := []string{"address " + limits.Source(b.address).String()}
	if b.account != "" {
		s = append(s, "account "+b.account)
	}
	return s
}

// take counts one attempt as failed, before anything is compared, so that parallel ones cannot share
// the budget; what succeeds gives it back. Locked tells that this attempt closed the door.
func (b budget) take(tx *store.Tx) (locked string, err error) {
	now := tx.Now
	for i, subject := range b.subjects() {
		a, err := tx.Attempt(subject)
		if err != nil {
			return "", err
		}
		perAccount := i == 1
		if perAccount && now.Sub(time.UnixMilli(a.Since)) > time.Hour {
			a.Failures, a.Since = 0, now.UnixMilli()
		}
		if !perAccount && now.Sub(time.UnixMilli(max(a.Since, a.Until))) > 24*time.Hour {
			a.Failures = 0
		}
		if wait := time.UnixMilli(a.Until).Sub(now); wait > 0 && (!perAccount || !b.known) {
			return "", lockedOut(wait)
		}
		a.Failures++
		switch {
		case perAccount && a.Failures >= accountFailures:
			if a.Until = a.Since + time.Hour.Milliseconds(); a.Failures == accountFailures {
				locked = subject
			}
		case !perAccount:
			a.Since = now.UnixMilli()
			if over := a.Failures - freeFailures; over >= 0 {
				wait := time.Duration(math.Min(float64(longestWait), float64(firstWait)*math.Pow(2, float64(over))))
				if a.Until = now.Add(wait).UnixMilli(); over == 0 {
					locked = subject
				}
			}
		}
		if err := tx.PutAttempt(a); err != nil {
			return "", err
		}
	}
	return locked, nil
}

// give takes the attempt back: it was right.
func (b budget) give(tx *store.Tx) error {
	for i, subject := range b.subjects() {
		if i == 0 {
			if err := tx.DropAttempt(subject); err != nil {
				return err
			}
			continue
		}
		// The guesses of others still count.
		a, err := tx.Attempt(subject)
		if err != nil {
			return err
		}
		if a.Failures--; a.Failures < accountFailures {
			a.Until = 0
		}
		if err := tx.PutAttempt(a); err != nil {
			return err
		}
	}
	return nil
}

// tellLockOut makes the event of a door that was closed.
func (h *Hub) tellLockOut(tx *store.Tx, locked, name string) error {
	if locked == "" {
		return nil
	}
	subject, text := "address/"+strings.TrimPrefix(locked, "address "), "too many failed sign-ins from this address; it has to wait"
	if strings.HasPrefix(locked, "account ") {
		subject, text = "user/"+name, fmt.Sprintf("%d failed sign-ins within an hour; for the rest of it only known browsers may try", accountFailures)
	}
	return h.event(tx, &hubv1.Event{Kind: EventLockedOut, Severity: SeverityWarning, Subject: subject, Text: text, Reason: string(reason.RateLimited)})
}
