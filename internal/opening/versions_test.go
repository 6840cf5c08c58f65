package opening_test

import (
	"context"
	"net"
	"testing"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/wire"
)

// TestVersions has peers of other releases come: what both speak is used, else the reason is told.
func TestVersions(t *testing.T) {
	const lo, hi = wire.MinVersion, wire.MaxVersion
	for _, c := range []struct {
		name     string
		min, max uint32
		agreed   uint32 // 0 = refused
	}{
		{"L06 the same release", lo, hi, hi},
		{"L06 an older one that this release still supports", 0, lo, lo},
		{"L06 a newer one that still supports this release", hi, hi + 2, hi},
		{"L06 too old", 0, lo - 1, 0},
		{"L06 too new", hi + 1, hi + 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			defer there.Close()
			served := make(chan error, 1)
			go func() {
				o, err := opening.Read(context.Background(), there, reason.HopEdge)
				if err == nil {
					err = opening.Accept(there, o, nil)
				}
				served <- err
			}()
			if err := wire.WriteFrame(here, &wirev1.Opening{MinVersion: c.min, MaxVersion: c.max}, wire.MaxOpening); err != nil {
				t.Fatal(err)
			}
			reply := &wirev1.OpeningReply{}
			if err := wire.ReadFrame(here, reply, wire.MaxOpening); err != nil {
				t.Fatal(err)
			}
			err := <-served
			if c.agreed > 0 {
				if err != nil || reply.GetRefusal() != nil || reply.Version != c.agreed {
					t.Fatalf("%v, %v", err, reply)
				}
				return
			}
			refused := reason.FromRefusal(reply.GetRefusal())
			if !reason.Is(err, reason.VersionUnsupported) || refused.Code != reason.VersionUnsupported || refused.Hop != reason.HopEdge || refused.Detail == "" {
				t.Fatalf("%v, %v", err, reply)
			}
		})
	}
}
