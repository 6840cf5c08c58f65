package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
	"github.com/adit-dev/adit/internal/link"
	"github.com/adit-dev/adit/internal/opening"
	"github.com/adit-dev/adit/internal/reason"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// crowd is many agents of one invite as their edge sees them: sessions of this process.
type crowd struct {
	agents []*link.Connector
	mu     sync.Mutex
	// back is when each agent last had a session after having none.
	back []time.Time
}

type noService struct{}

func (noService) ServeStream(_ context.Context, in link.Incoming) {
	in.Refuse(reason.New(reason.OriginRefused, reason.HopOrigin, "nothing here").Safe())
}

func (noService) ServeFlow(link.Flow, *wirev1.StreamHeader) (func([]byte), *reason.Error) {
	return nil, reason.New(reason.NotFound, reason.HopAgent, "no flows here")
}

// newCrowd starts n agents, a hundred at a time: unlike real ones, they have one process for all
// their handshakes. All have a session when it returns.
func newCrowd(t *testing.T, inv stack.Invite, n int, serve []string) *crowd {
	t.Helper()
	token, err := identity.ParseToken(inv.Token)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := token.Keys()
	if err != nil {
		t.Fatal(err)
	}
	edges := token.Body.GetEdges()
	if len(edges) == 0 {
		t.Fatal("the invite names no edge")
	}
	c := &crowd{back: make([]time.Time, n)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for i := range n {
		node, err := identity.NewNodeKey()
		if err != nil {
			t.Fatal(err)
		}
		var a *link.Connector
		a = link.NewConnector(link.ConnectorConfig{
			Dialler: &opening.Dialler{Role: wirev1.Role_ROLE_AGENT, Keys: keys, Node: node, ReplicaID: node.Hash()[:16],
				HostName: fmt.Sprint("host-", i), Software: "test"},
			Edge: edges[0], HubHost: "hub." + stack.Domain, Handler: noService{},
			OnState: func() {
				up := len(a.Sessions()) > 0
				c.mu.Lock()
				defer c.mu.Unlock()
				if !up {
					c.back[i] = time.Time{}
				} else if c.back[i].IsZero() {
					c.back[i] = time.Now()
				}
			},
		})
		a.Serve(serve)
		c.agents = append(c.agents, a)
		wg.Go(func() { a.Run(ctx) })
		if (i+1)%100 == 0 || i+1 == n {
			c.wait(t, time.Minute, i+1)
		}
	}
	return c
}

// up counts the agents that have a session, and tells when each of them came.
func (c *crowd) up() (n int, arrivals []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.back {
		if !at.IsZero() {
			arrivals = append(arrivals, at)
		}
	}
	slices.SortFunc(arrivals, time.Time.Compare)
	return len(arrivals), arrivals
}

func (c *crowd) wait(t *testing.T, limit time.Duration, n int) {
	t.Helper()
	stack.Eventually(t, limit, func() error {
		if got, _ := c.up(); got != n {
			return fmt.Errorf("%d of %d agents have a session", got, n)
		}
		return nil
	})
}

// live is the memory in use once garbage is collected: heap and stacks.
func live(t *testing.T, s *stack.Server) int64 {
	t.Helper()
	for range 2 { // pools are emptied by the second collection
		if _, err := getOK(http.DefaultClient, "http://"+s.Admin+"/debug/pprof/heap?gc=1"); err != nil {
			t.Fatal(err)
		}
	}
	return int64(s.Metric("go_memstats_heap_alloc_bytes") + s.Metric("go_memstats_stack_inuse_bytes"))
}

// crowdInvite makes an invite that names the edge, which the hub may hear of a moment after it is
// ready.
func crowdInvite(t *testing.T, s *stack.Server) (inv stack.Invite) {
	t.Helper()
	n := 0
	stack.Eventually(t, 10*time.Second, func() error {
		n++
		inv = s.Invite(fmt.Sprint("crowd-", n), "--hostname", fmt.Sprintf("*.crowd%d.test", n))
		token, err := identity.ParseToken(inv.Token)
		if err == nil && len(token.Body.GetEdges()) == 0 {
			err = errors.New("the invite names no edge")
		}
		return err
	})
	return inv
}

// TestManyAgents has a crowd at one server: what it costs idle, and how it comes back.
func TestManyAgents(t *testing.T) {
	need.Linux(t, "memory is read from /proc")
	// A restart that takes this long has most agents wait in their third or fourth pause.
	n, away, spread := 200, 5*time.Second, 2*time.Second
	if need.Soak() {
		n, away, spread = 2000, 20*time.Second, 10*time.Second
	}
	s := stack.StartServer(t, stack.ServerConfig{Args: []string{"--drain-timeout", "1s", "--log-level", "warn", "--pprof"}})
	inv := crowdInvite(t, s)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("%020x", i))
	}
	newCrowd(t, inv, 10, ids) // what the first ones cost is not theirs
	before, rss := live(t, s), s.RSS()
	c := newCrowd(t, inv, n, ids)
	t.Run("T32 what an idle session costs", func(t *testing.T) {
		// Handshakes and heartbeats under way hold buffers for a moment; idle is what is between them.
		stack.Eventually(t, time.Minute, func() error {
			per := (live(t, s) - before) / int64(n) >> 10
			if per > 150 {
				return fmt.Errorf("an idle agent costs %d KiB, want 150 at most", per)
			}
			t.Logf("%d KiB live for each of %d idle agents with 100 services, %d KiB resident", per, n, (s.RSS()-rss)/int64(n)>>10)
			return nil
		})
	})
	t.Run("T14 agents come back spread", func(t *testing.T) {
		s.Terminate()
		s.Wait(30 * time.Second)
		time.Sleep(away) // the outage
		start := time.Now()
		s.Restart()
		c.wait(t, 3*time.Minute, n)
		_, at := c.up()
		t.Logf("%d agents came back within %v to %v", n, at[0].Sub(start).Round(time.Millisecond), at[n-1].Sub(start).Round(time.Millisecond))
		if d := at[n*99/100].Sub(at[0]); d < spread {
			t.Errorf("99 %% of them came within %v, want them spread over %v", d, spread)
		}
		// The longest pause after such an outage, and dials on a busy machine.
		if d := at[n-1].Sub(start); d > 2*time.Minute {
			t.Errorf("the last one came after %v", d)
		}
		// No second may have more than half of them.
		for i := range at {
			if j := i + n/2; j < n && at[j].Sub(at[i]) < spread/4 {
				t.Errorf("half of the agents came within %v", at[j].Sub(at[i]))
				break
			}
		}
	})
}
