package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/origin"
	"github.com/adit-dev/adit/internal/reason"
)

// The managed set is what the hub wants this agent to serve. It comes whole, with its revision, and
// is applied by difference: what did not change is not touched.

const sourceManaged = "managed"

// desired is what the agent is to serve.
type desired struct {
	// declared are the agent's lists, labelled what labels of discovered services declare.
	declared, labelled config.Services
	// managed is in the order of ids; known is false until hub or state have told it.
	managed  []*hubv1.Tunnel
	revision uint64
	known    bool
}

// change changes what the agent declares; nothing changes if the outcome cannot be served.
func (a *Agent) change(f func(*desired)) (old, now *table, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old = a.handler.table.Load()
	want := a.want
	f(&want)
	if now, err = newTable(want.all(), want.managed, old); err != nil {
		return old, nil, err
	}
	a.want = want
	a.handler.table.Store(now)
	return old, now, nil
}

// setManaged takes a complete managed set from where it came from, "hub" or "state".
func (a *Agent) setManaged(m *member, from string, revision uint64, list []*hubv1.Tunnel) {
	list = slices.DeleteFunc(list, func(t *hubv1.Tunnel) bool { return t.GetDisabled() })
	slices.SortFunc(list, func(x, y *hubv1.Tunnel) int { return strings.Compare(x.GetId(), y.GetId()) })
	a.mu.Lock()
	if a.current.Load() != m {
		a.mu.Unlock()
		return // a token that was replaced has no say
	}
	first := !a.want.known
	a.want.known = true
	old := a.handler.table.Load()
	t, err := newTable(a.want.all(), list, old)
	if err != nil {
		a.mu.Unlock()
		a.log.Error("the managed tunnels are not used; the last good set stays", "source", from, "revision", revision, "error", err)
		return
	}
	a.want.managed, a.want.revision = list, revision
	a.handler.table.Store(t)
	a.mu.Unlock()
	if first || !t.equal(old) {
		a.logManaged(old, t, from, revision)
		if from == "hub" {
			a.saveManaged(m.tokenID, revision, list)
		}
	}
	if t.equal(old) {
		return
	}
	a.checks.follow(t)
	m.serve()
	wake(m.reports)
	a.touch()
}

func (a *Agent) logManaged(old, now *table, from string, revision uint64) {
	added, changed, removed := 0, 0, 0
	for id, s := range now.byID {
		switch o := old.byID[id]; {
		case s.managed == nil || o == s:
		case o == nil:
			added++
		default:
			changed++
		}
		if s.managed != nil && s.problem != nil && (old.byID[id] == nil || old.byID[id].problem == nil) {
			a.log.Error("a managed tunnel cannot be served", "tunnel", s.declared.GetName(), "reason", s.problem.Code, "detail", s.problem.Detail)
		}
	}
	for id, s := range old.byID {
		if s.managed != nil && now.byID[id] == nil {
			removed++
		}
	}
	a.log.Info("managed tunnels", "source", from, "revision", revision, "added", added, "changed", changed, "removed", removed, "total", now.managed())
}

// managed counts the managed tunnels.
func (t *table) managed() (n int) {
	for _, s := range t.services {
		if s.managed != nil {
			n++
		}
	}
	return n
}

// managedService is what serves a managed tunnel. One that cannot be served harms no other: it is
// there with its problem.
func managedService(t *hubv1.Tunnel, old *table) *service {
	if old != nil {
		if o := old.byID[t.GetId()]; o != nil && o.managed != nil && proto.Equal(o.managed, t) {
			return o
		}
	}
	d := &hubv1.DeclaredTunnel{Key: "managed " + t.GetName(), Name: t.GetName(), Kind: t.GetKind(), Hostname: t.GetHostname(),
		Port: t.GetPort(), PortLast: t.GetPortLast(), Access: t.GetAccess().GetMode(), CarrierPolicy: t.GetCarrierPolicy()}
	s := &service{declared: d, id: t.GetId(), managed: t}
	if len(t.GetOrigins()) == 1 {
		d.Origin = t.GetOrigins()[0]
	} else {
		d.Origins = t.GetOrigins()
	}
	for i, o := range t.GetOrigins() {
		spec, err := origin.Parse(o)
		if err != nil {
			s.problem = reason.New(reason.Invalid, reason.HopAgent, "origin %d: %v", i, err).Safe()
		}
		s.origins = append(s.origins, spec)
	}
	if len(s.origins) == 0 {
		s.problem = reason.New(reason.Invalid, reason.HopAgent, "the tunnel has no origin").Safe()
	}
	return s
}

// originText is the first origin as people write it.
func (s *service) originText() string {
	if len(s.origins) > 0 && s.origins[0] != nil {
		return s.origins[0].String()
	}
	if o := s.managed.GetOrigins(); len(o) > 0 {
		return o[0].GetUrl()
	}
	return ""
}

// savedSet is <state-dir>/managed.json. It holds what is needed to serve, no passwords.
type savedSet struct {
	TokenID  string            `json:"token_id"`
	Revision uint64            `json:"revision"`
	Tunnels  []json.RawMessage `json:"tunnels"`
}

func (a *Agent) managedPath() string { return filepath.Join(a.cfg.StateDir, "managed.json") }

// saveManaged writes the set if a state folder is set; a failure costs only the next start without
// the hub.
func (a *Agent) saveManaged(tokenID string, revision uint64, list []*hubv1.Tunnel) {
	if a.cfg.StateDir == "" {
		return
	}
	s := savedSet{TokenID: tokenID, Revision: revision, Tunnels: []json.RawMessage{}}
	for _, t := range list {
		b, err := protojson.Marshal(t)
		if err != nil {
			a.log.Warn("a managed tunnel was not saved", "tunnel", t.GetName(), "error", err)
			continue
		}
		s.Tunnels = append(s.Tunnels, b)
	}
	if err := writeState(a.managedPath(), s); err != nil {
		a.log.Warn("the managed tunnels were not saved", "state_dir", a.cfg.StateDir, "error", err)
	}
}

// loadManaged takes the saved set of m's token, if there is one.
func (a *Agent) loadManaged(m *member) {
	if a.cfg.StateDir == "" || !m.exclusive {
		return
	}
	s, list, err := readManaged(a.managedPath())
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && s.TokenID != m.tokenID:
	case err != nil:
		a.log.Warn("the saved managed tunnels are not used", "file", a.managedPath(), "error", err)
	default:
		a.setManaged(m, "state", s.Revision, list)
	}
}

func readManaged(path string) (*savedSet, []*hubv1.Tunnel, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	s := &savedSet{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, nil, err
	}
	var out []*hubv1.Tunnel
	for i, raw := range s.Tunnels {
		t := &hubv1.Tunnel{}
		// A set that a newer agent saved may say more.
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, t); err != nil {
			return nil, nil, fmt.Errorf("tunnel %d: %w", i, err)
		}
		out = append(out, t)
	}
	return s, out, nil
}
