// Package e2e drives the real binary with real clients and servers.
package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

func TestMain(m *testing.M) {
	if os.Getenv("ADIT_E2E_HOME") == "1" {
		homeOrigins()
	}
	stack.Main(m)
}

// rig is a server with both roles and one agent of one invite.
type rig struct {
	*stack.Server
	agent  *stack.Agent
	invite stack.Invite
}

// newRig starts a server and an agent that serves the lists, and waits until all is online.
func newRig(t *testing.T, c stack.AgentConfig, args ...string) rig {
	t.Helper()
	s := stack.StartServer(t, stack.ServerConfig{Args: args})
	r := rig{Server: s, invite: s.Invite("home", grants(c)...)}
	r.agent = stack.StartAgent(t, r.invite.File, c)
	s.WaitOnline(1, labels(c)...)
	return r
}

// grants are the flags of an invite for exactly what an agent declares.
func grants(c stack.AgentConfig) []string {
	var flags []string
	for _, s := range c.Services {
		flags = append(flags, "--hostname", fmt.Sprint(s["hostname"]))
	}
	for _, s := range c.TCP {
		flags = append(flags, "--tcp-port", fmt.Sprint(s["listen_port"]))
	}
	for _, s := range c.UDP {
		flags = append(flags, "--udp-port", fmt.Sprint(s["listen_port"]))
	}
	return flags
}

func labels(c stack.AgentConfig) []string {
	var names []string
	for _, s := range c.Services {
		names = append(names, fmt.Sprint(s["hostname"]))
	}
	for _, s := range c.TCP {
		names = append(names, fmt.Sprint("tcp:", s["listen_port"]))
	}
	for _, s := range c.UDP {
		names = append(names, fmt.Sprint("udp:", s["listen_port"]))
	}
	return names
}

// serveHTTP starts an HTTP/1.1 origin, with clear HTTP/2 where asked, and returns its address.
func serveHTTP(t *testing.T, h http.Handler, h2c bool) string {
	t.Helper()
	l := listen(t)
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(h2c)
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("origin: %v", err)
		}
	}()
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// tcpEcho answers every byte with itself, and half-closes when its peer does.
func tcpEcho(t *testing.T) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// udpEcho answers every datagram with itself.
func udpEcho(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(buf[:n], from)
		}
	}()
	return c.LocalAddr().String()
}

// loopback is a port of 127.0.0.1.
func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// run runs a program to its end and returns standard output.
func run(t *testing.T, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	out, err := try(t, stdin, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func try(t *testing.T, stdin io.Reader, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil {
		return out.String() + errOut.String(), err
	}
	return out.String(), nil
}

// echoOnce sends a line to a TCP address and wants it back.
func echoOnce(addr, line string) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	return echoOn(c, line)
}

func echoOn(c net.Conn, line string) error {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, line); err != nil {
		return err
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != line {
		return fmt.Errorf("sent %q, got %q back", line, got)
	}
	return nil
}

// echoDatagram sends datagrams until one comes back: UDP may lose some.
func echoDatagram(addr string, payload []byte) error {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return echoDatagramOn(c, payload, 10)
}

func echoDatagramOn(c net.Conn, payload []byte, tries int) error {
	buf := make([]byte, 65536)
	var last error
	for range tries {
		if _, last = c.Write(payload); last != nil {
			continue
		}
		c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		var n int
		if n, last = c.Read(buf); last != nil {
			continue
		}
		if !bytes.Equal(buf[:n], payload) {
			return fmt.Errorf("sent %d bytes, got %d others back", len(payload), n)
		}
		return nil
	}
	return fmt.Errorf("no answer to %d datagrams: %w", tries, last)
}

// getOK fetches a page and wants status 200.
func getOK(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s (Adit-Error %s): %.200s", r.Status, r.Header.Get("Adit-Error"), b)
	}
	return string(b), nil
}

// visit dials a TLS name at the server, trusting only its root, and returns the connection.
func visit(t *testing.T, s *stack.Server, host string, protocols ...string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", s.HTTPS, &tls.Config{ServerName: host, RootCAs: s.Roots(), NextProtos: protocols})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func randomBytes(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
