package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/freeport"
	"github.com/adit-dev/adit/test/netlab"
	"github.com/adit-dev/adit/test/netlab/netem"
	"github.com/adit-dev/adit/test/stack"
)

const (
	// farVar names the namespace of the agent to the process that runs in the visitors' one, which
	// prints cutMark when the path is to fall silent.
	farVar  = "ADIT_E2E_FAR"
	cutMark = "cut the path"
)

// TestSilentPath has an agent vanish behind a path that drops every packet from one moment on, with
// visitors on lanes. Nothing is reset and nothing is acknowledged.
func TestSilentPath(t *testing.T) {
	if far := os.Getenv(farVar); far != "" {
		vanish(t, netlab.End{Namespace: far}, os.Getenv(farVar+"_CARRIER"))
		return
	}
	for _, carrier := range []string{"quic", "tls"} {
		t.Run("T01 invariant 4 visitors on lanes of an agent that vanished end within seconds of its successor over "+carrier, func(t *testing.T) {
			t.Parallel()
			lab := netlab.Join(t, netem.Path{Delay: time.Millisecond})
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			line := append(lab.A.Exec(), self, "-test.run", "^TestSilentPath$", "-test.v")
			cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
			cmd.Env = append(os.Environ(), farVar+"="+lab.B.Namespace, farVar+"_CARRIER="+carrier, "ADIT_BIN="+stack.Binary(t))
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.Contains(lines.Text(), cutMark) {
					lab.Set(netem.Path{Loss: 1}, netem.Path{Loss: 1})
				}
				if !strings.Contains(lines.Text(), "PASS") {
					t.Log(lines.Text())
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// vanish runs where the visitors are, and one end of the path.
func vanish(t *testing.T, far netlab.End, carrier string) {
	at := func(port int) string { return net.JoinHostPort(netlab.AddrA, fmt.Sprint(port)) }
	https := freeport.One(t)
	s := stack.StartServer(t, stack.ServerConfig{HTTPS: net.JoinHostPort("0.0.0.0", fmt.Sprint(https)), Domain: "far.example", Args: []string{"--advertise", at(https), "--drain-timeout", "1s"}})
	kinds := []string{"quiet", "download", "upload"}
	ports := map[string]int{}
	cfg := stack.AgentConfig{Wrap: far.Exec(), Unready: true, Args: []string{"--carriers", carrier, "--server-url", "https://" + at(https), "--grace-period", "1s"}}
	for _, kind := range kinds {
		ports[kind] = freeport.One(t)
		cfg.TCP = append(cfg.TCP, stack.Port(kind, ports[kind], endlessOrigin(t)).With("carrier_policy", "throughput"))
	}
	inv := s.Invite("far", grants(cfg)...)
	stack.StartAgent(t, inv.File, cfg)
	s.WaitOnline(1, labels(cfg)...)
	ended := map[string]chan error{}
	for _, kind := range kinds {
		c, err := net.Dial("tcp", at(ports[kind]))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, kind+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		over := make(chan error, 1)
		ended[kind] = over
		go func() { over <- useEndless(c, kind) }()
	}
	stack.Eventually(t, 20*time.Second, func() error {
		if n := s.Metric("adit_edge_lanes"); n < 3 {
			return fmt.Errorf("%g lanes", n)
		}
		return nil
	})
	os.Stdout.WriteString(cutMark + "\n")
	select {
	case <-ended["download"]:
		t.Fatal("a download ended before its agent was gone")
	case <-time.After(2 * time.Second): // silence is what is tested
	}
	cfg.Wrap, cfg.Unready = nil, false
	stack.StartAgent(t, inv.File, cfg)
	start := time.Now()
	for _, kind := range kinds {
		select {
		case err := <-ended[kind]:
			d := time.Since(start)
			t.Logf("%s ended %v after the successor came: %v", kind, d.Round(time.Millisecond), err)
			if d > 12*time.Second {
				t.Errorf("%s ended %v after the successor came", kind, d)
			}
		case <-time.After(25 * time.Second):
			t.Errorf("%s goes on", kind)
		}
	}
	for _, kind := range kinds {
		stack.Eventually(t, 10*time.Second, func() error {
			c, err := net.Dial("tcp", at(ports[kind]))
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			if _, err := io.WriteString(c, "quiet\n"); err != nil {
				return err
			}
			_, err = io.ReadFull(c, make([]byte, 1))
			return err
		})
	}
}

// endlessOrigin answers a first line with a byte and then sends for ever, reads for ever or waits,
// as the line says.
func endlessOrigin(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", netlab.AddrA+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				kind, _ := in.ReadString('\n')
				if _, err := c.Write([]byte{1}); err != nil {
					return
				}
				for kind == "download\n" {
					if _, err := c.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
				_, _ = io.Copy(io.Discard, in)
			}()
		}
	}()
	return l.Addr().String()
}

// useEndless is a visitor of endlessOrigin; it returns when its connection ends.
func useEndless(c net.Conn, kind string) error {
	for kind == "upload" {
		if _, err := c.Write(make([]byte, 64<<10)); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, c)
	if err == nil {
		err = errors.New("the end of the bytes")
	}
	return err
}
