package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

func TestUDP(t *testing.T) {
	echo := udpEcho(t)
	port := freeport.One(t)
	first := freeport.Run(t, 4)
	cfg := stack.AgentConfig{UDP: []stack.Service{stack.Port("echo", port, echo)}}
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("udp", "--udp-port", fmt.Sprint(port), "--udp-port", fmt.Sprintf("%d-%d", first, first+3))
	agent := stack.StartAgent(t, inv.File, cfg)
	s.WaitOnline(1, fmt.Sprint("udp:", port))

	t.Run("D10 datagrams of every size come back", func(t *testing.T) {
		for _, size := range []int{1, 512, 1163, 1200, 1472, 8000, 65507} {
			if err := echoDatagram(loopback(port), randomBytes(t, size)); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	})
	t.Run("many visitors keep their own answers", func(t *testing.T) {
		fail := make(chan error, 50)
		for i := range 50 {
			go func() { fail <- echoDatagram(loopback(port), fmt.Appendf(nil, "visitor %d", i)) }()
		}
		for range 50 {
			if err := <-fail; err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("D08 a flow survives a restart of the agent and of the server", func(t *testing.T) {
		c, err := net.Dial("udp", loopback(port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		alive := func(what string) {
			t.Helper()
			if err := echoDatagramOn(c, []byte(what), 40); err != nil {
				t.Fatalf("after %s: %v", what, err)
			}
		}
		alive("the start")
		agent.Terminate()
		agent.Wait(20 * time.Second)
		agent = stack.StartAgent(t, inv.File, cfg)
		alive("a restart of the agent")
		s.Terminate()
		s.Wait(30 * time.Second)
		s.Restart()
		agent.WaitReady(50 * time.Second)
		alive("a restart of the server")
	})
	t.Run("a range serves each of its ports", func(t *testing.T) {
		// A range reaches the same port at the origin, so the origins listen on another address.
		for p := first; p < first+4; p++ {
			c, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.2:%d", p))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go func() {
				buf := make([]byte, 2048)
				for {
					n, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					c.WriteTo(fmt.Appendf(nil, "%d %s", p, buf[:n]), from)
				}
			}()
		}
		stack.StartAgent(t, inv.File, stack.AgentConfig{UDP: []stack.Service{
			{"name": "range", "origin": "127.0.0.2", "listen_port_range": []int{first, first + 3}}}})
		s.WaitOnline(1, fmt.Sprint("udp:", first))
		for p := first; p < first+4; p++ {
			stack.Eventually(t, 10*time.Second, func() error {
				c, err := net.Dial("udp", loopback(p))
				if err != nil {
					return err
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Second))
				if _, err := c.Write([]byte("hi")); err != nil {
					return err
				}
				buf := make([]byte, 64)
				n, err := c.Read(buf)
				if want := fmt.Sprintf("%d hi", p); err == nil && string(buf[:n]) != want {
					t.Fatalf("got %q, want %q", buf[:n], want)
				}
				return err
			})
		}
	})
}
