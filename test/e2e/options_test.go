package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/stack"
)

// tellsVisitor starts an origin that answers with the address of its visitor: as the PROXY
// header says if it wants one, else as the socket says. kind is http, tls or tcp.
func tellsVisitor(t *testing.T, kind string, proxy bool) string {
	t.Helper()
	l := listen(t)
	addr := l.Addr().String()
	if proxy {
		l = &proxyproto.Listener{Listener: l, ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) { return proxyproto.REQUIRE, nil }}
	}
	if kind == "tls" {
		cert, err := tls.LoadX509KeyPair(selfSigned(t, "origin"))
		if err != nil {
			t.Fatal(err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) })}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("origin: %v", err)
		}
	}()
	t.Cleanup(func() { srv.Close() })
	return addr
}

// tellsVisitorUDP is the same for datagrams; the header comes before a flow's first payload.
func tellsVisitorUDP(t *testing.T, proxy bool) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf, visitors := make([]byte, 2048), map[string]string{}
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if h, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(buf[:n]))); proxy && err == nil {
				visitors[from.String()] = h.SourceAddr.String()
			}
			answer := from.String()
			if proxy {
				answer = visitors[from.String()]
			}
			c.WriteTo([]byte(answer), from)
		}
	}()
	return c.LocalAddr().String()
}

// askOn asks the origin behind c who visits it.
func askOn(c net.Conn) (string, error) {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+hostOf(c)+"\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s", resp.Status, resp.Header.Get("Adit-Error"))
	}
	return string(b), err
}

func hostOf(c net.Conn) string {
	if t, ok := c.(*tls.Conn); ok {
		return t.ConnectionState().ServerName
	}
	return "origin"
}

// option is one tunnel of the matrix.
type option struct {
	name, kind, proxy, access, policy string
	// port is the public one of tcp and udp.
	port int
}

func (o option) label() string {
	if o.port != 0 {
		return fmt.Sprint(o.kind, ":", o.port)
	}
	return o.name + ".localhost"
}

// ask visits the tunnel and returns who the origin says the visitor is, and who it was.
func (o option) ask(s *stack.Server) (said, was string, err error) {
	var c net.Conn
	switch o.kind {
	case "udp":
		if c, err = net.Dial("udp", loopback(o.port)); err != nil {
			return "", "", err
		}
		defer c.Close()
		buf := make([]byte, 256)
		tries := 10
		if o.access == "protected" {
			tries = 2
		}
		for range tries {
			_, _ = c.Write([]byte("who?"))
			c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			n, readErr := c.Read(buf)
			if err = readErr; err == nil {
				return string(buf[:n]), c.LocalAddr().String(), nil
			}
		}
		return "", "", err
	case "tcp":
		c, err = net.Dial("tcp", loopback(o.port))
	case "tls":
		c, err = tls.Dial("tcp", s.HTTPS, &tls.Config{ServerName: o.label(), InsecureSkipVerify: true})
	default:
		c, err = tls.Dial("tcp", s.HTTPS, &tls.Config{ServerName: o.label(), RootCAs: s.Roots(), NextProtos: []string{"http/1.1"}})
	}
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	said, err = askOn(c)
	return said, c.LocalAddr().String(), err
}

// declare adds the tunnel to what an agent declares.
func (o option) declare(t *testing.T, cfg *stack.AgentConfig) {
	t.Helper()
	proxy := o.proxy != "" && o.proxy != "none"
	var e stack.Service
	switch o.kind {
	case "udp":
		e = stack.Port(o.name, o.port, tellsVisitorUDP(t, proxy))
	case "tcp":
		e = stack.Port(o.name, o.port, tellsVisitor(t, o.kind, proxy))
	case "tls":
		e = stack.Passthrough(o.label(), tellsVisitor(t, o.kind, proxy))
	default:
		e = stack.HTTP(o.label(), "http://"+tellsVisitor(t, o.kind, proxy))
	}
	for field, value := range map[string]string{"proxy_protocol": o.proxy, "access": o.access, "carrier_policy": o.policy} {
		if value != "" {
			e = e.With(field, value)
		}
	}
	switch o.kind {
	case "udp":
		cfg.UDP = append(cfg.UDP, e)
	case "tcp":
		cfg.TCP = append(cfg.TCP, e)
	default:
		cfg.Services = append(cfg.Services, e)
	}
}

// TestOptionMatrix: each option means the same on every kind of tunnel, with one replica and with two.
func TestOptionMatrix(t *testing.T) {
	var all []option
	for _, kind := range []string{"http", "tls", "tcp", "udp"} {
		proxies := []string{"none", "v1", "v2"}
		if kind == "udp" {
			proxies = []string{"none", "v2"} // v1 is text for streams only
		}
		for _, p := range proxies {
			all = append(all, option{kind: kind, proxy: p})
		}
		for _, p := range []string{"latency", "throughput"} {
			all = append(all, option{kind: kind, policy: p})
		}
		all = append(all, option{kind: kind, access: "protected"})
	}
	first := freeport.Run(t, len(all))
	var cfg stack.AgentConfig
	for i := range all {
		o := &all[i]
		o.name = fmt.Sprint(o.kind, "-", o.proxy, o.policy, o.access)
		if o.kind == "tcp" || o.kind == "udp" {
			o.port = first + i
		}
		o.declare(t, &cfg)
	}
	r := newRig(t, cfg)
	for replicas := 1; replicas <= 2; replicas++ {
		if replicas == 2 {
			stack.StartAgent(t, r.invite.File, cfg)
			r.WaitOnline(2, labels(cfg)...)
		}
		// The group ends before the next replica starts.
		t.Run(fmt.Sprint(replicas, " replicas"), func(t *testing.T) {
			for _, o := range all {
				t.Run(fmt.Sprintf("R09 %s, %d replicas", o.name, replicas), func(t *testing.T) {
					t.Parallel()
					for range replicas * 2 {
						o.check(t, r.Server)
					}
				})
			}
		})
	}
}

// check visits the tunnel and compares what the origin heard with what the options promise.
func (o option) check(t *testing.T, s *stack.Server) {
	t.Helper()
	said, was, err := o.ask(s)
	switch {
	case o.access == "protected":
		if err == nil {
			t.Errorf("a protected tunnel answers %q", said)
		}
		if o.kind == "http" && !strings.Contains(fmt.Sprint(err), "access_denied") {
			t.Errorf("%v, want access_denied", err)
		}
	case err != nil:
		t.Error(err)
	case strings.HasPrefix(o.proxy, "v") != (said == was):
		t.Errorf("the origin was told of visitor %s, who was %s", said, was)
	}
}
