// Package kubernetes finds the services of the cluster that the agent runs in. It watches Services
// and Endpoints of the core group and needs no other right than get, list and watch of those.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/adit-dev/adit/internal/discovery"
	"github.com/adit-dev/adit/internal/kubeapi"
)

// Name of the provider.
const Name = "kubernetes"

// systemNamespaces are the cluster's own.
var systemNamespaces = []string{"kube-system", "kube-public", "kube-node-lease"}

// Config says how the cluster is reached and what is left out.
type Config struct {
	// Connect returns a client of the cluster's API.
	Connect func() (*kubeapi.Client, error)
	// Wanted: somebody asked for Kubernetes by name, so that no access is a failure to show, not an
	// agent elsewhere.
	Wanted bool
	// ExcludeNamespaces are left out beside the cluster's own, which IncludeSystem keeps.
	ExcludeNamespaces []string
	IncludeSystem     bool
	// ExcludePorts and ExcludePortNames are ports of Services that are left out.
	ExcludePorts     []uint16
	ExcludePortNames []string
	// IncludeHeadless keeps Services without a cluster address.
	IncludeHeadless bool
	// Domain of the cluster's DNS; empty = look, and cluster.local if nothing tells.
	Domain string
	// Getenv and ResolvConf are what a Pod is told of its cluster; nil and empty = those of this
	// process.
	Getenv     func(string) string
	ResolvConf string
	// LookupAddr finds the names of an address; nil = the system's resolver.
	LookupAddr func(ctx context.Context, addr string) ([]string, error)
	Log        *slog.Logger
}

// Provider watches the cluster.
type Provider struct {
	cfg    Config
	domain string

	// order lets one change after the other reach the sink; everything below it belongs to its
	// holder.
	order  sync.Mutex
	to     discovery.Sink
	synced map[string]bool
	// problems are why a resource cannot be watched now.
	problems map[string]error
	// told are the ids that the sink knows, by Service.
	told map[key][]string

	// mu guards what is known, which the target guard reads as well.
	mu        sync.RWMutex
	services  map[key]*service
	endpoints map[key]*endpoints
	byIP      addresses
}

// New returns a provider.
func New(cfg Config) *Provider {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	cfg.ExcludeNamespaces = slices.Clone(cfg.ExcludeNamespaces)
	for i, n := range cfg.ExcludeNamespaces {
		cfg.ExcludeNamespaces[i] = strings.ToLower(n)
	}
	return &Provider{
		cfg: cfg, synced: map[string]bool{}, problems: map[string]error{}, told: map[key][]string{},
		services: map[key]*service{}, endpoints: map[key]*endpoints{}, byIP: addresses{},
	}
}

// Name implements discovery.Provider.
func (p *Provider) Name() string { return Name }

// Run implements discovery.Provider.
func (p *Provider) Run(ctx context.Context, to discovery.Sink) {
	c, err := p.cfg.Connect()
	switch {
	case errors.Is(err, kubeapi.ErrNoAccess) && !p.cfg.Wanted:
		to.State(discovery.Off, strings.TrimPrefix(err.Error(), kubeapi.ErrNoAccess.Error()+": "))
		return
	case err != nil:
		to.State(discovery.Unavailable, err.Error())
		return
	}
	p.to = to
	p.domain = p.clusterDomain(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		c.Watch(ctx, kubeapi.Services, &corev1.Service{}, &mirror[service]{p, kubeapi.Services, keepService, p.putServices}, p.heard(kubeapi.Services))
	})
	wg.Go(func() {
		//nolint:staticcheck // the documented grant has Endpoints, not their slices
		c.Watch(ctx, kubeapi.Endpoints, &corev1.Endpoints{}, &mirror[endpoints]{p, kubeapi.Endpoints, keepEndpoints, p.putEndpoints}, p.heard(kubeapi.Endpoints))
	})
	wg.Wait()
}

