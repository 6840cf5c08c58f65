package forward

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTicket(t *testing.T) {
	pub, key, _ := ed25519.GenerateKey(rand.Reader)
	other, _, _ := ed25519.GenerateKey(rand.Reader)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	text, err := Sign(key, &hubv1.ForwardTicket{Forwarder: "f", Agent: "a", Target: "10.0.0.5:22", ExpiresAt: timestamppb.New(now.Add(TicketTime))})
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(text)
	flipped[3] ^= 1
	for _, c := range []struct {
		name string
		keys [][]byte
		text string
		now  time.Time
		want error
	}{
		{"good", [][]byte{pub}, text, now, nil},
		{"signed with one of several keys", [][]byte{other, pub}, text, now, nil},
		{"another key", [][]byte{other}, text, now, ErrTicket},
		{"no key", nil, text, now, ErrTicket},
		{"a key of another size", [][]byte{pub[:31]}, text, now, ErrTicket},
		{"expired", [][]byte{pub}, text, now.Add(2 * TicketTime), ErrExpired},
		{"within the skew of clocks", [][]byte{pub}, text, now.Add(TicketTime + clockSkew/2), nil},
		{"changed", [][]byte{pub}, string(flipped), now, ErrTicket},
		{"cut", [][]byte{pub}, text[:len(text)-1], now, ErrTicket},
		{"without a signature", [][]byte{pub}, text[:strings.Index(text, ".")], now, ErrTicket},
		{"empty", [][]byte{pub}, "", now, ErrTicket},
		{"long", [][]byte{pub}, text + strings.Repeat("A", maxTicket), now, ErrTicket},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Verify(c.keys, c.text, c.now)
			if !errors.Is(err, c.want) || err == nil && got.GetTarget() != "10.0.0.5:22" {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"10.0.0.5:22", "10.0.0.5:22"}, {"tcp://DB.example:5432", "db.example:5432"}, {"[FD00::1]:22", "[fd00::1]:22"},
		{"localhost:1", "localhost:1"}, {"db:5432", "db:5432"}, {"10.0.0.5", ""}, {":22", ""}, {"a:0", ""}, {"a:99999", ""}, {"udp://a:1", ""}, {"http://a:1", ""},
		{"fd00::1:22", ""}, {"a b:1", ""}, {"", ""}, {"a:1/x", ""},
	} {
		got, err := Target(c.text)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
}

func FuzzTicket(f *testing.F) {
	pub, key, _ := ed25519.GenerateKey(rand.Reader)
	good, _ := Sign(key, &hubv1.ForwardTicket{Agent: "a"})
	f.Add(good)
	f.Add("AA.AA")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := Verify([][]byte{pub}, text, time.Unix(0, 0)); err == nil && text != good {
			// Base64 has several spellings of the same bytes, which is no forgery.
			if b, _, _ := strings.Cut(text, "."); b == "" {
				t.Errorf("%q is accepted", text)
			}
		}
		if target, err := Target(text); err == nil {
			if again, err := Target(target); err != nil || again != target {
				t.Errorf("%q -> %q -> %q, %v", text, target, again, err)
			}
		}
	})
}

// edge is one that carries to a TCP address.
type edge struct {
	addr string
	key  *identity.NodeKey
	// refuse refuses every ticket; stop ends what is carried.
	refuse *reason.Error
	stop   context.CancelFunc
}

func newEdge(t *testing.T, to string, refuse *reason.Error) *edge {
	t.Helper()
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	e := &edge{addr: l.Addr().String(), key: key, refuse: refuse, stop: cancel}
	cfg := &tls.Config{Certificates: []tls.Certificate{key.Certificate()}, NextProtos: []string{ALPN}, MinVersion: tls.VersionTLS13}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { e.serve(ctx, tls.Server(raw, cfg), to) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); cancel(); wg.Wait() })
	return e
}

func (e *edge) serve(ctx context.Context, c *tls.Conn, to string) {
	defer func() { _ = c.Close() }()
	if ticket, err := Accept(c); err != nil || ticket != "ticket" {
		return
	}
	if e.refuse != nil {
		_, _ = Reply(c, e.refuse)
		return
	}
	up, err := net.Dial("tcp", to)
	if err != nil {
		_, _ = Reply(c, reason.New(reason.OriginRefused, reason.HopOrigin, "%v", err))
		return
	}
	down, err := Reply(c, nil)
	if err != nil {
		return
	}
	Carry(ctx, down, tcp{up.(*net.TCPConn)})
}

type tcp struct{ *net.TCPConn }

func (c tcp) Abort() { _ = c.SetLinger(0); _ = c.Close() }

func (e *edge) as(name string) *hubv1.ForwardEdge {
	return &hubv1.ForwardEdge{Addresses: []string{e.addr}, KeyHash: e.key.Hash(), ServerName: name}
}

// origin serves each connection with f.
func origin(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer func() { _ = c.Close() }(); f(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestDial(t *testing.T) {
	echo := origin(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() })
	good := newEdge(t, echo, nil)
	draining := newEdge(t, echo, reason.New(reason.Draining, reason.HopEdge, "x"))
	denied := newEdge(t, echo, reason.New(reason.OriginDenied, reason.HopAgent, "not permitted"))
	impostor := good.as("x")
	impostor.KeyHash = denied.key.Hash()
	for _, c := range []struct {
		name  string
		edges []*hubv1.ForwardEdge
		want  string
	}{
		{"one edge", []*hubv1.ForwardEdge{good.as("x")}, ""},
		{"the next where one drains", []*hubv1.ForwardEdge{draining.as("x"), good.as("x")}, ""},
		{"the next where one is not there", []*hubv1.ForwardEdge{{Addresses: []string{"127.0.0.1:1"}}, good.as("x")}, ""},
		{"refused by the agent", []*hubv1.ForwardEdge{denied.as("x"), good.as("x")}, "not permitted"},
		{"another key", []*hubv1.ForwardEdge{impostor}, "another key"},
		{"no edge", nil, "no edge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := Dial(t.Context(), c.edges, "ticket", nil)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			sent := bytes.Repeat([]byte("0123456789"), 100_000)
			go func() { _, _ = conn.Write(sent); _ = conn.CloseWrite() }()
			// The end of one direction leaves the other open until all has come back.
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
			}
		})
	}
}

// A reset stays one, and is not taken for an end.
func TestReset(t *testing.T) {
	seen := make(chan error, 1)
	e := newEdge(t, origin(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		seen <- err
	}), nil)
	c, err := Dial(t.Context(), []*hubv1.ForwardEdge{e.as("x")}, "ticket", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("x"))
	c.Abort()
	if err := <-seen; err == nil {
		t.Error("the origin took a reset for an end")
	}
	reset := newEdge(t, origin(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1)) // before that it would refuse the connection
		_ = c.SetLinger(0)
	}), nil)
	c, err = Dial(t.Context(), []*hubv1.ForwardEdge{reset.as("x")}, "ticket", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a reset of the origin was taken for an end")
	}
}

// The end of the edge's permission ends a connection that is idle.
func TestEnded(t *testing.T) {
	e := newEdge(t, origin(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), nil)
	c, err := Dial(t.Context(), []*hubv1.ForwardEdge{e.as("x")}, "ticket", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	e.stop()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
}
