package link

import (
	"errors"

	"github.com/quic-go/quic-go"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// This file is all that flows know of sessions, and sessions of flows.
//
// Sessions give flows:
//   - pair.current, pair.all: the sessions of this (replica, edge); the first is where to send,
//   - session.sendDatagram, session.maxDatagram: one QUIC DATAGRAM frame,
//   - session.send: a control frame, queued, never blocking,
//   - pair.owner.handler: nil at the edge, else what serves new flows,
//   - Replica.Open (edge only): a stream for the datagrams that need one. Its header has
//     KIND_UDP and the flow's number. At the agent such a stream comes to flowTable.stream
//     already accepted; at the edge Open's Stream is used after Answer,
//   - pair.goFunc, pair.active (streams and flows, for Active), pair.timing, pair.log.
//
// Flows give sessions the flowTable.

// flowTable holds the flows of one pair. newFlows makes it.
type flowTable interface {
	// datagram gets each received QUIC datagram, from one goroutine per session; b is the
	// receiver's to keep.
	datagram(s *session, b []byte)
	// control gets FlowAck, FlowUnknown, FlowEnd and FlowStream.
	control(s *session, m *wirev1.Control)
	// stream gets an accepted stream of KIND_UDP, in a goroutine of its own, and closes it.
	stream(st Stream, h *wirev1.StreamHeader)
	// sessionsChanged is called after a session came or went.
	sessionsChanged()
	// count is the number of flows open now.
	count() int64
	// left is called when the last session ended: flows wait for another one or end.
	left()
	// close ends all flows.
	close()
}

var (
	// errNoDatagrams: the carrier has none, a stream is needed.
	errNoDatagrams = errors.New("carrier has no datagrams")
	// errQueueFull: the datagram was dropped.
	errQueueFull = errors.New("datagram queue of the session is full")
)

// hasDatagrams reports whether both sides take QUIC datagrams.
func (s *session) hasDatagrams() bool {
	if s.qc == nil {
		return false
	}
	d := s.qc.ConnectionState().SupportsDatagrams
	return d.Local && d.Remote
}

// maxDatagram is the largest payload of one datagram now; it may grow or shrink with the path. 0
// means that the carrier has no datagrams.
func (s *session) maxDatagram() int {
	if s.dgram == nil {
		return 0
	}
	var e *quic.DatagramTooLargeError
	if errors.As(s.qc.SendDatagram(tooLarge), &e) {
		return int(e.MaxDatagramPayloadSize)
	}
	return 0
}

// tooLarge is refused by quic-go before it is queued, and the refusal tells the limit.
var tooLarge = make([]byte, 1<<16)

// sendDatagram queues b, which it keeps, and never blocks.
func (s *session) sendDatagram(b []byte) error {
	if s.dgram == nil {
		return errNoDatagrams
	}
	select {
	case s.dgram <- b:
		return nil
	default:
		return errQueueFull
	}
}

func (s *session) writeDatagrams() error {
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case b := <-s.dgram:
			var e *quic.DatagramTooLargeError
			// The path's limit may have sunk since b was cut: then it is lost like any datagram.
			if err := s.qc.SendDatagram(b); err != nil && !errors.As(err, &e) {
				return err
			}
		}
	}
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
