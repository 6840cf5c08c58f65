package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// download is a long answer under way: ended gives its length or why it broke.
type download struct {
	ended chan error
}

// startDownload returns once the first bytes of /long are there.
func startDownload(t *testing.T, c *http.Client, url string) *download {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1024)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		resp.Body.Close()
		t.Fatalf("%s: %v", resp.Status, err)
	}
	d := &download{ended: make(chan error, 1)}
	go func() {
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if n += int64(len(first)); err == nil && n != downloadLines*1024 {
			err = fmt.Errorf("the download ended after %d bytes", n)
		}
		d.ended <- err
	}()
	return d
}

func (d *download) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("the download did not end")
		return nil
	}
}

// TestGracefulStop: the grace period is the same on every carrier and at both ends.
func TestGracefulStop(t *testing.T) {
	length := 3 * time.Second
	if need.Soak() {
		length = 20 * time.Second
	}
	home := "http://" + serveHTTP(t, rolling(length), false)
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "60s"}})
	one := func(t *testing.T, carrier, name string) (*stack.Agent, string) {
		host := name + "-" + carrier + ".localhost"
		inv := s.Invite(name+carrier, "--hostname", host)
		a := stack.StartAgent(t, inv.File, stack.AgentConfig{Services: []stack.Service{stack.HTTP(host, home)},
			Args: []string{"--carriers", carrier, "--grace-period", "60s"}})
		s.WaitOnline(1, host)
		return a, s.URL(host, "/long")
	}
	t.Run("agents", func(t *testing.T) {
		for _, carrier := range carriers {
			t.Run("L02 the grace period over "+carrier, func(t *testing.T) {
				t.Parallel()
				a, url := one(t, carrier, "grace")
				d := startDownload(t, s.Client("h1"), url)
				a.Terminate()
				if err := d.wait(t); err != nil {
					t.Errorf("a download during the grace period: %v", err)
				}
				// Idle, it ends at once, long before the grace period.
				if code := a.Wait(20 * time.Second); code != 0 {
					t.Errorf("exit code %d", code)
				}

				a, url = one(t, carrier, "force")
				d = startDownload(t, s.Client("h1"), url)
				start := time.Now()
				a.Terminate()
				a.WaitLog(10*time.Second, `"draining"`)
				a.Terminate()
				if err := d.wait(t); err == nil && time.Since(start) < length {
					t.Error("the download went on to its end after the second signal")
				}
				if code := a.Wait(20 * time.Second); code != 0 {
					t.Errorf("exit code %d after the second signal", code)
				}
			})
		}
	})
	t.Run("L02 the server's drain", func(t *testing.T) {
		a, url := one(t, "quic", "server")
		var all []*download
		for _, protocol := range []string{"h1", "h2"} {
			all = append(all, startDownload(t, s.Client(protocol), url))
		}
		s.Terminate()
		for i, d := range all {
			if err := d.wait(t); err != nil {
				t.Errorf("download %d during the drain: %v", i, err)
			}
		}
		if code := s.Wait(20 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.Restart()
		a.WaitReady(40 * time.Second)
		s.WaitOnline(1, "server-quic.localhost")
		d := startDownload(t, s.Client("h1"), url)
		s.Terminate()
		s.WaitLog(10*time.Second, `"draining"`)
		s.Terminate()
		_ = d.wait(t)
		s.Wait(10 * time.Second)
	})
}

// TestSocketsAtShutdown: http.Server.Shutdown leaves upgraded connections alone; ours must not.
func TestSocketsAtShutdown(t *testing.T) {
	const sockets = 100
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "5s"}})
	inv := s.Invite("ws", "--hostname", "*.ws.test")
	origin := "http://" + serveHTTP(t, app(), false)
	file := services{filepath.Join(t.TempDir(), "agent.yaml")}
	file.put(t, entry("a.ws.test", origin), entry("b.ws.test", origin))
	stack.StartAgent(t, inv.File, stack.AgentConfig{Args: []string{"--config", file.path}})
	s.WaitOnline(1, "a.ws.test", "b.ws.test")
	open := func(t *testing.T, host string, n int) []*socket {
		var all []*socket
		for range n {
			c := openSocket(t, s, host)
			if err := c.echo(t.Context()); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		return all
	}
	// closed wants that every socket ends with a close frame of one of the codes.
	closed := func(t *testing.T, all []*socket, codes ...websocket.StatusCode) {
		t.Helper()
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				_, _, err := c.Read(t.Context())
				var ce websocket.CloseError
				if errors.As(err, &ce) {
					for _, code := range codes {
						if ce.Code == code {
							return
						}
					}
				}
				t.Errorf("a socket ended with %v", err)
			})
		}
		wg.Wait()
	}
	kept := open(t, "b.ws.test", sockets)
	t.Run("L05 sockets of a removed route end", func(t *testing.T) {
		gone := open(t, "a.ws.test", 10)
		file.put(t, entry("b.ws.test", origin))
		closed(t, gone, websocket.StatusGoingAway, websocket.StatusServiceRestart)
		for _, c := range kept {
			if err := c.echo(t.Context()); err != nil {
				t.Fatalf("a socket of another route: %v", err)
			}
		}
	})
	t.Run("L05 sockets end with the drain", func(t *testing.T) {
		s.Terminate()
		closed(t, kept, websocket.StatusGoingAway, websocket.StatusServiceRestart)
		if code := s.Wait(30 * time.Second); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}
