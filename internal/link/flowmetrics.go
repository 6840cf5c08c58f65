package link

import "github.com/prometheus/client_golang/prometheus"

// Reasons for which link drops datagrams.
const (
	dropQueueFull   = "queue_full"   // the flow's queue in front of the carrier is full
	dropMemory      = "memory"       // the queues of all flows of a replica together are full
	dropTooLarge    = "too_large"    // above 65,507 bytes
	dropNoSession   = "no_session"   // no session at the moment
	dropSessionLost = "session_lost" // the sessions tried were over
	dropNoStream    = "no_stream"    // no lane or stream for it in time
	dropFlowEnded   = "flow_ended"   // still waiting when the flow ended
	dropFlowUnknown = "flow_unknown" // arrived for a flow that is not known (any more)
	dropMalformed   = "malformed"    // does not parse
	dropLost        = "lost"         // missing by its sequence number
	dropPathFull    = "path_full"    // the path between edge and agent loses much of what it gets
	dropWriteFailed = "write_failed" // the kernel did not take it
)

// DatagramsDropped returns the counter adit_<part>_udp_datagrams_dropped_total{reason}; part is
// "edge" or "agent". Everyone who drops datagrams of that part counts here. reg may be nil.
func DatagramsDropped(reg prometheus.Registerer, part string) *prometheus.CounterVec {
	dropped := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "adit_" + part + "_udp_datagrams_dropped_total",
		Help: "Datagrams of udp tunnels that were dropped, by reason.",
	}, []string{"reason"}))
	// From zero, so that the first drop is an increase that alerts see.
	for _, reason := range []string{
		dropQueueFull, dropMemory, dropTooLarge, dropNoSession, dropSessionLost, dropNoStream,
		dropFlowEnded, dropFlowUnknown, dropMalformed, dropLost,
		dropPathFull, dropWriteFailed,
	} {
		dropped.WithLabelValues(reason)
	}
	return dropped
}
