package link

import (
	"crypto/tls"
	"net"
	"strings"
	"time"

	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/datagram"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// binding is a connection between its opening and its session.
type binding struct {
	carrier string
	ctl     interface {
		controlConn
		opening.Conn
	}
	qc            *quic.Conn
	shared        *datagram.Carrier // the socket of qc, where it can be shared; else nil
	cs            tls.ConnectionState
	local, remote net.Addr
	target        tcpTarget // where lanes go; agent only
	close         func(error)
}

// wrongEdge reports a server name of another edge.
func (a *Acceptor) wrongEdge(cs tls.ConnectionState) *reason.Error {
	id, rest, _ := strings.Cut(cs.ServerName, ".")
	if !strings.HasPrefix(rest, "edge.") || id == a.cfg.Key.ID() {
		return nil
	}
	return reason.New(reason.WrongEdge, reason.HopEdge, "this is edge %s, not %s; each edge's advertised address must reach only that edge", a.cfg.Key.ID(), id)
}

// acceptSession checks the proof and starts the session.
func (a *Acceptor) acceptSession(o *wirev1.Opening, b *binding) (*session, *reason.Error) {
	if e := a.wrongEdge(b.cs); e != nil {
		return nil, e
	}
	if o.Role != wirev1.Role_ROLE_AGENT && o.Role != wirev1.Role_ROLE_OPERATOR {
		return nil, reason.New(reason.TokenWrongKind, reason.HopEdge, "role %v opens no sessions; agents and operators do", o.Role)
	}
	if len(o.ReplicaId) != 16 || len(o.TokenId) != 16 {
		return nil, reason.New(reason.Invalid, reason.HopEdge, "replica id or token id has a wrong length")
	}
	adm := a.cfg.Admit(o, addrPort(b.remote))
	if adm.Credential == nil && adm.Refusal != nil {
		return nil, adm.Refusal // the edge knows nothing yet, so it cannot call the token unknown
	}
	if e := opening.Verify(o, adm.Credential, a.cfg.Key.Public(), b.cs, reason.HopEdge, clock()); e != nil {
		return nil, e
	}
	if adm.Refusal != nil {
		return nil, adm.Refusal
	}
	node, err := identity.PeerKey(b.cs)
	if err != nil {
		return nil, reason.Wrap(err, reason.ProofInvalid, reason.HopEdge, "no node key")
	}
	a.probeSiblings(o)
	if a.cfg.Enrol != nil {
		done, e := a.cfg.Enrol(a.ctx, o)
		if e != nil {
			return nil, e
		}
		defer done()
	}
	key := replicaKey{node: string(node), replica: string(o.ReplicaId), token: string(o.TokenId)}

	a.mu.Lock()
	if a.closed || a.draining {
		a.mu.Unlock()
		return nil, reason.New(reason.Draining, reason.HopEdge, "this edge is shutting down; use another one")
	}
	r := a.replicas[key]
	if r == nil {
		r = newReplica(a, key, o)
		a.replicas[key] = r
	}
	a.mu.Unlock()
	if !r.openings.Allow() {
		return nil, reason.New(reason.RateLimited, reason.HopEdge, "this agent opened sessions too often; it may try again in a few seconds")
	}
	return a.join(r, o, b)
}

// join adds a proven session to its replica and starts it.
func (a *Acceptor) join(r *Replica, o *wirev1.Opening, b *binding) (*session, *reason.Error) {
	r.events.Lock()
	defer r.events.Unlock()
	older := r.pair.all()
	s := newSession(r.pair, o.Session, b.carrier, b.ctl, b.qc, b.local, b.remote, b.close)
	raw, err := newRawKey(b.cs)
	if err != nil {
		return nil, reason.Wrap(err, reason.ProofInvalid, reason.HopEdge, "no exported key")
	}
	s.raw = raw
	if err := s.shareSocket(b.shared, b.cs, false); err != nil {
		return nil, reason.Wrap(err, reason.ProofInvalid, reason.HopEdge, "no exported key")
	}
	a.mu.Lock()
	if r.gone || !r.pair.add(s) {
		a.mu.Unlock()
		return nil, reason.New(reason.Draining, reason.HopEdge, "this replica was closed; reconnect")
	}
	r.lastSession = time.Time{}
	a.raw[raw.id] = s
	a.mu.Unlock()
	// The session is known before the agent is, so that its first lane finds it.
	if err := opening.Accept(b.ctl, o, a.cfg.Edges()); err != nil {
		r.pair.withdraw(s)
		a.forgetRaw(s)
		b.close(err)
		a.noteEnd(r, false)
		return nil, reason.Wrap(err, reason.Internal, reason.HopEdge, "answer opening")
	}
	a.metrics.session(b.carrier, 1)
	a.log.Info("session opened", "replica", r.ID(), "host", r.hostName, "session", s.number, "carrier", s.carrier, "remote", addrPort(b.remote), "mode", modeText(o.Mode))
	a.retire(r, s, older, o.Mode)
	if len(older) == 0 && a.cfg.Joined != nil {
		a.cfg.Joined(r)
	}
	s.start()
	r.lanes.retell()
	return s, nil
}

// modeText is a session's mode as logs name it.
func modeText(m wirev1.SessionMode) string {
	switch m {
	case wirev1.SessionMode_SESSION_MODE_SUPERSEDE:
		return "supersede"
	case wirev1.SessionMode_SESSION_MODE_UPGRADE:
		return "upgrade"
	}
	return "new"
}

// retire deals with the older sessions of a replica as the new one's mode says.
func (a *Acceptor) retire(r *Replica, s *session, older []*session, mode wirev1.SessionMode) {
	switch mode {
	case wirev1.SessionMode_SESSION_MODE_SUPERSEDE:
		for _, o := range older {
			if o.number < s.number {
				o.close(errReplaced)
			}
		}
		r.lanes.dropIdle()
		r.raw.dropIdle()
	case wirev1.SessionMode_SESSION_MODE_UPGRADE:
		for _, o := range older {
			if o.number < s.number {
				o.replaced.Store(true)
			}
		}
	default:
		r.pair.probe(s)
	}
}

// probeSiblings asks the other replicas of a token for a sign of life when one of them arrives.
func (a *Acceptor) probeSiblings(o *wirev1.Opening) {
	for _, r := range a.Replicas() {
		if r.key.token == string(o.TokenId) && r.key.replica != string(o.ReplicaId) {
			r.Probe()
		}
	}
}

// acceptLane adds a lane to the replica that proved the same node key.
func (a *Acceptor) acceptLane(c *tls.Conn, o *wirev1.Opening) *reason.Error {
	cs := c.ConnectionState()
	if e := a.wrongEdge(cs); e != nil {
		return e
	}
	node, err := identity.PeerKey(cs)
	if err != nil {
		return reason.Wrap(err, reason.ProofInvalid, reason.HopEdge, "no node key")
	}
	var r *Replica
	a.mu.Lock()
	for k, v := range a.replicas {
		if k.node == string(node) && k.replica == string(o.ReplicaId) && !v.gone {
			r = v
		}
	}
	a.mu.Unlock()
	if r == nil {
		return reason.New(reason.ProofInvalid, reason.HopEdge, "a lane needs a session of the same node key; open one first")
	}
	if err := opening.Accept(c, o, nil); err != nil {
		return reason.Wrap(err, reason.Internal, reason.HopEdge, "answer opening")
	}
	if l := newLane(o.Lane.Id, c); !r.lanes.join(l) {
		l.destroy(false)
	}
	return nil
}
