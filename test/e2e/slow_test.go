package e2e

import (
	"io"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestSlowHeaders: those who send a header byte by byte are ended, and harm nobody meanwhile.
func TestSlowHeaders(t *testing.T) {
	visitors := 200
	if need.Soak() {
		visitors = 5000
	}
	r := newRig(t, stack.AgentConfig{Services: []stack.Service{stack.HTTP("loris.localhost", "http://"+serveHTTP(t, app(), false))}},
		"--header-timeout", "5s", "--max-connections-per-address", "6000")
	t.Run("H20 one header byte at a time", func(t *testing.T) {
		ended := make(chan time.Duration, visitors)
		for range visitors {
			c := visit(t, r.Server, "loris.localhost", "http/1.1")
			go func() {
				start := time.Now()
				defer c.Close()
				go func() {
					for _, b := range []byte("GET / HTTP/1.1\r\nHost: loris.localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa") {
						if _, err := c.Write([]byte{b}); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				_, _ = io.Copy(io.Discard, c)
				ended <- time.Since(start)
			}()
		}
		for range 20 {
			if _, err := getOK(r.Client("h1"), r.URL("loris.localhost", "/hello")); err != nil {
				t.Errorf("an honest visitor: %v", err)
			}
		}
		limit := time.After(60 * time.Second)
		for i := range visitors {
			select {
			case d := <-ended:
				if d < 3*time.Second {
					t.Fatalf("one was ended after %s", d)
				}
			case <-limit:
				t.Fatalf("only %d of %d were ended", i, visitors)
			}
		}
	})
}
