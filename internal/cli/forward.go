package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/forward"
)

// ticketMargin is what must be left of a ticket's time for a new connection.
const ticketMargin = 15 * time.Second

func (a *app) forwardCommand() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use: "forward AGENT TARGET", Short: "Open a local port to a target behind an agent",
		Long: `Opens a port on this machine and carries each connection to it to TARGET (HOST:PORT, as the agent
sees it), until it is interrupted. Nothing becomes public. The agent decides what may be reached
(--allow-forward, default nothing); an API key needs the scope forward.`,
		Example: `  adit forward home 10.0.0.5:22 --listen 127.0.0.1:2222
  ssh -p 2222 127.0.0.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageErrorf("AGENT and TARGET are wanted: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: a.call(func(parent context.Context, c *client, args []string) error {
			ctx, _, stop := lifetime(parent)
			defer stop()
			return a.runForward(ctx, &forwarding{app: a, client: c, agent: args[0], target: args[1]}, listen)
		}),
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "local address to listen on; port 0 = any free one")
	return c
}

// forwarding is one `adit forward`.
type forwarding struct {
	*app
	client        *client
	agent, target string

	mu     sync.Mutex
	ticket *hubv1.OpenForwardResponse
}

func (a *app) runForward(ctx context.Context, f *forwarding, listen string) error {
	// The first ticket tells at once what is wrong: no such agent, no session, no right to it.
	if _, err := f.current(ctx); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return usageErrorf("--listen %s: %w; choose another port, or 0 for any free one", listen, err)
	}
	local := l.Addr().String()
	if ap, ok := l.Addr().(*net.TCPAddr); ok && !ap.IP.IsLoopback() {
		a.warn("%s can be reached by other machines; everybody who reaches it reaches %s", local, f.target)
	}
	if err := a.print(struct {
		Listen string `json:"listen"`
		Agent  string `json:"agent"`
		Target string `json:"target"`
	}{local, f.agent, f.target}, func() error {
		_, err := fmt.Fprintf(a.Stdout, "%s -> %s behind %s; Ctrl-C ends it\n", local, f.target, f.agent)
		return err
	}); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Too many open files, or one that went away: not the end.
			a.warn("accept: %v", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		wg.Go(func() { f.carry(ctx, localConn{c.(*net.TCPConn)}) })
	}
}

// current is a ticket that may open connections for a while yet.
func (f *forwarding) current(ctx context.Context) (*hubv1.OpenForwardResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ticket != nil && time.Until(f.ticket.GetExpiresAt().AsTime()) > ticketMargin {
		return f.ticket, nil
	}
	t, err := f.client.agents().OpenForward(ctx, &hubv1.OpenForwardRequest{Agent: f.agent, Target: f.target})
	if err != nil {
		return nil, err
	}
	f.ticket = t
	return t, nil
}

// carry joins one local connection with one to the target.
func (f *forwarding) carry(ctx context.Context, c localConn) {
	t, err := f.current(ctx)
	if err == nil {
		var up *forward.Conn
		up, err = forward.Dial(ctx, t.GetEdges(), t.GetTicket(), func(target *url.URL) (*url.URL, error) {
			return http.ProxyFromEnvironment(&http.Request{URL: target})
		})
		if err == nil {
			forward.Carry(ctx, c, up)
			return
		}
	}
	c.Abort()
	if ctx.Err() == nil {
		f.mu.Lock()
		f.ticket = nil // edges may have changed
		f.mu.Unlock()
		f.warn("%s: %s", c.RemoteAddr(), failureOf(err).Text)
	}
}

// localConn is a connection of a program on this machine.
type localConn struct{ *net.TCPConn }

// Abort ends it with a reset.
func (c localConn) Abort() {
	_ = c.SetLinger(0)
	_ = c.Close()
}
