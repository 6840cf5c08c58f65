package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/link/linktest"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
)

// TestUnproven is about what a connection may cost before it has proven itself.
func TestUnproven(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	node, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{opening.ALPNSession}, Certificates: []tls.Certificate{node.Certificate()},
		ServerName: edge.Key.ID() + ".edge." + linktest.HubHost,
	}
	dial := func(t *testing.T) *tls.Conn {
		c, err := tls.Dial("tcp", edge.Addr.String(), conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	t.Run("a silent one is closed after 5 s", func(t *testing.T) {
		c, start := dial(t), time.Now()
		_ = c.SetReadDeadline(start.Add(15 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(start) < 3*time.Second || time.Since(start) > 10*time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
	})
	t.Run("more than 16 KiB are not read", func(t *testing.T) {
		c := dial(t)
		_ = c.SetDeadline(time.Now().Add(4 * time.Second))
		_, _ = c.Write([]byte{0, 0, 0x40, 1})
		if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an oversized opening is waited for: %v", err)
		}
	})
	t.Run("a lane without a session", func(t *testing.T) {
		c := dial(t)
		d := linktest.NewDialler(t, tok)
		_, err := d.Open(ctx10(t), c, c.ConnectionState(), &wirev1.Opening{Lane: &wirev1.Lane{Id: 1}})
		if !reason.Is(err, reason.ProofInvalid) {
			t.Fatalf("lane: %v", err)
		}
	})
	t.Run("no client certificate", func(t *testing.T) {
		bare := conf.Clone()
		bare.Certificates = nil
		c, err := tls.Dial("tcp", edge.Addr.String(), bare)
		if err == nil {
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
		}
		if err == nil {
			t.Fatal("a connection without identity was taken")
		}
	})
	t.Run("a version skew is refused with a reason", func(t *testing.T) {
		c := dial(t)
		_, err := linktest.OpenRaw(c, &wirev1.Opening{MinVersion: 7, MaxVersion: 9})
		if !reason.Is(err, reason.VersionUnsupported) {
			t.Fatalf("%v", err)
		}
	})
	t.Run("Close does not wait for one", func(t *testing.T) {
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
		c, err := tls.Dial("tcp", edge.Addr.String(), conf)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := time.Now()
		edge.Close()
		if d := time.Since(start); d > 2*time.Second {
			t.Fatalf("closing took %v", d)
		}
	})
	t.Run("one address holds a bounded number", func(t *testing.T) {
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				_ = c.Close()
			}
		}()
		// Most places are taken without a handshake, which would take a slow machine too long.
		for range 250 {
			leave, ok := edge.Acceptor.Enter(netip.MustParseAddrPort("127.0.0.1:1"))
			if !ok {
				t.Fatal("refused below the cap")
			}
			defer leave()
		}
		closed := make(chan struct{}, 20)
		for range 20 {
			c, err := tls.Dial("tcp", edge.Addr.String(), conf)
			if err != nil {
				closed <- struct{}{}
				break
			}
			conns = append(conns, c)
			go func() {
				_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
				if _, err := c.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
					closed <- struct{}{}
				}
			}()
		}
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("270 unproven connections of one address are held")
		}
	})
}

// TestWebSocketAddress has an agent lie about its address.
func TestWebSocketAddress(t *testing.T) {
	t.Run("I02 X-Real-Ip is ignored", func(t *testing.T) {
		tok := linktest.NewToken(t)
		seen := make(chan netip.AddrPort, 4)
		edge := linktest.NewEdge(t, []*linktest.Token{tok}, func(c *link.AcceptorConfig) {
			fastEdge(c)
			admit := c.Admit
			c.Admit = func(o *wirev1.Opening, remote netip.AddrPort) link.Admission { seen <- remote; return admit(o, remote) }
		})
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
		defer tr.CloseIdleConnections()
		ws, _, err := websocket.Dial(ctx10(t), "https://"+edge.Addr.String()+"/.adit/session", &websocket.DialOptions{
			HTTPClient: &http.Client{Transport: tr}, Subprotocols: []string{"adit.1"},
			HTTPHeader: http.Header{"X-Real-Ip": {"203.0.113.9"}, "X-Forwarded-For": {"203.0.113.9"}, "Forwarded": {"for=203.0.113.9"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		d := linktest.NewDialler(t, tok)
		c := tls.Client(websocket.NetConn(context.Background(), ws, websocket.MessageBinary), &tls.Config{
			InsecureSkipVerify: true, NextProtos: []string{opening.ALPNSession}, Certificates: []tls.Certificate{d.Node.Certificate()},
			ServerName: edge.Key.ID() + ".edge." + linktest.HubHost,
		})
		if err := c.HandshakeContext(ctx10(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(ctx10(t), c, c.ConnectionState(), &wirev1.Opening{Session: 1}); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got.Addr() != netip.MustParseAddr("127.0.0.1") {
			t.Fatalf("admitted as %v", got)
		}
		if s := edge.Replica(t).Sessions(); s[0].Remote.Addr() != netip.MustParseAddr("127.0.0.1") {
			t.Fatalf("session of %v", s[0].Remote)
		}
	})
}

// TestProxy runs tls and ws, with their lanes, through a proxy's CONNECT.
func TestProxy(t *testing.T) {
	tok := linktest.NewToken(t)
	edge := linktest.NewEdge(t, []*linktest.Token{tok}, fastEdge)
	proxy := newProxy(t, "user", "secret")
	for _, carrier := range []string{link.CarrierTLS, link.CarrierWS} {
		t.Run(carrier, func(t *testing.T) {
			agent := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
				only(carrier)(c)
				c.Proxy = func(target *url.URL) (*url.URL, error) { return proxy.url("user", "secret"), nil }
				c.Edge.Addresses = []string{fmt.Sprintf("edge.invalid:%d", edge.Addr.Port())} // only the proxy knows it
			})
			roundTrip(t, edge.Replica(t), auto)
			agent.Stop()
		})
	}
	t.Run("a proxy that refuses", func(t *testing.T) {
		a := linktest.NewAgent(t, edge, tok, echo, func(c *link.ConnectorConfig) {
			only(link.CarrierTLS)(c)
			c.Proxy = func(*url.URL) (*url.URL, error) { return proxy.url("user", "wrong"), nil }
		})
		eventually(t, "no error", func() bool { err, _ := a.LastError(); return err != nil })
		if err, _ := a.LastError(); !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "wrong") {
			t.Fatalf("error %v", err)
		}
	})
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
