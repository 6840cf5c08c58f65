package opening_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

func nodeKey(t *testing.T) *identity.NodeKey {
	t.Helper()
	k, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// connect makes a mutually authenticated TLS connection between two keys.
func connect(t *testing.T, client, server *identity.NodeKey) (c, s *tls.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *tls.Conn, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		s := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{server.Certificate()}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13})
		_ = s.HandshakeContext(context.Background())
		accepted <- s
	}()
	c, err = tls.Dial("tcp", l.Addr().String(), &tls.Config{Certificates: []tls.Certificate{client.Certificate()}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	s = <-accepted
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c, s
}

func newToken(t *testing.T) (*identity.TokenKeys, *hubv1.Credential) {
	t.Helper()
	tok, err := identity.NewToken(identity.KindInvite, "https://hub.example.com", [][]byte{make([]byte, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	p := keys.Public()
	return keys, &hubv1.Credential{TokenId: p.HexID(), Name: "lab", Ed25519Public: p.Ed25519, Mldsa65Public: p.MLDSA65}
}

func TestOpening(t *testing.T) {
	keys, cred := newToken(t)
	_, other := newToken(t)
	now := time.Now()
	revoked := &hubv1.Credential{Name: "lab", Ed25519Public: cred.Ed25519Public, Mldsa65Public: cred.Mldsa65Public, Revoked: true}
	expired := &hubv1.Credential{Name: "lab", Ed25519Public: cred.Ed25519Public, Mldsa65Public: cred.Mldsa65Public, ExpiresAt: timestamppb.New(now)}
	half := &hubv1.Credential{Name: "lab", Ed25519Public: cred.Ed25519Public, Mldsa65Public: other.Mldsa65Public}
	for _, c := range []struct {
		name string
		cred *hubv1.Credential
		self bool // the acceptor checks with its own key; else with another's: a proof made for another peer
		want reason.Code
	}{
		{"good", cred, true, ""},
		{"unknown token", nil, true, reason.TokenUnknown},
		{"another token's keys", other, true, reason.ProofInvalid},
		{"only one of two signatures", half, true, reason.ProofInvalid},
		{"a proof for another peer", cred, false, reason.ProofInvalid},
		{"revoked", revoked, true, reason.TokenRevoked},
		{"expired", expired, true, reason.TokenExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, self := nodeKey(t), nodeKey(t)
			cc, sc := connect(t, node, self)
			d := &opening.Dialler{Role: wirev1.Role_ROLE_AGENT, Keys: keys, Node: node, ReplicaID: make([]byte, 16), HostName: "h", Software: "v"}
			served := make(chan *reason.Error, 1)
			go func() {
				o, err := opening.Read(context.Background(), sc, reason.HopEdge)
				if err != nil {
					served <- reason.Of(err, reason.HopEdge)
					return
				}
				key := self.Public()
				if !c.self {
					key = node.Public()
				}
				if e := opening.Verify(o, c.cred, key, sc.ConnectionState(), reason.HopEdge, now); e != nil {
					opening.Refuse(sc, e)
					served <- e
					return
				}
				if err := opening.Accept(sc, o, []*wirev1.EdgeAddress{{Id: "e"}}); err != nil {
					served <- reason.Of(err, reason.HopEdge)
					return
				}
				served <- nil
			}()
			reply, err := d.Open(context.Background(), cc, cc.ConnectionState(), &wirev1.Opening{Session: 1})
			if e := <-served; c.want == "" && (e != nil || err != nil || reply.Version != wire.MaxVersion || len(reply.Edges) != 1) {
				t.Fatalf("%v, %v, %v", e, err, reply)
			}
			if c.want != "" && (!reason.Is(err, c.want) || reason.Of(err, "").Hop != reason.HopEdge) {
				t.Fatalf("%v", err)
			}
		})
	}
	t.Run("a proof of another connection", func(t *testing.T) {
		node, self := nodeKey(t), nodeKey(t)
		c1, s1 := connect(t, node, self)
		_, s2 := connect(t, node, self)
		d := &opening.Dialler{Role: wirev1.Role_ROLE_AGENT, Keys: keys, Node: node, ReplicaID: make([]byte, 16)}
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = d.Open(ctx, c1, c1.ConnectionState(), &wirev1.Opening{}) }()
		o, err := opening.Read(context.Background(), s1, reason.HopEdge)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if e := opening.Verify(o, cred, self.Public(), s2.ConnectionState(), reason.HopEdge, now); e == nil || e.Code != reason.ProofInvalid {
			t.Fatalf("replayed: %v", e)
		}
	})
}

func TestReadEnds(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := opening.Read(ctx, a, reason.HopHub); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a silent peer: %v", err)
	}
	go func() { _, _ = b.Write([]byte{0, 0, 0x40, 1}) }()
	if _, err := opening.Read(context.Background(), a, reason.HopHub); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatalf("over 16 KiB: %v", err)
	}
}

// fuzzConn reads b and swallows writes.
type fuzzConn struct {
	b []byte
}

func (c *fuzzConn) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(p, c.b)
	c.b = c.b[n:]
	return n, nil
}
func (c *fuzzConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *fuzzConn) SetDeadline(time.Time) error { return nil }

func FuzzOpening(f *testing.F) {
	for _, o := range []*wirev1.Opening{
		{MinVersion: 1, MaxVersion: 1, Role: wirev1.Role_ROLE_AGENT, TokenId: make([]byte, 16), ReplicaId: make([]byte, 16), Session: 1},
		{MinVersion: 1, MaxVersion: 3, Lane: &wirev1.Lane{Id: 1}},
		{MinVersion: 9, MaxVersion: 9},
	} {
		b, err := wire.AppendFrame(nil, o, wire.MaxOpening)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := opening.Read(context.Background(), &fuzzConn{b}, reason.HopEdge)
		if err != nil {
			return
		}
		if o.MaxVersion < wire.MinVersion || o.MinVersion > wire.MaxVersion {
			t.Fatalf("versions %d to %d were accepted", o.MinVersion, o.MaxVersion)
		}
		if e := opening.Verify(o, &hubv1.Credential{}, nil, tls.ConnectionState{}, reason.HopEdge, time.Now()); e == nil {
			t.Fatal("an opening verified without a connection")
		}
	})
}
