package link

import (
	"log/slog"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/adit-dev/adit/internal/wire"
)

// FuzzFlowDatagrams gives two datagrams of a peer to both sides.
func FuzzFlowDatagrams(f *testing.F) {
	header, err := proto.Marshal(testHeader(1))
	if err != nil {
		f.Fatal(err)
	}
	encode := func(d wire.Datagram) []byte {
		b, err := d.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	open := encode(wire.Datagram{Type: wire.DatagramOpen, Flow: 7, Header: header, Payload: []byte("x")})
	f.Add(open, encode(wire.Datagram{Type: wire.DatagramData, Flow: 7, Sequence: 40000, Payload: []byte("y")}))
	f.Add(encode(wire.Datagram{Type: wire.DatagramPart, Flow: 7, Count: 2, Payload: open[:9]}),
		encode(wire.Datagram{Type: wire.DatagramPart, Flow: 7, Index: 1, Count: 2, Payload: open[9:]}))
	f.Add(open, encode(wire.Datagram{Type: wire.DatagramOpen, Flow: 7, Header: []byte{0x12, 1, 'b'}}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var wg sync.WaitGroup
		set := func(part string) *flowSet {
			return &flowSet{log: slog.New(slog.DiscardHandler), goFunc: func(f func()) { wg.Go(f) },
				flows: make(map[uint32]*flow), dropped: DatagramsDropped(nil, part), current: func() flowCarrier { return nil }}
		}
		agent := newAgentFlows(set("agent"), &echoHandler{})
		edge := newEdgeFlows(set("edge"), nil)
		for _, b := range [][]byte{first, second} {
			agent.receiveDatagram(nil, b)
			edge.receiveDatagram(nil, b)
		}
		if agent.count() > 2 || edge.count() != 0 {
			t.Errorf("%d flows at the agent, %d at the edge", agent.count(), edge.count())
		}
		agent.close()
		edge.close()
		wg.Wait()
		if agent.count() != 0 || agent.queued.Load() != 0 {
			t.Errorf("%d flows and %d bytes are left", agent.count(), agent.queued.Load())
		}
	})
}
