package link

import (
	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// This file is all that flows know of sessions, and sessions of flows.
//
// Sessions give flows:
//   - pair.current: the session of this (replica, edge) to send on,
//   - session.takesDatagrams, session.qc.SendDatagram: one QUIC DATAGRAM frame,
//   - session.sealed: the short way for datagrams, nil if there is none,
//   - session.send: a control frame, queued, never blocking,
//   - pair.owner.handler: nil at the edge, else what serves new flows,
//   - Replica.Open (edge only): a stream for the datagrams that need one. Its header has
//     KIND_UDP and the flow's number. At the agent such a stream comes to flowTable.stream
//     already accepted,
//   - pair.goFunc, pair.log.
//
// Flows give sessions the flowTable.

// flowTable holds the flows of one pair. newFlows makes it. Flows look for the session whenever
// they send: without one they wait for the next, up to the pair's end.
type flowTable interface {
	// datagram gets each received QUIC datagram, from one goroutine per session.
	datagram(s *session, b []byte)
	// sealed gets each datagram that came sealed, from the goroutine that reads the socket, and
	// returns the flow that took it.
	sealed(s *session, b []byte) *flow
	// control gets FlowAck, FlowUnknown, FlowEnd and FlowStream.
	control(s *session, m *wirev1.Control)
	// stream gets an accepted stream of KIND_UDP, in a goroutine of its own, and closes it.
	stream(st Stream, h *wirev1.StreamHeader)
	// count is the number of flows open now.
	count() int64
	// close ends all flows.
	close()
}

// takesDatagrams reports whether both sides take QUIC datagrams.
func takesDatagrams(qc *quic.Conn) bool {
	if qc == nil {
		return false
	}
	d := qc.ConnectionState().SupportsDatagrams
	return d.Local && d.Remote
}

func (s *session) readDatagrams() error {
	for {
		b, err := s.qc.ReceiveDatagram(s.ctx)
		if err != nil {
			return err
		}
		s.pair.flows.datagram(s, b)
	}
}
