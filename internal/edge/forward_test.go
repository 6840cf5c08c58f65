package edge

import (
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/forward"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

func TestForwards(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, _ := ed25519.GenerateKey(rand.Reader)
	tok := linktest.NewToken(t)
	agentID := credentialOf(tok).GetCredential().GetTokenId()
	forwarder := func(id, agent string) *hubv1.Resource {
		return &hubv1.Resource{Item: &hubv1.Resource_Forwarder{Forwarder: &hubv1.Forwarder{Id: id, Agent: agent}}}
	}
	hub := newHubFeed(credentialOf(tok), forwarder("f1", agentID), forwarder("other", "another agent"),
		&hubv1.Resource{Item: &hubv1.Resource_Settings{Settings: &hubv1.Settings{SigningKeys: [][]byte{pub}}}})
	r := startEdge(t, hub, nil).ready()
	startAgent(r, tok, link.CarrierQUIC, map[string]string{"": origin(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })})
	eventually(t, "the agent's session", func() bool { return len(r.registry.replicasOfAgent(agentID)) == 1 })
	edges := []*hubv1.ForwardEdge{{Addresses: []string{r.addr}, KeyHash: r.cfg.Key.Hash(), ServerName: r.name}}
	dial := func(id, agent string, by ed25519.PrivateKey, life time.Duration) (*forward.Conn, error) {
		text, err := forward.Sign(by, &hubv1.ForwardTicket{Forwarder: id, Agent: agent, Target: "10.0.0.5:22", ExpiresAt: timestamppb.New(time.Now().Add(life))})
		if err != nil {
			t.Fatal(err)
		}
		return forward.Dial(t.Context(), edges, text, nil)
	}
	for _, c := range []struct {
		name, id, agent string
		by              ed25519.PrivateKey
		life            time.Duration
		want            reason.Code
	}{
		{"signed by somebody else", "f1", agentID, foreign, time.Minute, reason.AccessDenied},
		{"expired", "f1", agentID, key, -time.Minute, reason.TokenExpired},
		{"for another agent than the forwarder's", "other", agentID, key, time.Minute, reason.AccessDenied},
		{"for an agent without a session", "other", "another agent", key, time.Minute, reason.NoAgent},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := dial(c.id, c.agent, c.by, c.life); !reason.Is(err, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	echoes := func(c *forward.Conn) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("ends with its forwarder, and others do not", func(t *testing.T) {
		hub.put(forwarder("f2", agentID))
		a, err := dial("f1", agentID, key, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Close() }()
		b, err := dial("f2", agentID, key, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		echoes(a)
		echoes(b)
		hub.delete("forwarder/f1")
		if _, err := a.Read(make([]byte, 1)); err == nil {
			t.Error("the connection goes on")
		}
		echoes(b)
	})
	t.Run("waits for the word of a new forwarder", func(t *testing.T) {
		go func() {
			time.Sleep(50 * time.Millisecond) // the hub's word is slower than the ticket
			hub.put(forwarder("f3", agentID))
		}()
		c, err := dial("f3", agentID, key, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		echoes(c)
		_ = c.CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("the end: %v", err)
		}
		_ = c.Close()
	})
}
