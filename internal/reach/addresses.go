// Package reach knows the addresses at which edges could dial this agent.
package reach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/kubeapi"
)

// Config says where addresses come from.
type Config struct {
	// Extra are added to what is found, each host:port.
	Extra []string
	// Cluster has the addresses of the node read from the cluster; nil = not in Kubernetes, or not
	// asked for.
	Cluster *Cluster
	Log     *slog.Logger
}

// Cluster says whose addresses are read from a cluster.
type Cluster struct {
	// Connect returns a client of the cluster's API.
	Connect func() (*kubeapi.Client, error)
	// Node is the name of the node that the agent runs on; Namespace and Service are the Service
	// whose UDP node ports lead to the agent.
	Node, Namespace, Service string
	// Step is how often both are read; 0 = 15 s.
	Step time.Duration
}

// Addresses are the advertised ones.
type Addresses struct {
	cfg Config

	mu      sync.RWMutex
	found   []string
	node    []netip.Addr
	problem string
}

// New returns the addresses of cfg. The error names an entry of Extra that is no host:port.
func New(cfg Config) (*Addresses, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Extra = slices.Clone(cfg.Extra)
	for i, text := range cfg.Extra {
		at, err := parseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("--extra-local-addrs: entry %d, %q, %w", i+1, text, err)
		}
		cfg.Extra[i] = at
	}
	return &Addresses{cfg: cfg}, nil
}

// parseAddress reads host:port, with IPv6 in brackets.
func parseAddress(text string) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimSpace(text))
	if err != nil || host == "" {
		if a, aerr := netip.ParseAddr(strings.TrimSpace(text)); aerr == nil && a.Is6() {
			return "", fmt.Errorf("has no port; write [%s]:51820", a)
		}
		return "", errors.New("is not host:port; write 203.0.113.7:51820, [2001:db8::7]:51820 or host.example.com:51820")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("has port %q; a port is a number from 1 to 65535", port)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.IsUnspecified() || a.IsMulticast() {
			return "", errors.New("is no address that anybody could dial")
		}
		return netip.AddrPortFrom(a.Unmap(), uint16(n)).String(), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !validHost(host) {
		return "", fmt.Errorf("has host %q, which is neither an address nor a host name", host)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(n))), nil
}

func validHost(h string) bool {
	if len(h) > 253 {
		return false
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") ||
			strings.ContainsFunc(label, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
			return false
		}
	}
	// What ends in a number is a misspelt address.
	last := h[strings.LastIndexByte(h, '.')+1:]
	return strings.ContainsFunc(last, func(r rune) bool { return r < '0' || r > '9' })
}

// List are the addresses now: those of the node, external ones first, then the extra ones.
func (a *Addresses) List() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []string
	for _, at := range slices.Concat(a.found, a.cfg.Extra) {
		if !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// Problem is why the addresses of the node are not up to date; empty = they are.
func (a *Addresses) Problem() string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.problem
}

// Node tells whether an address is one of the agent's own node.
func (a *Addresses) Node(ip netip.Addr) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Contains(a.node, ip)
}

// Run keeps the addresses up to date until ctx ends and calls changed after each change.
func (a *Addresses) Run(ctx context.Context, changed func()) {
	if a.cfg.Cluster == nil {
		return
	}
	step := a.cfg.Cluster.Step
	if step <= 0 {
		step = 15 * time.Second
	}
	t := time.NewTicker(step)
	defer t.Stop()
	for {
		node, found, err := a.cfg.Cluster.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if a.take(node, found, err) {
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// take notes what was read; after a failure what was known stays.
func (a *Addresses) take(node []netip.Addr, found []string, err error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if text := err.Error(); text != a.problem {
			a.problem = text
			a.cfg.Log.Warn("the addresses of the node are not known; the agent goes on without", "problem", text)
			return true
		}
		return false
	}
	changed = a.problem != "" || !slices.Equal(a.found, found)
	if changed {
		a.cfg.Log.Info("addresses for direct paths", "addresses", found)
	}
	a.node, a.found, a.problem = node, found, ""
	return changed
}
