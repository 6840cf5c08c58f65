package kubernetes

import (
	"net/netip"
	"slices"
)

// addresses are the Services by the addresses that the cluster gave them.
type addresses map[netip.Addr]key

func (a addresses) build(all map[key]*service) {
	clear(a)
	for k, s := range all {
		for _, ip := range s.ips {
			a[ip] = k
		}
	}
}

// APIServer implements origin.Cluster: the addresses of the API server's Service, and those behind
// it.
func (p *Provider) APIServer(at netip.AddrPort) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.apiServer(at)
}

func (p *Provider) apiServer(at netip.AddrPort) bool {
	if k, ok := p.byIP[at.Addr()]; ok && k == apiServer {
		return true
	}
	for e := range p.endpoints[apiServer].all {
		if e == at {
			return true
		}
	}
	return false
}

// APIHost implements origin.Cluster.
func (p *Provider) APIHost(a netip.Addr) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for e := range p.endpoints[apiServer].all {
		if e.Addr() == a {
			return true
		}
	}
	return false
}

// Selected implements origin.Cluster: Pods that the cluster put behind a Service which may be
// offered, the API server's excepted. Endpoints that were written by hand prove nothing.
func (p *Provider) Selected(at netip.AddrPort) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.apiServer(at) {
		return false
	}
	for k, e := range p.endpoints {
		s := p.services[k]
		if s == nil || !s.selects || p.hidden(k, s) {
			continue
		}
		for other := range e.all {
			if other == at {
				return true
			}
		}
	}
	return false
}

// Behind implements origin.Cluster: where connections to the address of a Service go, if its
// endpoints were written by hand.
func (p *Provider) Behind(at netip.AddrPort) []netip.AddrPort {
	p.mu.RLock()
	defer p.mu.RUnlock()
	k, ok := p.byIP[at.Addr()]
	if !ok || k == apiServer || p.services[k].selects {
		return nil
	}
	return slices.Collect(p.endpoints[k].all)
}