// putServices takes Services that are new or changed; nil = gone. With all there are no others.
func (p *Provider) putServices(now map[key]*service, all bool) []key {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := merge(p.services, now, all)
	p.byIP.build(p.services)
	return changed
}

func (p *Provider) putEndpoints(now map[key]*endpoints, all bool) []key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return merge(p.endpoints, now, all)
}

// merge puts now into what is known and returns what may have changed.
func merge[T any](known, now map[key]*T, all bool) []key {
	changed := map[key]bool{}
	if all {
		for k := range known {
			if now[k] == nil {
				delete(known, k)
				changed[k] = true
			}
		}
	}
	for k, v := range now {
		changed[k] = true
		if v == nil {
			delete(known, k)
		} else {
			known[k] = v
		}
	}
	return slices.Collect(maps.Keys(changed))
}

// heard returns what notes how the API answers for a resource.
func (p *Provider) heard(resource string) func(error) {
	return func(err error) {
		p.order.Lock()
		defer p.order.Unlock()
		before := p.complete()
		p.problems[resource] = err
		if !before && p.complete() {
			p.tell(p.everything())
		}
		p.state()
	}
}

// complete: there is enough to tell of. Without Endpoints it is not known which Services are ready,
// with a moment's patience it mostly is.
func (p *Provider) complete() bool {
	return p.synced[kubeapi.Services] && (p.synced[kubeapi.Endpoints] || p.problems[kubeapi.Endpoints] != nil)
}

// state says how it goes.
func (p *Provider) state() {
	err := cmp.Or(p.problems[kubeapi.Services], p.problems[kubeapi.Endpoints])
	switch {
	case err != nil:
		p.to.State(discovery.Unavailable, err.Error())
	case p.complete():
		p.to.State(discovery.OK, "")
	}
}

// everything are the Services that are known.
func (p *Provider) everything() []key { return slices.Collect(maps.Keys(p.services)) }

// tell tells the sink what is to be said of these Services now.
func (p *Provider) tell(changed []key) {
	for _, k := range changed {
		var ids []string
		if s := p.services[k]; s != nil && !p.leftOut(k, s) {
			for _, d := range p.entries(k, s, p.endpoints[k]) {
				ids = append(ids, d.GetId())
				p.to.Put(d)
			}
		}
		for _, id := range p.told[k] {
			if !slices.Contains(ids, id) {
				p.to.Delete(id)
			}
		}
		if p.told[k] = ids; ids == nil {
			delete(p.told, k)
		}
	}
}

// mirror takes objects of the API as they come and keeps of each what is needed.
type mirror[T any] struct {
	p        *Provider
	resource string
	keep     func(obj any) (key, *T)
	put      func(now map[key]*T, all bool) []key
}

// Add is part of cache.ReflectorStore, as the methods below are.
func (m *mirror[T]) Add(obj any) error {
	k, v := m.keep(obj)
	m.take(map[key]*T{k: v}, false)
	return nil
}

// Update is like Add.
func (m *mirror[T]) Update(obj any) error { return m.Add(obj) }

// Delete forgets an object.
func (m *mirror[T]) Delete(obj any) error {
	k, _ := m.keep(obj)
	m.take(map[key]*T{k: nil}, false)
	return nil
}

// Replace takes all the objects that there are.
func (m *mirror[T]) Replace(list []any, _ string) error {
	now := make(map[key]*T, len(list))
	for _, obj := range list {
		k, v := m.keep(obj)
		now[k] = v
	}
	m.take(now, true)
	return nil
}

// Resync has nothing to do.
func (m *mirror[T]) Resync() error { return nil }

func (m *mirror[T]) take(now map[key]*T, all bool) {
	p := m.p
	p.order.Lock()
	defer p.order.Unlock()
	before := p.complete()
	changed := m.put(now, all)
	if all {
		p.synced[m.resource] = true
	}
	if !p.complete() {
		return
	}
	if !before {
		changed = p.everything()
	}
	p.tell(changed)
	p.state()
}
