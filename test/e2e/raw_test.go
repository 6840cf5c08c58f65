package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// TestRawPassthrough carries passthrough on raw lanes.
func TestRawPassthrough(t *testing.T) {
	const host = "raw.example.test"
	cert, key := selfSigned(t, host)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	origin, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close()
	go func() {
		for {
			c, err := origin.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err == nil {
					_ = c.(*tls.Conn).CloseWrite()
				}
			}()
		}
	}()
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{
		stack.Passthrough(host, origin.Addr().String()).With("carrier_policy", "raw"),
	}})
	dial := func(t *testing.T) *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", r.HTTPS, &tls.Config{ServerName: host, RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		return c
	}
	// echo sends size bytes and wants them back, the end after a half-close too.
	echo := func(t *testing.T, c *tls.Conn, size int) {
		t.Helper()
		defer c.Close()
		want := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{7}).Read(want)
		go func() {
			_, _ = c.Write(want)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d of %d bytes came back, %v", len(got), size, err)
		}
	}
	echo(t, dial(t), 1<<20) // asks for raw lanes
	for end := time.Now().Add(20 * time.Second); r.Server.Metric("adit_edge_lanes", `kind="raw"`) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no raw lane; the agent says\n%s", r.agent.Log())
		}
	}
	for range 20 {
		echo(t, dial(t), 100_000)
	}
	t.Run("the edge only splices what visitors and origins send", func(t *testing.T) {
		const size = 64 << 20
		c := dial(t)
		echoed := make([]byte, 1)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, echoed); err != nil {
			t.Fatal(err)
		}
		moved := stack.Trace(t, r.Server.Process)
		echo(t, c, size)
		calls := moved()
		if calls["splice"] < 2*size {
			t.Errorf("%d bytes spliced, want each of %d twice", calls["splice"], 2*size)
		}
		for call, n := range calls {
			if call != "splice" && n > 1<<20 {
				t.Errorf("%d bytes by %s", n, call)
			}
		}
	})
	t.Run("a visitor's reset reaches the origin's side and frees the lane", func(t *testing.T) {
		for range 10 {
			c := dial(t)
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.NetConn().Close()
		}
		for end := time.Now().Add(10 * time.Second); r.agent.Metric("adit_agent_streams") > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("streams are still open")
			}
		}
	})
}
