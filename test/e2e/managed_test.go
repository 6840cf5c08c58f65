package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/stack"
)

// enrolment is an enrolled agent's token and the file that holds it.
type enrolment struct{ Name, Token, File string }

// enrol makes an enrolled agent; flags are those of `agents create`.
func enrol(t *testing.T, s *stack.Server, name string, flags ...string) enrolment {
	t.Helper()
	var made struct{ Token string }
	s.CLI(append([]string{"agents", "create", name}, flags...)...).JSON(t, &made)
	if !strings.HasPrefix(made.Token, "adit_agent_") {
		t.Fatalf("agents create printed no token: %+v", made)
	}
	e := enrolment{Name: name, Token: made.Token, File: filepath.Join(t.TempDir(), name+".token")}
	writeFile(t, e.File, made.Token)
	return e
}

// managedTunnel is what create and set print, as far as tests read it.
type managedTunnel struct {
	ID, Label, Hostname, URL, State, Reason, Detail, Access, Agent string
	Port                                                           int
	Version                                                        uint64
	Warnings, Origins                                              []string
}

func createTunnel(t *testing.T, s *stack.Server, args ...string) managedTunnel {
	t.Helper()
	var made managedTunnel
	s.CLI(append([]string{"tunnel", "create"}, args...)...).JSON(t, &made)
	return made
}

// TestManaged exposes services behind a running agent, from the command line alone.
func TestManaged(t *testing.T) {
	s := stack.StartServer(t, stack.ServerConfig{})
	home := enrol(t, s, "home")
	state := t.TempDir()
	stack.StartAgent(t, home.File, stack.AgentConfig{Args: []string{"--state-dir", state}})

	page, other := serveHTTP(t, named("one"), false), serveHTTP(t, named("two"), false)
	web := createTunnel(t, s, "My App", "http://"+page, "--agent", "home", "--access", "public")
	if web.Label != "my-app" || web.Hostname != "my-app.localhost" || web.Agent != "home" || len(web.Warnings) == 0 {
		t.Errorf("created: %+v", web)
	}
	s.WaitOnline(1, "my-app")
	client := s.Client()
	if body, err := getOK(client, web.URL); err != nil || body != "one" {
		t.Fatalf("%q %v", body, err)
	}

	t.Run("tcp at any free port, udp and passthrough", func(t *testing.T) {
		tcp := createTunnel(t, s, "tcp://"+tcpEcho(t), "--agent", "home", "--access", "public")
		if tcp.Port == 0 {
			t.Fatalf("no port was chosen: %+v", tcp)
		}
		udp := createTunnel(t, s, "udp://"+udpEcho(t), "--agent", "home", "--access", "public")
		s.WaitOnline(1, fmt.Sprint("tcp:", tcp.Port), fmt.Sprint("udp:", udp.Port))
		if err := echoOnce(loopback(tcp.Port), "hello"); err != nil {
			t.Error(err)
		}
		if err := echoDatagram(loopback(udp.Port), []byte("hello")); err != nil {
			t.Error(err)
		}
	})
	t.Run("a change reaches a running agent within two seconds and touches no sibling", func(t *testing.T) {
		sibling := createTunnel(t, s, "sibling", "http://"+page, "--agent", "home", "--access", "public")
		s.WaitOnline(1, "sibling")
		tcp := createTunnel(t, s, "tcp://"+tcpEcho(t), "--agent", "home", "--access", "public")
		s.WaitOnline(1, fmt.Sprint("tcp:", tcp.Port))
		live, err := net.Dial("tcp", loopback(tcp.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer live.Close()
		if err := echoOn(live, "before"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		s.CLI("tunnel", "set", "my-app", "--origin", "http://"+other).JSON(t, &managedTunnel{})
		stack.Eventually(t, 10*time.Second, func() error {
			body, err := getOK(client, web.URL)
			if err == nil && body != "two" {
				err = fmt.Errorf("still %q", body)
			}
			return err
		})
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the change took %v", took)
		}
		if body, err := getOK(client, sibling.URL); err != nil || body != "one" {
			t.Errorf("sibling: %q %v", body, err)
		}
		if err := echoOn(live, "after"); err != nil {
			t.Errorf("the stream of another tunnel: %v", err)
		}
		// A setting that changes nothing for running streams leaves those of its own tunnel alone too.
		s.CLI("tunnel", "set", fmt.Sprint("tcp:", tcp.Port), "--name", "renamed", "--health-check").JSON(t, &managedTunnel{})
		if err := echoOn(live, "renamed"); err != nil {
			t.Errorf("the stream of the changed tunnel: %v", err)
		}
	})
	t.Run("protected is 403, switched off is as if it were not there, deleted is gone", func(t *testing.T) {
		status := func(want int) func() error {
			return func() error {
				resp, err := client.Get(web.URL)
				if err != nil {
					if want == 0 {
						return nil
					}
					return err
				}
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode != want {
					return fmt.Errorf("%s", resp.Status)
				}
				return nil
			}
		}
		s.CLI("tunnel", "set", "my-app", "--access", "protected").JSON(t, &managedTunnel{})
		stack.Eventually(t, 5*time.Second, status(http.StatusForbidden))
		s.CLI("tunnel", "set", "my-app", "--access", "public").JSON(t, &managedTunnel{})
		stack.Eventually(t, 5*time.Second, status(http.StatusOK))
		s.CLI("tunnel", "set", "my-app", "--disabled").JSON(t, &managedTunnel{})
		client.CloseIdleConnections()
		stack.Eventually(t, 5*time.Second, func() error { client.CloseIdleConnections(); return status(0)() })
		if got, _ := s.Tunnel("my-app"); got.State != "offline" || got.Reason != "disabled" {
			t.Errorf("switched off: %+v", got)
		}
		s.CLI("tunnel", "set", "my-app", "--enabled").JSON(t, &managedTunnel{})
		stack.Eventually(t, 5*time.Second, status(http.StatusOK))
		if r := s.CLI("tunnel", "delete", "my-app", "--release"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		if _, ok := s.Tunnel("my-app"); ok {
			t.Error("it is still there")
		}
	})
}
