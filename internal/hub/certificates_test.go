package hub

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

type fakeIssuer struct {
	mu      sync.Mutex
	asked   []string
	version string
	fail    error
	life    time.Duration
	now     func() time.Time
}

func (f *fakeIssuer) Certificate(_ context.Context, name string) (*hubv1.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, name)
	if f.fail != nil {
		return nil, f.fail
	}
	c := &hubv1.Certificate{Name: name, ChainPem: []byte("chain " + name + f.version), KeyPem: []byte("key " + name)}
	if f.now != nil {
		c.NotAfter = timestamppb.New(f.now().Add(f.life))
	}
	return c, nil
}

func (f *fakeIssuer) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.asked = nil }()
	slices.Sort(f.asked)
	return f.asked
}

func (h *testHub) cert(name string) *hubv1.Certificate {
	return h.feed.get("certificate/" + name).GetCertificate()
}

func TestCertificates(t *testing.T) {
	h := newTestHub(t)
	f := &fakeIssuer{now: h.clock.now, life: 90 * 24 * time.Hour}
	h.SetIssuer(f)
	asked := map[string]time.Time{}
	ask := func() []string { h.certifyOnce(t.Context(), asked); return f.took() }
	a := h.replica(h.invite_("a", "*.example.com", "**.deep.test"))
	a.ok(web("x.example.com"), pass("p.example.com"), web("*.example.com"), web("**.deep.test"))
	want := []string{"*.deep.test", "*.example.com", "hub.example.com", "x.example.com"}
	if got := ask(); !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v: passthrough needs none", got, want)
	}
	if c := h.cert("x.example.com"); string(c.GetKeyPem()) != "key x.example.com" || c.GetNotAfter() == nil {
		t.Errorf("%v", c)
	}
	if got := ask(); len(got) != 0 {
		t.Errorf("asked again for %v", got)
	}
	h.clock.add(61 * 24 * time.Hour)
	if got := ask(); !slices.Equal(got, want) {
		t.Errorf("near the end asked for %v", got)
	}
	before := h.feed.at()
	clear(asked) // as after CertificatesChanged
	ask()
	if h.feed.at() != before {
		t.Error("published although nothing changed")
	}
	f.version = " 2"
	clear(asked)
	ask()
	if c := h.cert("x.example.com"); string(c.GetChainPem()) != "chain x.example.com 2" {
		t.Errorf("%v", c)
	}
	a.ok(web("new.example.com"))
	if got := ask(); !slices.Equal(got, []string{"new.example.com"}) {
		t.Errorf("asked for %v", got)
	}
	if h.cert("x.example.com") != nil {
		t.Error("a certificate that nothing needs is kept")
	}
	t.Run("restart", func(t *testing.T) {
		h.restart()
		h.SetIssuer(f)
		if c := h.cert("new.example.com"); string(c.GetKeyPem()) != "key new.example.com" {
			t.Errorf("%v", c)
		}
	})
	t.Run("a failure keeps what is valid and is shown", func(t *testing.T) {
		f.fail = errors.New("the CA is away")
		clear(asked)
		ask()
		c := h.cert("new.example.com")
		if c.GetProblem() != "the CA is away" || len(c.GetChainPem()) == 0 {
			t.Errorf("%v", c)
		}
		if got := ask(); len(got) != 0 {
			t.Errorf("asked again at once: %v", got)
		}
		f.fail = nil
		h.clock.add(time.Minute)
		if got := ask(); len(got) != 2 {
			t.Errorf("asked for %v after a minute", got)
		}
		if c := h.cert("new.example.com"); c.GetProblem() != "" {
			t.Errorf("%v", c)
		}
	})
}
