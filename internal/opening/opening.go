// Package opening is the first exchange on adit/1 and adit-hub/1 connections: the dialler says
// who it is and proves it, the acceptor agrees on a version or refuses with a reason.
package opening

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// Timeout bounds everything before authentication, at the side that accepts.
const Timeout = 5 * time.Second

// replyTimeout is how long the dialler waits for the reply. It is longer than Timeout, so that
// a slow moment never has the acceptor use a connection that the dialler has just given up.
const replyTimeout = 2 * Timeout

// ALPN protocol names.
const (
	ALPNSession = "adit/1"
	ALPNHub     = "adit-hub/1"
)

// Conn is what an opening runs over: a TLS connection's stream, or the first QUIC stream.
type Conn interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	SetDeadline(t time.Time) error
}

// Dialler is who opens connections: constant for a process.
type Dialler struct {
	Role      wirev1.Role
	Keys      *identity.TokenKeys
	Node      *identity.NodeKey
	ReplicaID []byte
	HostName  string
	Software  string
}

// Open sends the opening o (session number, mode or lane set by the caller) over c, whose TLS
// state is cs, and returns the reply. A refusal is returned as *reason.Error.
func (d *Dialler) Open(ctx context.Context, c Conn, cs tls.ConnectionState, o *wirev1.Opening) (*wirev1.OpeningReply, error) {
	o.MinVersion, o.MaxVersion = wire.MinVersion, wire.MaxVersion
	o.Role, o.ReplicaId = d.Role, d.ReplicaID
	if o.Lane == nil {
		peer, err := identity.PeerKey(cs)
		if err != nil {
			return nil, err
		}
		exp, err := cs.ExportKeyingMaterial(identity.ExporterLabel, nil, identity.ExporterSize)
		if err != nil {
			return nil, fmt.Errorf("tls exporter: %w", err)
		}
		o.TokenId, o.HostName, o.Software = d.Keys.Public().ID(), d.HostName, d.Software
		o.Ed25519Signature, o.Mldsa65Signature, err = d.Keys.Sign(identity.ProofMessage(d.Role.String(), d.Node.Public(), peer, exp))
		if err != nil {
			return nil, err
		}
	}
	if err := setDeadline(ctx, c, replyTimeout); err != nil {
		return nil, err
	}
	if err := wire.WriteFrame(c, o, wire.MaxOpening); err != nil {
		return nil, fmt.Errorf("send opening: %w", err)
	}
	reply := &wirev1.OpeningReply{}
	if err := wire.ReadFrame(c, reply, wire.MaxOpening); err != nil {
		return nil, fmt.Errorf("read opening reply: %w", err)
	}
	if r := reply.GetRefusal(); r != nil {
		return nil, reason.FromRefusal(r)
	}
	if reply.Version < wire.MinVersion || reply.Version > wire.MaxVersion {
		return nil, reason.New(reason.VersionUnsupported, "", "the other side chose protocol version %d, this side speaks %d to %d; update the older one", reply.Version, wire.MinVersion, wire.MaxVersion)
	}
	return reply, c.SetDeadline(time.Time{})
}

// Read reads the dialler's opening within Timeout and checks its version range. On a version
// skew it answers the refusal itself.
func Read(ctx context.Context, c Conn, hop string) (*wirev1.Opening, error) {
	if err := setDeadline(ctx, c, Timeout); err != nil {
		return nil, err
	}
	o := &wirev1.Opening{}
	if err := wire.ReadFrame(c, o, wire.MaxOpening); err != nil {
		return nil, fmt.Errorf("read opening: %w", err)
	}
	if o.MaxVersion < wire.MinVersion || o.MinVersion > wire.MaxVersion {
		e := reason.New(reason.VersionUnsupported, hop, "the other side speaks protocol versions %d to %d, this side %d to %d; update the older one", o.MinVersion, o.MaxVersion, wire.MinVersion, wire.MaxVersion)
		Refuse(c, e)
		return nil, e
	}
	return o, nil
}

// Accept answers an opening with the agreed version.
func Accept(c Conn, o *wirev1.Opening, edges []*wirev1.EdgeAddress) error {
	if err := wire.WriteFrame(c, &wirev1.OpeningReply{Version: min(o.MaxVersion, wire.MaxVersion), Edges: edges}, wire.MaxOpening); err != nil {
		return fmt.Errorf("answer opening: %w", err)
	}
	return c.SetDeadline(time.Time{})
}

// Refuse answers an opening with e. Errors of the write are ignored: the peer is leaving anyway.
func Refuse(c Conn, e *reason.Error) {
	_ = c.SetDeadline(time.Now().Add(Timeout))
	_ = wire.WriteFrame(c, &wirev1.OpeningReply{Refusal: e.Refusal()}, wire.MaxOpening)
}

// Verify checks the proof of a (non-lane) opening against the token's public keys, and that the
// credential may be used now. self is the acceptor's own key; cs its TLS state.
func Verify(o *wirev1.Opening, cred *hubv1.Credential, self ed25519.PublicKey, cs tls.ConnectionState, hop string, now time.Time) *reason.Error {
	if cred == nil {
		return reason.New(reason.TokenUnknown, hop, "this server does not know the token; is it a token of another server, or was its invite deleted?")
	}
	node, err := identity.PeerKey(cs)
	if err != nil {
		return reason.Wrap(err, reason.ProofInvalid, hop, "no node key")
	}
	exp, err := cs.ExportKeyingMaterial(identity.ExporterLabel, nil, identity.ExporterSize)
	if err != nil {
		return reason.Wrap(err, reason.ProofInvalid, hop, "no TLS exporter")
	}
	pub := identity.TokenPublic{Ed25519: cred.Ed25519Public, MLDSA65: cred.Mldsa65Public}
	if err := pub.Verify(identity.ProofMessage(o.Role.String(), node, self, exp), o.Ed25519Signature, o.Mldsa65Signature); err != nil {
		return reason.Wrap(err, reason.ProofInvalid, hop, "the token's proof does not verify")
	}
	if cred.Revoked {
		return reason.New(reason.TokenRevoked, hop, "the token %q was revoked; create a new invite", cred.Name)
	}
	if e := cred.GetExpiresAt(); e != nil && !now.Before(e.AsTime()) {
		return reason.New(reason.TokenExpired, hop, "the token %q expired at %s; create a new invite", cred.Name, e.AsTime().Format(time.RFC3339))
	}
	return nil
}

func setDeadline(ctx context.Context, c Conn, limit time.Duration) error {
	t := time.Now().Add(limit)
	if d, ok := ctx.Deadline(); ok && d.Before(t) {
		t = d
	}
	return c.SetDeadline(t)
}

var _ Conn = net.Conn(nil)
