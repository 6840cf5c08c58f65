//go:build bench && linux

package bench

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/hublink"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/internal/server"
	"github.com/adit-dev/adit/test/bench/report"
	"github.com/adit-dev/adit/test/stack"
)

// outage is how long the server is gone before the agents come back.
const outage = 5 * time.Second

// enrolledAgents has many enrolled agents at one server: real sessions, each with a token of its own,
// without origins.
func enrolledAgents(t *testing.T) {
	if *agents == 0 {
		return
	}
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "1s", "--log-level", "warn"}})
	tokens := enrolMany(t, s, *agents+10)
	few := startCrowd(t, tokens[:10]) // what the first ones cost is not theirs
	few.wait(t, time.Minute, 10)
	before := s.RSS()
	c := startCrowd(t, tokens[10:])
	c.wait(t, 2*time.Minute, *agents)
	time.Sleep(12 * time.Second) // memory is given back late
	a := report.Agents{Count: *agents, KiB: float64(s.RSS()-before) / 1024 / float64(*agents), Away: outage.Seconds()}
	s.Terminate()
	s.Wait(30 * time.Second)
	time.Sleep(outage)
	start := time.Now()
	s.Restart()
	c.wait(t, 3*time.Minute, *agents)
	at := c.arrivals()
	since := func(i int) float64 { return at[i].Sub(start).Seconds() }
	a.First, a.Half, a.Last = since(0), since(len(at)/2), since(len(at)-1)
	run.Agents = a
	t.Logf("%+v", a)
}

// enrolMany makes enrolled agents over the API, as the server's own administrator.
func enrolMany(t *testing.T, s *stack.Server, n int) []string {
	t.Helper()
	st, err := server.ReadState(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := hex.DecodeString(st.HubKeyHash)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	h, base := hublink.NewPinnedClient(st.DialHTTPS(), [][]byte{pin})
	t.Cleanup(h.CloseIdleConnections)
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
			return next(ctx, r)
		}
	})
	c := hubv1connect.NewAgentServiceClient(h, base, connect.WithInterceptors(auth))
	var out []string
	for i := range n {
		r, err := c.CreateAgent(t.Context(), &hubv1.CreateAgentRequest{Name: fmt.Sprint("agent-", i)})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r.GetToken())
	}
	return out
}

// enrolledCrowd is agents with a token each, as sessions of this process.
type enrolledCrowd struct {
	mu sync.Mutex
	// up is since when each one has a session; zero while it has none.
	up []time.Time
}

type nothingHere struct{}

func (nothingHere) ServeStream(_ context.Context, in link.Incoming) {
	in.Refuse(reason.New(reason.OriginRefused, reason.HopOrigin, "nothing here").Safe())
}

func (nothingHere) ServeFlow(link.Flow, *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	return nil, reason.New(reason.NotFound, reason.HopAgent, "no flows here")
}

func startCrowd(t *testing.T, tokens []string) *enrolledCrowd {
	t.Helper()
	c := &enrolledCrowd{up: make([]time.Time, len(tokens))}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for i, text := range tokens {
		token, err := identity.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := token.Keys()
		if err != nil {
			t.Fatal(err)
		}
		node, err := identity.NewNodeKey()
		if err != nil {
			t.Fatal(err)
		}
		if len(token.Body.GetEdges()) == 0 {
			t.Fatal("the token names no edge")
		}
		var a *link.Connector
		a = link.NewConnector(link.ConnectorConfig{
			Dialler: &opening.Dialler{Role: wirev1.Role_ROLE_AGENT, Keys: keys, Node: node, ReplicaID: node.Hash()[:16], HostName: fmt.Sprint("host-", i), Software: "bench"},
			Edge:    token.Body.GetEdges()[0], HubHost: "hub." + stack.Domain, Handler: nothingHere{},
			OnState: func() {
				has := len(a.Sessions()) > 0
				c.mu.Lock()
				defer c.mu.Unlock()
				if !has {
					c.up[i] = time.Time{}
				} else if c.up[i].IsZero() {
					c.up[i] = time.Now()
				}
			},
		})
		wg.Go(func() { a.Run(ctx) })
		if (i+1)%100 == 0 {
			c.wait(t, time.Minute, i+1) // unlike real ones they have one process for all handshakes
		}
	}
	return c
}

func (c *enrolledCrowd) arrivals() (at []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.up {
		if !u.IsZero() {
			at = append(at, u)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

func (c *enrolledCrowd) wait(t *testing.T, limit time.Duration, n int) {
	t.Helper()
	stack.Eventually(t, limit, func() error {
		if got := len(c.arrivals()); got != n {
			return fmt.Errorf("%d of %d agents have a session", got, n)
		}
		return nil
	})
}
