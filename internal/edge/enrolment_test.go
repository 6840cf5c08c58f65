package edge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
)

// enrolled is a token of an enrolled agent.
func enrolled(t *testing.T) *linktest.Token {
	tok := linktest.NewToken(t)
	tok.Credential.Kind = "agent"
	return tok
}

// heldOf is the credential with the hub's word on who holds it.
func heldOf(tok *linktest.Token, replica string, term uint64) *hubv1.Resource {
	c := proto.CloneOf(tok.Credential)
	c.HolderReplica, c.HolderTerm = replica, term
	if replica != "" {
		c.HolderHost, c.HolderSince = "far", timestamppb.New(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	}
	return &hubv1.Resource{Item: &hubv1.Resource_Credential{Credential: c}}
}

func otherEdge(t *testing.T) *hubv1.Resource {
	key, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	return &hubv1.Resource{Item: &hubv1.Resource_Edge{Edge: &hubv1.Edge{Address: &wirev1.EdgeAddress{Id: key.ID(), KeyHash: key.Hash(), Addresses: []string{"127.0.0.1:1"}}}}}
}

func waitFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	late := time.Now().Add(15 * time.Second)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func up(a *agent) func() error {
	return func() error {
		if len(a.Sessions()) == 0 {
			err, _ := a.LastError()
			return fmt.Errorf("no session: %v", err)
		}
		return nil
	}
}

func waits(a *agent, host string) func() error {
	return func() error {
		err, _ := a.LastError()
		if len(a.Sessions()) > 0 || !reason.Is(err, reason.Standby) || !strings.Contains(err.Error(), `"`+host+`" since 20`) {
			return fmt.Errorf("%d sessions, %v", len(a.Sessions()), err)
		}
		return nil
	}
}

func TestEnrolment(t *testing.T) {
	start := func(t *testing.T, rs ...*hubv1.Resource) (*rig, *hubFeed, *linktest.Token) {
		tok := enrolled(t)
		hub := newHubFeed(append(rs, heldOf(tok, "", 1))...)
		return startEdge(t, hub, func(c *Config) { c.StandbyWait = 200 * time.Millisecond }).ready(), hub, tok
	}
	run := func(r *rig, tok *linktest.Token) *agent { return startAgent(r, tok, link.CarrierTLS, nil) }

	t.Run("a second process is told who holds it, and takes over when that one goes", func(t *testing.T) {
		r, _, tok := start(t)
		a := run(r, tok)
		waitFor(t, "the first", up(a))
		b := run(r, tok)
		waitFor(t, "the second waits", waits(b, "home"))
		a.stop()
		waitFor(t, "the second", up(b))
	})
	t.Run("one that drains has given it up", func(t *testing.T) {
		r, _, tok := start(t)
		a := run(r, tok)
		waitFor(t, "the first", up(a))
		a.Drain()
		waitFor(t, "the drain", func() error {
			if rs := r.acceptor.Replicas(); len(rs) == 1 && !rs[0].Available() {
				return nil
			}
			return fmt.Errorf("not heard")
		})
		b := run(r, tok)
		waitFor(t, "the second", up(b))
	})
	t.Run("a holder at another edge keeps it until the hub says that it is gone", func(t *testing.T) {
		r, hub, tok := start(t, otherEdge(t))
		hub.put(heldOf(tok, "elsewhere", 2))
		b := run(r, tok)
		waitFor(t, "it waits", waits(b, "far"))
		hub.put(heldOf(tok, "", 3))
		waitFor(t, "it is admitted", up(b))
	})
	t.Run("the hub is away: an edge that saw the holder go decides alone, and heeds a later decision only", func(t *testing.T) {
		r, hub, tok := start(t, otherEdge(t))
		a := run(r, tok)
		waitFor(t, "the first", up(a))
		first := r.acceptor.Replicas()[0].ID()
		hub.put(heldOf(tok, first, 5))
		waitFor(t, "the feed", func() error {
			if r.view.Load().credentials[tok.Credential.GetTokenId()].GetHolderTerm() != 5 {
				return fmt.Errorf("not heard")
			}
			return nil
		})
		hub.setDown(true)
		waitFor(t, "the hub is away", func() error {
			if r.Connected() {
				return fmt.Errorf("it is heard")
			}
			return nil
		})
		b := run(r, tok)
		waitFor(t, "the second waits", waits(b, "home"))
		a.stop()
		waitFor(t, "the second", up(b))
		hub.setDown(false)
		waitFor(t, "the hub is back", func() error {
			if !r.Connected() {
				return fmt.Errorf("it is not heard")
			}
			return nil
		})
		waitFor(t, "the second goes on", up(b))
		hub.put(heldOf(tok, first, 6))
		waitFor(t, "the later decision", waits(b, "far"))
	})
	t.Run("an invite's replicas are not exclusive", func(t *testing.T) {
		tok := linktest.NewToken(t)
		r := startEdge(t, newHubFeed(credentialOf(tok)), nil).ready()
		a, b := run(r, tok), run(r, tok)
		waitFor(t, "one", up(a))
		waitFor(t, "two", up(b))
	})
	t.Run("a further token of the agent is the same enrolment", func(t *testing.T) {
		r, hub, tok := start(t)
		further := enrolled(t)
		further.Credential.MemberOf = tok.Credential.GetTokenId()
		hub.put(heldOf(further, "", 1))
		a := run(r, tok)
		waitFor(t, "the first", up(a))
		b := run(r, further)
		waitFor(t, "the second waits", waits(b, "home"))
		hub.put(func() *hubv1.Resource {
			c := heldOf(tok, "", 1)
			c.GetCredential().Disabled = true
			return c
		}())
		waitFor(t, "switched off", func() error {
			if err, _ := a.LastError(); !reason.Is(err, reason.Disabled) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	})
}

func TestDisabledTunnel(t *testing.T) {
	tok := linktest.NewToken(t)
	x := named(newTunnel(tok, "a", wirev1.Kind_KIND_HTTP, "http://127.0.0.1:1"), "a.test")
	hub := newHubFeed(credentialOf(tok), tunnelOf(x))
	r := startEdge(t, hub, nil).ready()
	known := func(want bool) func() error {
		return func() error {
			if got := r.view.Load().table.Get("a") != nil; got != want {
				return fmt.Errorf("known: %v", got)
			}
			return nil
		}
	}
	waitFor(t, "it is there", known(true))
	off := proto.CloneOf(x)
	off.Disabled = true
	hub.put(tunnelOf(off))
	waitFor(t, "as if it were not there", known(false))
	hub.put(tunnelOf(x))
	waitFor(t, "it is there again", known(true))
	hub.put(tunnelOf(off))
	waitFor(t, "as if it were not there", known(false))
	hub.delete("tunnel/a")
	waitFor(t, "still", known(false))
}
