package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/api/hub/v1/hubv1connect"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// TestTenThousandTunnels lists and searches 10,000 tunnels through the API. The bound is loose: a
// budget is for a quiet machine, the log says what it was.
func TestTenThousandTunnels(t *testing.T) {
	const agents, each = 4, 2500
	s := start(t)
	for a := range agents {
		host := fmt.Sprintf("a%d.many.test", a)
		_, token := s.invite(fmt.Sprint("a", a), "*."+host)
		list := make([]*hubv1.DeclaredTunnel, each)
		for i := range list {
			list[i] = web(fmt.Sprintf("h%04d.%s", i, host))
			list[i].Key = fmt.Sprintf("services[%d]", i)
		}
		m := s.machine(wirev1.Role_ROLE_AGENT, token)
		if _, err := m.Declare(t.Context(), &hubv1.DeclareRequest{Tunnels: list}); err != nil {
			t.Fatal(err)
		}
	}
	c, base := s.oneClient()
	tunnels := hubv1connect.NewTunnelServiceClient(c, base, connect.WithInterceptors(person{s.adminKey()}))
	p95 := func(what string, f func(i int) error) {
		t.Helper()
		var took []time.Duration
		for i := range 60 {
			begin := time.Now()
			if err := f(i); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		t.Logf("%s: median %v, p95 %v", what, took[30], took[57])
		if took[57] > 2*time.Second {
			t.Errorf("%s: p95 %v", what, took[57])
		}
	}
	page, seen := "", 0
	p95("a page of 100", func(int) error {
		r, err := tunnels.ListTunnels(t.Context(), &hubv1.ListTunnelsRequest{PageSize: 100, PageToken: page})
		page = r.GetNextPageToken()
		seen += len(r.GetTunnels())
		return err
	})
	if seen != 6000 {
		t.Errorf("60 pages hold %d tunnels", seen)
	}
	p95("a search", func(i int) error {
		r, err := tunnels.ListTunnels(t.Context(), &hubv1.ListTunnelsRequest{Filter: fmt.Sprintf("h%04d", 37*i)})
		if err == nil && len(r.GetTunnels()) != agents {
			err = fmt.Errorf("found %d", len(r.GetTunnels()))
		}
		return err
	})
}
