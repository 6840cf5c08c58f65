// Package discovery finds services that an agent could expose. Each source is a Provider; a Finder
// runs them and tells what changed.
package discovery

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// States of a provider.
const (
	// OK: what it says is up to date.
	OK = "ok"
	// Unavailable: its source cannot be reached, the detail says why; what it said stays.
	Unavailable = "unavailable"
	// Off: it does not run here, the detail says why.
	Off = "off"
)

// Sink takes what a provider finds. Its methods never block.
type Sink interface {
	// Put adds or replaces a service, Delete removes one.
	Put(s *hubv1.DiscoveredService)
	Delete(id string)
	// Declare adds or replaces what the labels of a service declare; nil takes it back.
	Declare(id string, d *Declaration)
	// State says how the provider fares.
	State(state, detail string)
}

// Declaration is a tunnel that a service declares by its own labels.
type Declaration struct {
	// List is the agent's list that it belongs to: services, tcp_services or udp_services.
	List string
	// Entry is the entry of that list, with the list's own fields.
	Entry map[string]any
	// Problem tells why the labels declare nothing that can be served; empty = they do.
	Problem string
}

// Provider watches one source of services.
type Provider interface {
	// Name is "host", "docker" or "kubernetes": also the first part of the ids of its services.
	Name() string
	// Run tells the sink what there is and what changes, until ctx ends.
	Run(ctx context.Context, to Sink)
}

// maxServices bounds what one agent reports: beyond it services are left out.
const maxServices = 5000

// Finder runs providers and keeps what they found, for reports to the hub.
type Finder struct {
	providers []Provider
	// changed is called after each change.
	changed func()

	mu       sync.Mutex
	services map[string]*hubv1.DiscoveredService
	states   map[string]*hubv1.ProviderState
	// dirty are ids that changed since the last report.
	dirty map[string]bool
	// moved is true when a state changed.
	moved bool
	// declared is what services declare, by their ids.
	declared map[string]*Declaration
}

// New returns a finder; changed is called, from any goroutine, when there is something to report.
func New(providers []Provider, changed func()) *Finder {
	f := &Finder{
		providers: providers, changed: changed, services: map[string]*hubv1.DiscoveredService{},
		states: map[string]*hubv1.ProviderState{}, dirty: map[string]bool{}, declared: map[string]*Declaration{},
	}
	for _, p := range providers {
		f.states[p.Name()] = &hubv1.ProviderState{Provider: p.Name(), State: Unavailable, Detail: "has not looked yet"}
	}
	return f
}

// Run runs the providers until ctx ends.
func (f *Finder) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range f.providers {
		wg.Go(func() { p.Run(ctx, sink{f, p.Name()}) })
	}
	wg.Wait()
}

// Names are the providers that run here.
func (f *Finder) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for name, s := range f.states {
		if s.GetState() != Off {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Report is what changed since the report before, or everything with all; nil = nothing. What it
// says counts as told: after a failure the next one must be for all.
func (f *Finder) Report(all bool) *hubv1.DiscoveryReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !all && len(f.dirty) == 0 && !f.moved {
		return nil
	}
	r := &hubv1.DiscoveryReport{Snapshot: all}
	for _, name := range slices.Sorted(maps.Keys(f.states)) {
		r.Providers = append(r.Providers, proto.CloneOf(f.states[name]))
	}
	if all {
		for _, id := range slices.Sorted(maps.Keys(f.services)) {
			r.Puts = append(r.Puts, f.services[id])
		}
	} else {
		for _, id := range slices.Sorted(maps.Keys(f.dirty)) {
			if s := f.services[id]; s != nil {
				r.Puts = append(r.Puts, s)
			} else {
				r.Deletes = append(r.Deletes, id)
			}
		}
	}
	clear(f.dirty)
	f.moved = false
	return r
}

// Declared is what services declare by their labels, by their ids.
func (f *Finder) Declared() map[string]*Declaration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.declared)
}

type sink struct {
	f        *Finder
	provider string
}

func (s sink) Put(d *hubv1.DiscoveredService) {
	d = proto.CloneOf(d)
	d.Provider = s.provider
	s.change(func() bool {
		old := s.f.services[d.GetId()]
		if proto.Equal(old, d) || old == nil && len(s.f.services) >= maxServices {
			return false
		}
		s.f.services[d.GetId()], s.f.dirty[d.GetId()] = d, true
		return true
	})
}

func (s sink) Delete(id string) {
	s.change(func() bool {
		if s.f.services[id] == nil {
			return false
		}
		delete(s.f.services, id)
		s.f.dirty[id] = true
		return true
	})
}

func (s sink) Declare(id string, d *Declaration) {
	s.change(func() bool {
		switch old := s.f.declared[id]; {
		case reflect.DeepEqual(old, d):
			return false
		case d == nil:
			delete(s.f.declared, id)
		default:
			s.f.declared[id] = d
		}
		return true
	})
}

func (s sink) State(state, detail string) {
	s.change(func() bool {
		now := &hubv1.ProviderState{Provider: s.provider, State: state, Detail: detail}
		if proto.Equal(s.f.states[s.provider], now) {
			return false
		}
		s.f.states[s.provider], s.f.moved = now, true
		return true
	})
}

func (s sink) change(f func() bool) {
	s.f.mu.Lock()
	changed := f()
	s.f.mu.Unlock()
	if changed {
		s.f.changed()
	}
}
