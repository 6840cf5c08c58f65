package hub

import (
	"net"
	"testing"
)

// TestStandbyPlace: a standby has no session; that it runs somewhere new is told by its link to the hub.
func TestStandbyPlace(t *testing.T) {
	h := newTestHub(t)
	a := h.enrol("home")
	serving := h.replicaWith(a.GetTokenId())
	serving.caller.Remote = &net.TCPAddr{IP: net.ParseIP("198.51.100.1"), Port: 1}
	defer h.Serving(serving.caller)()
	s := serving.session()
	s.RemoteAddress = "192.0.2.1:4000"
	h.live(settling+conditionStep, s)
	h.live(conditionStep, s)
	// The address that the hub sees of the one that serves is noted, and no news.
	wantTold(t, h.told(), "agent_online agent/home")

	standby := h.replicaWith(a.GetTokenId())
	standby.caller.HostName, standby.caller.Remote = "other", &net.TCPAddr{IP: net.ParseIP("203.0.113.9"), Port: 1}
	end := h.Serving(standby.caller)
	h.live(2*conditionStep, s)
	wantTold(t, h.told(), "agent_online agent/home", "replica_new agent/home")
	end()

	// A process that takes its place on the same host is no news.
	again := h.replicaWith(a.GetTokenId())
	again.caller.HostName, again.caller.Remote = "other", &net.TCPAddr{IP: net.ParseIP("203.0.113.9"), Port: 2}
	defer h.Serving(again.caller)()
	h.live(2*conditionStep, s)
	again = h.replicaWith(a.GetTokenId())
	again.caller.Remote = serving.caller.Remote
	defer h.Serving(again.caller)()
	h.live(2*conditionStep, s)
	wantTold(t, h.told(), "agent_online agent/home", "replica_new agent/home")
}
