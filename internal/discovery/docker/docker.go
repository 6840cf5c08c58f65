// Package docker finds the services of containers, by Docker's socket: their published and internal
// TCP and UDP ports, and what their labels declare.
package docker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

// Name of the provider.
const Name = "docker"

// DefaultSocket is where Docker listens.
const DefaultSocket = "/var/run/docker.sock"

const (
	// settle is how long a change may be followed by others before they are looked at together.
	settle = 200 * time.Millisecond
	// again is how often what could not be reached is tried anew: a program takes its time to
	// listen after its container has started, and Docker tells nothing of it.
	again = 5 * time.Second
	// retry is the pause before Docker is asked again after a failure.
	retry = 5 * time.Second
)

// Config says where Docker is and what is left out.
type Config struct {
	// Socket of Docker's API; empty = DefaultSocket.
	Socket string
	// Wanted: somebody asked for Docker by name, so that a missing socket is a failure to show,
	// not a machine without Docker.
	Wanted bool
	// ExcludePorts of containers are not reported.
	ExcludePorts []uint16
	// Self is the beginning of the id of the container that the agent runs in; empty = look.
	Self string
}

// Provider watches Docker.
type Provider struct {
	cfg    Config
	docker *daemon
	skip   map[uint16]bool
	// told are the services that the sink knows of, and declared the tunnels.
	told     map[string]bool
	declared map[string]bool
	// waiting: a TCP port did not answer yet. Without one there is nothing to do until an event.
	waiting bool
	// reached are the ports that answered, by key.
	reached map[string]reached
}

// New returns a provider.
func New(cfg Config) *Provider {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Self == "" {
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		host, _ := os.Hostname()
		cfg.Self = selfOf(mounts, host)
	}
	p := &Provider{
		cfg: cfg, docker: newDaemon(cfg.Socket), skip: map[uint16]bool{}, told: map[string]bool{}, declared: map[string]bool{},
		reached: map[string]reached{},
	}
	for _, port := range cfg.ExcludePorts {
		p.skip[port] = true
	}
	return p
}

// Name implements discovery.Provider.
func (p *Provider) Name() string { return Name }

// Run implements discovery.Provider.
func (p *Provider) Run(ctx context.Context, to discovery.Sink) {
	for ctx.Err() == nil {
		if _, err := os.Stat(p.cfg.Socket); errors.Is(err, fs.ErrNotExist) && !p.cfg.Wanted {
			to.State(discovery.Off, "there is no Docker at "+p.cfg.Socket)
			return
		}
		err := p.follow(ctx, to)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, fs.ErrPermission) {
			err = errors.New("Docker's socket " + p.cfg.Socket + " may not be used by this user; add it to the group that owns the socket") //nolint:staticcheck // a name
		}
		to.State(discovery.Unavailable, err.Error())
		sleep(ctx, retry)
	}
}

// follow looks at the containers whenever something happens to one, until Docker fails.
func (p *Provider) follow(ctx context.Context, to discovery.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	happened := make(chan string, 64)
	ended := make(chan error, 1)
	go func() { ended <- p.docker.events(ctx, happened) }()
	stopped := false
	defer func() {
		cancel()
		if !stopped {
			<-ended //nolint:errcheck // it was cancelled
		}
	}()
	retry := time.NewTimer(again)
	defer retry.Stop()
	for {
		select {
		case err := <-ended:
			stopped = true
			return err
		case id := <-happened:
			sleep(ctx, settle)
			p.forget(id)
			for len(happened) > 0 {
				p.forget(<-happened)
			}
		case <-retry.C:
		}
		list, err := p.docker.containers(ctx)
		if err != nil {
			return err
		}
		p.take(ctx, list, to)
		to.State(discovery.OK, "")
		if p.waiting {
			retry.Reset(again)
		}
	}
}

// take tells the sink what differs from what it knows.
func (p *Provider) take(ctx context.Context, list []container, to discovery.Sink) {
	told, declared := map[string]bool{}, map[string]bool{}
	for _, f := range p.find(ctx, p.candidates(list)) {
		told[f.service.GetId()] = true
		to.Put(f.service)
		if f.declared != nil {
			declared[f.service.GetId()] = true
			to.Declare(f.service.GetId(), f.declared)
		}
	}
	for id := range p.told {
		if !told[id] {
			to.Delete(id)
		}
	}
	for id := range p.declared {
		if !declared[id] {
			to.Declare(id, nil)
		}
	}
	p.told, p.declared = told, declared
}

// found is one service, with what its labels declare.
type found struct {
	service  *hubv1.DiscoveredService
	declared *discovery.Declaration
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// idInMounts is the id of a container in the list of its own mounts: Docker brings its hosts file from a
// folder that is named after it.
var idInMounts = regexp.MustCompile(`/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) `)

// selfOf is the id of the container that this process runs in, as far as mounts or the host name,
// which Docker makes of the id, tell it.
func selfOf(mounts []byte, host string) string {
	if m := idInMounts.FindSubmatch(mounts); m != nil {
		return string(m[1])
	}
	if len(host) == 12 && strings.Trim(host, "0123456789abcdef") == "" {
		return host
	}
	return ""
}

// nameOf is what people call a container: its name, without the slash it begins with.
func nameOf(c *container) string {
	for _, n := range c.Names {
		// A link has the name of another container in front.
		if n = strings.TrimPrefix(n, "/"); n != "" && !strings.Contains(n, "/") {
			return n
		}
	}
	return c.ID[:min(12, len(c.ID))]
}
