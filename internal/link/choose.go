package link

import (
	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// ride is what carries a stream.
type ride int

const (
	// rideNone: there is no session.
	rideNone ride = iota
	// rideQUIC: a QUIC stream now.
	rideQUIC
	// rideQUICAndAsk: a QUIC stream now, and one more lane is wanted.
	rideQUICAndAsk
	// rideLane: an idle lane now.
	rideLane
	// rideWait: the next lane that is free.
	rideWait
)

// offer is what a replica has at the moment.
type offer struct {
	// quic and tcp: a session on such a carrier that takes streams.
	quic, tcp bool
	// idle lanes; lanes is false where the replica can hold none.
	idle  int
	lanes bool
}

// choose decides what a stream rides on: QUIC streams for what is interactive, lanes for the
// rest, never a wait while there is QUIC.
func choose(policy hubv1.CarrierPolicy, kind wirev1.Kind, class wirev1.Class, o offer) ride {
	if !o.quic && !o.tcp {
		return rideNone
	}
	if !o.quic {
		if o.idle > 0 {
			return rideLane
		}
		return rideWait
	}
	interactive := class == wirev1.Class_CLASS_INTERACTIVE || kind == wirev1.Kind_KIND_UDP
	if policy == hubv1.CarrierPolicy_CARRIER_POLICY_LATENCY {
		interactive = true
	}
	if policy == hubv1.CarrierPolicy_CARRIER_POLICY_THROUGHPUT {
		interactive = false
	}
	switch {
	case interactive || !o.lanes:
		return rideQUIC
	case o.idle > 0:
		return rideLane
	}
	return rideQUICAndAsk
}
