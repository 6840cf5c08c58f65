package udp

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/edge/dial"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/freeport"
)

// originHandler carries flows to a UDP origin, a socket each.
type originHandler struct {
	linktest.HandlerFunc
	origin string
}

func (h *originHandler) ServeFlow(f link.Flow, _ *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	c, err := net.Dial("udp", h.origin)
	if err != nil {
		return nil, reason.Wrap(err, reason.OriginRefused, reason.HopAgent, "dial")
	}
	go func() {
		<-f.Done()
		_ = c.Close()
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			_ = f.Send(buf[:n])
		}
	}()
	return func(b []byte) { _, _ = c.Write(b) }, nil
}

// echoOrigin answers with the asker's port in front.
func echoOrigin(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return c.LocalAddr().String()
}

// ping sends n bytes until they come back: a datagram may be lost.
func ping(t *testing.T, c *net.UDPConn, n int) {
	t.Helper()
	sent := bytes.Repeat([]byte{byte(n), 7}, n/2+1)[:n]
	buf := make([]byte, 1<<16)
	for range 50 {
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for {
			m, err := c.Read(buf)
			if err != nil {
				break
			}
			if bytes.Equal(buf[:m], sent) {
				return
			}
		}
	}
	t.Fatalf("%d bytes do not come back", n)
}

func TestOverSessions(t *testing.T) {
	for _, carrier := range []string{link.CarrierQUIC, link.CarrierTLS} {
		t.Run(carrier, func(t *testing.T) {
			tok := linktest.NewToken(t)
			edge := linktest.NewEdge(t, []*linktest.Token{tok}, nil)
			h := &originHandler{origin: echoOrigin(t)}
			only := func(c *link.ConnectorConfig) { c.Carriers = []string{carrier} }
			agent := linktest.NewAgent(t, edge, tok, h, only)
			first := edge.Replica(t)
			b := start(t, nil, dial.Replica(first))
			port := uint32(freeport.Run(t, 1))
			b.mustSet(t, testTunnel("t1", port, 1))
			c := visit(t, "127.0.0.1", port)
			for _, n := range []int{1, 1200, 1472, 8000, 65507} {
				t.Run(fmt.Sprintf("D10 %d bytes from visitor to origin and back over %s", n, carrier), func(t *testing.T) { ping(t, c, n) })
			}
			t.Run("D08 the agent is restarted", func(t *testing.T) {
				agent.Stop()
				edge.Left(t)
				b.source.set()
				b.ReplicasChanged()
				_, _ = c.Write([]byte("nobody"))
				linktest.NewAgent(t, edge, tok, h, only)
				b.source.set(dial.Replica(edge.Replica(t)))
				b.ReplicasChanged()
				ping(t, c, 100)
			})
			if b.Flows() != 1 {
				t.Errorf("%d flows", b.Flows())
			}
		})
	}
}
