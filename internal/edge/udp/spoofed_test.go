package udp

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/need"
)

// heap is the memory in use once garbage is collected.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestSpoofedSources floods a port from addresses that nobody has.
func TestSpoofedSources(t *testing.T) {
	need.Linux(t, "all of 127.0.0.0/8 is local there")
	n := 20_000
	if need.Soak() {
		n = 100_000
	}
	r := &replica{id: "A"}
	b := start(t, nil, r)
	port := uint32(freeport.Run(t, 1))
	b.mustSet(t, testTunnel("t1", port, 1))
	c := visit(t, "127.0.0.1", port)
	alive := func(when string) {
		t.Helper()
		// The queue of the socket may be full of the flood: a datagram may be lost.
		for range 50 {
			if ask(t, c, when, 100*time.Millisecond) == "A"+when {
				return
			}
		}
		t.Fatalf("an existing flow is dead %s", when)
	}
	alive("before")

	flood, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	// spoof sends from n addresses that begin with 127.network, and returns when each has a flow or
	// is counted as dropped.
	spoof := func(network byte) {
		t.Helper()
		accounted := func() float64 { return float64(b.Flows()) + b.drops(dropMaxFlows) + b.drops(dropSocketFull) }
		before := accounted()
		for i := range n {
			from := ipv4.ControlMessage{Src: []byte{127, network, 0, 0}}
			from.Src[1] += byte(i >> 16)
			from.Src[2], from.Src[3] = byte(i>>8), byte(i)
			if _, _, err := flood.WriteMsgUDPAddrPort([]byte("x"), from.Marshal(), to); err != nil {
				t.Fatal(err)
			}
			if i%5000 == 4999 {
				alive(fmt.Sprint("after ", i))
			}
		}
		eventually(t, "all accounted for", func() bool {
			alive("at the end") // The kernel tells of its drops with the next datagram.
			return accounted()-before >= float64(n)
		})
	}
	t.Run(fmt.Sprintf("%d spoofed sources, twice", n), func(t *testing.T) {
		spoof(16)
		if f := b.Flows(); f != DefaultMaxFlows {
			t.Errorf("%d flows, want the maximum of %d", f, DefaultMaxFlows)
		}
		full := heap()
		spoof(64)
		// Anything kept for each source would be more than 100 bytes.
		if grown := heap() - full; grown > int64(n)*100 {
			t.Errorf("%d more sources took %d KiB", n, grown>>10)
		}
		b.clock.Add(int64(DefaultIdle - time.Second))
		alive("almost idle")
		b.clock.Add(int64(2 * time.Second))
		b.sweep()
		alive("after the sweep")
		if f := b.Flows(); f != 1 || len(r.opened())-r.live() < DefaultMaxFlows-1 {
			t.Errorf("%d flows after the idle time, %d at the replica", f, r.live())
		}
	})
}
