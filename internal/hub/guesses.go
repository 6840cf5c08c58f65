package hub

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// freeGuesses may fail in a row; after that each further failure locks for firstLock, doubling
	// up to longestLock.
	freeGuesses = 5
	firstLock   = time.Minute
	longestLock = time.Hour
	// forgetGuesses is how long after the last failure an account or address starts anew.
	forgetGuesses = 24 * time.Hour
)

// guesser is the account and the address of somebody who wants to prove who they are.
type guesser struct {
	// account is empty where none is named, as with codes.
	account string
	from    netip.Addr
}

func (g guesser) names() []string {
	names := []string{"address:" + network(g.from).String()}
	if g.account != "" {
		names = append(names, "account:"+g.account)
	}
	return names
}

// network is what one visitor can have many addresses of: IPv6 counts by /64.
func network(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// takeGuess takes one attempt from the budgets of account and address before anything is compared,
// so that attempts at the same time count too. A success gives them back with rightGuess.
func (h *Hub) takeGuess(ctx context.Context, g guesser) error {
	var locked *reason.Error
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		locked = nil
		now := tx.Now.UnixMilli()
		var rows []*store.Guesses
		for _, name := range g.names() {
			row, err := tx.Guesses(name)
			if err != nil {
				return err
			}
			if now-row.LastAt > forgetGuesses.Milliseconds() {
				row.Failures, row.BlockedUntil = 0, 0
			}
			if row.BlockedUntil > now {
				wait := time.Duration(row.BlockedUntil-now) * time.Millisecond
				locked = reason.New(reason.RateLimited, reason.HopHub, "too many failures; try again in %s", wait.Round(time.Second))
				return nil
			}
			rows = append(rows, row)
		}
		for _, row := range rows {
			row.Failures++
			row.LastAt = now
			if over := row.Failures - freeGuesses; over >= 0 {
				lock := min(longestLock, firstLock<<min(over, 10))
				row.BlockedUntil = tx.Now.Add(lock).UnixMilli()
				if err := h.event(tx, &hubv1.Event{
					Kind: EventLockedOut, Severity: SeverityWarning, Subject: row.Name,
					Text: fmt.Sprintf("is locked for %s after %d failures to sign in, the last from %s", lock, row.Failures, g.from),
				}); err != nil {
					return err
				}
			}
			if err := tx.SetGuesses(row); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && locked != nil {
		return locked
	}
	return err
}

// rightGuess gives back what takeGuess took: the account starts anew, of the address only this
// attempt counts no more.
func (h *Hub) rightGuess(tx *store.Tx, g guesser) error {
	for _, name := range g.names() {
		row, err := tx.Guesses(name)
		if err != nil {
			return err
		}
		row.Failures, row.BlockedUntil = max(row.Failures-1, 0), 0
		if name == "account:"+g.account {
			row.Failures = 0
		}
		if err := tx.SetGuesses(row); err != nil {
			return err
		}
	}
	return nil
}
