// Package host finds the services of the agent's own host: TCP ports that wait for connections.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
)

// Name of the provider.
const Name = "host"

// step is how often the ports are looked at.
const step = time.Second

// Config says what is left out.
type Config struct {
	// ExcludePorts are not reported.
	ExcludePorts []uint16
	// Root is where /proc is; empty = "/proc".
	Root string
	// Wanted: somebody asked for it by name, so that it looks in a container too: one may share the
	// host's network, or be a whole machine.
	Wanted bool
	// Container tells whether the agent runs in one; nil = look.
	Container func() bool
	// Sniff tells the scheme of a port that no name is known for; nil = ask it.
	Sniff func(ctx context.Context, at netip.AddrPort) string
}

// Provider watches the ports of this host.
type Provider struct {
	cfg  Config
	skip map[uint16]bool
	pid  int
	// known are the services told of, by id, with the socket that each stands for.
	known map[string]known
}

type known struct {
	socket uint64
	s      *hubv1.DiscoveredService
}

// New returns a provider.
func New(cfg Config) *Provider {
	if cfg.Root == "" {
		cfg.Root = "/proc"
	}
	if cfg.Container == nil {
		cfg.Container = func() bool { return discovery.InContainer(os.Getenv) }
	}
	if cfg.Sniff == nil {
		cfg.Sniff = discovery.Sniff
	}
	p := &Provider{cfg: cfg, skip: map[uint16]bool{}, pid: os.Getpid(), known: map[string]known{}}
	for _, port := range cfg.ExcludePorts {
		p.skip[port] = true
	}
	return p
}

// Name implements discovery.Provider.
func (p *Provider) Name() string { return Name }

// Run implements discovery.Provider.
func (p *Provider) Run(ctx context.Context, to discovery.Sink) {
	switch {
	case runtime.GOOS != "linux":
		to.State(discovery.Off, "the ports of this system cannot be listed; it works on Linux")
		return
	case !p.cfg.Wanted && p.cfg.Container():
		to.State(discovery.Off, "the agent runs in a container, whose own ports are not the host's; --discovery host lists them all the same")
		return
	}
	t := time.NewTicker(step)
	defer t.Stop()
	for {
		if err := p.look(ctx, to); err != nil {
			to.State(discovery.Unavailable, err.Error())
		} else {
			to.State(discovery.OK, "")
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// look compares the ports there are with those told of.
func (p *Provider) look(ctx context.Context, to discovery.Sink) error {
	ports, err := p.ports()
	if err != nil {
		return err
	}
	now := map[string]bool{}
	var fresh []listener
	for _, l := range ports {
		id := idOf(l)
		now[id] = true
		if k, ok := p.known[id]; !ok || k.socket != l.inode {
			fresh = append(fresh, l)
		}
	}
	if len(fresh) > 0 {
		names := p.processes(fresh)
		for _, l := range fresh {
			name, ours := names[l.inode].name, names[l.inode].pid == p.pid
			if ours {
				// The agent's own listeners are not services.
				p.known[idOf(l)] = known{socket: l.inode}
				continue
			}
			s := p.service(ctx, l, name)
			p.known[s.GetId()] = known{l.inode, s}
			to.Put(s)
		}
	}
	for id, k := range p.known {
		if !now[id] {
			delete(p.known, id)
			if k.s != nil {
				to.Delete(id)
			}
		}
	}
	return nil
}

// idOf names a service by its port: two sockets of one port are one service.
func idOf(l listener) string { return fmt.Sprintf("%s//localhost/%d/tcp", Name, l.addr.Port()) }

// ports are the TCP ports that this host can be reached at, one socket each: loopback and wildcard
// addresses before those of an interface, IPv4 before IPv6.
func (p *Provider) ports() ([]listener, error) {
	var all []listener
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(p.cfg.Root, "net", name))
		if errors.Is(err, fs.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("the ports of this host cannot be read: %w", err)
		}
		l, err := parseTCP(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("the ports of this host cannot be read: %w", err)
		}
		all = append(all, l...)
	}
	rank := func(a netip.Addr) int {
		n := 0
		if !a.IsLoopback() && !a.IsUnspecified() {
			n = 2
		}
		if !a.Is4() {
			n++
		}
		return n
	}
	slices.SortFunc(all, func(a, b listener) int {
		return cmp.Or(cmp.Compare(a.addr.Port(), b.addr.Port()), cmp.Compare(rank(a.addr.Addr()), rank(b.addr.Addr())), cmp.Compare(a.inode, b.inode))
	})
	all = slices.CompactFunc(all, func(a, b listener) bool { return a.addr.Port() == b.addr.Port() })
	return slices.DeleteFunc(all, func(l listener) bool { return p.skip[l.addr.Port()] || l.addr.Addr().IsLinkLocalUnicast() }), nil
}

// dialled is the address that the agent dials for a listener.
func dialled(a netip.AddrPort) netip.AddrPort {
	switch {
	case a.Addr() == netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	case a.Addr() == netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
	}
	return a
}

func (p *Provider) service(ctx context.Context, l listener, process string) *hubv1.DiscoveredService {
	at := dialled(l.addr)
	scheme, app := discovery.SchemeOf(l.addr.Port(), process)
	if scheme == "" {
		scheme = p.cfg.Sniff(ctx, at)
	}
	name := process
	if name == "" {
		name = app
	}
	if name == "" {
		name = "port-" + strconv.Itoa(int(at.Port()))
	}
	kind := wirev1.Kind_KIND_TCP
	if scheme == "http" || scheme == "https" {
		kind = wirev1.Kind_KIND_HTTP
	}
	return &hubv1.DiscoveredService{
		Id: idOf(l), Provider: Name, Name: name, Port: uint32(at.Port()), Kind: kind, AppProtocol: app, PortName: app,
		Origin: scheme + "://" + at.String(), Readiness: "ready", ReadyEndpoints: 1, SuggestedLabel: discovery.Label(name),
	}
}

type process struct {
	name string
	pid  int
}

// processes finds whose sockets they are, as far as this user may see it.
func (p *Provider) processes(of []listener) map[uint64]process {
	want := map[string]uint64{}
	for _, l := range of {
		want["socket:["+strconv.FormatUint(l.inode, 10)+"]"] = l.inode
	}
	out := map[uint64]process{}
	dirs, err := os.ReadDir(p.cfg.Root)
	if err != nil {
		return out
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		fds := filepath.Join(p.cfg.Root, d.Name(), "fd")
		open, err := os.ReadDir(fds)
		if err != nil {
			continue // another user's
		}
		for _, fd := range open {
			to, err := os.Readlink(filepath.Join(fds, fd.Name()))
			if err != nil {
				continue
			}
			inode, ok := want[to]
			if _, have := out[inode]; !ok || have {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(p.cfg.Root, d.Name(), "comm"))
			out[inode] = process{strings.TrimSpace(strings.ToValidUTF8(string(comm), "")), pid}
		}
		if len(out) == len(want) {
			break
		}
	}
	return out
}
