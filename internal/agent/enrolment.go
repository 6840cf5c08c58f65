package agent

import (
	"context"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/reason"
)

// An enrolment is held by one process. Edges say which one: it has sessions, the others wait as
// standby. Only the holder declares entries of its own.

// stateChanged is called by connectors, with whatever locks they hold.
func (m *member) stateChanged() {
	wake(m.states)
	m.a.touch()
}

// follow notes when this process gets or loses the enrolment.
func (m *member) follow(ctx context.Context) {
	held, waits := false, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.states:
		}
		now, who := m.sessions() > 0, m.standby()
		switch {
		case now && !held:
			m.log.Info("this process holds the enrolment")
		case who != "" && waits == "":
			m.log.Warn("waiting as standby", "detail", who)
		}
		if now != held || (who != "") != (waits != "") {
			held, waits = now, who
			wake(m.declare)
		}
	}
}

// standby is who holds the enrolment instead, in the words of an edge; empty if nobody does.
func (m *member) standby() string {
	if !m.exclusive {
		return ""
	}
	who := ""
	for _, r := range m.runs() {
		if len(r.conn.Sessions()) > 0 {
			return ""
		}
		if err, _ := r.conn.LastError(); err != nil && reason.Is(err, reason.Standby) && who == "" {
			who = reason.Of(err, reason.HopEdge).Detail
		}
	}
	return who
}

// mayDeclare reports whether this process speaks for the token now.
func (m *member) mayDeclare() bool {
	if !m.exclusive {
		return true
	}
	m.mu.Lock()
	claims := m.claims
	m.mu.Unlock()
	return m.sessions() > 0 && (claims || len(m.a.handler.table.Load().declared()) > 0)
}

// giveUp withdraws what was declared when another process holds the enrolment: that one declares
// for both.
func (m *member) giveUp(ctx context.Context) {
	m.mu.Lock()
	claims := m.claims
	m.mu.Unlock()
	if !claims || m.standby() == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	if _, err := m.hub.Declare(ctx, &hubv1.DeclareRequest{Software: m.a.cfg.Software}); err == nil {
		m.mu.Lock()
		m.claims = false
		m.mu.Unlock()
	}
}

// linked notes that the hub answers.
func (m *member) linked() {
	m.mu.Lock()
	news := !m.hubState.Connected
	m.hubState.Connected, m.hubState.Problem = true, ""
	m.mu.Unlock()
	if news {
		m.log.Info("linked to the hub", "hub", m.hubURL)
		m.a.touch()
	}
}

// hubSession declares, then watches until the connection breaks. worked is true once the hub has
// answered.
func (m *member) hubSession(life context.Context) (worked bool, err error) {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	select {
	case <-m.declare:
	default:
	}
	refused := false
	if m.mayDeclare() {
		if refused, err = m.declareNow(ctx); err != nil {
			return false, err
		}
		m.linked()
	}
	broke, ended := m.startWatch(ctx, life)
	defer ended()
	defer cancel()
	timer := time.NewTimer(redeclare)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case err := <-broke:
			m.mu.Lock()
			worked := m.hubState.Connected
			m.mu.Unlock()
			return worked, err
		case <-m.declare:
		case <-timer.C:
			if !refused {
				timer.Reset(redeclare)
				continue
			}
		}
		if m.mayDeclare() {
			if refused, err = m.declareNow(ctx); err != nil {
				return true, err
			}
		} else {
			m.giveUp(ctx)
		}
		timer.Reset(redeclare)
	}
}
