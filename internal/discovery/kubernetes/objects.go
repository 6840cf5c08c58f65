package kubernetes

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// key names a Service, and the Endpoints of the same name.
type key struct{ namespace, name string }

// apiServer is the Service of the API server itself.
var apiServer = key{"default", "kubernetes"}

// service is what is kept of a Service: a small part, since a cluster may have thousands.
type service struct {
	labels map[string]string
	// label is what a tunnel should be called, if somebody said so.
	label string
	ips   []netip.Addr
	ports []port
	// headless: its name leads to its Pods, not to an address of its own.
	headless bool
	// external: its name stands for another one, outside.
	external bool
	// selects: the cluster finds its endpoints; else they are written by hand.
	selects bool
	// denied: whoever made it does not want it offered.
	denied bool
}

type port struct {
	name, app  string
	number     uint16
	protocol   string // tcp, udp, or another in lower case
	target     uint16 // 0 = a name, or the number
	targetName string
}

// endpoints is what is kept of an Endpoints object.
type endpoints struct{ subsets []subset }

type subset struct {
	ready, notReady []netip.Addr
	ports           []endpointPort
}

type endpointPort struct {
	name     string
	number   uint16
	protocol string
}

// prefix of the labels and annotations that are for Adit, hlePrefix of those it understands besides.
const (
	prefix    = "adit.dev/"
	hlePrefix = "hle.world/"
)

// maxLabels bounds the labels of one Service that are passed on, in bytes: the hub takes thousands of
// services in one report of 8 MiB.
const maxLabels = 1 << 10

func keepService(obj any) (key, *service) {
	o := obj.(*corev1.Service)
	s := &service{
		labels: keptLabels(o.Labels), headless: o.Spec.ClusterIP == "" || o.Spec.ClusterIP == corev1.ClusterIPNone,
		external: o.Spec.Type == corev1.ServiceTypeExternalName, selects: len(o.Spec.Selector) > 0,
	}
	for _, from := range []map[string]string{o.Labels, o.Annotations} {
		s.denied = s.denied || from[prefix+"expose"] == "denied" || from[hlePrefix+"expose"] == "denied"
		if v := from[prefix+"label"]; v != "" {
			s.label = v
		}
	}
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{o.Spec.ClusterIP}
	}
	for _, text := range ips {
		if a, err := netip.ParseAddr(text); err == nil {
			s.ips = append(s.ips, a.Unmap())
		}
	}
	for _, at := range o.Spec.Ports {
		kept := port{name: at.Name, number: uint16(at.Port), protocol: protocolOf(at.Protocol)} //nolint:gosec // the API takes ports only
		if at.AppProtocol != nil {
			kept.app = *at.AppProtocol
		}
		if at.TargetPort.Type == intstr.String {
			kept.targetName = at.TargetPort.StrVal
		} else {
			kept.target = uint16(at.TargetPort.IntVal) //nolint:gosec // as above
		}
		s.ports = append(s.ports, kept)
	}
	return key{o.Namespace, o.Name}, s
}

func protocolOf(p corev1.Protocol) string {
	if p == "" {
		return "tcp"
	}
	return strings.ToLower(string(p))
}

// keptLabels are those that tell people what a Service is, and those for Adit.
func keptLabels(all map[string]string) map[string]string {
	out := map[string]string{}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(all)) {
		ours := strings.HasPrefix(k, "app") || strings.HasPrefix(k, "helm.sh/") || strings.HasPrefix(k, prefix) || strings.HasPrefix(k, hlePrefix)
		if n := len(k) + len(all[k]); ours && size+n <= maxLabels {
			out[k] = all[k]
			size += n
		}
	}
	return out
}

func keepEndpoints(obj any) (key, *endpoints) {
	o := obj.(*corev1.Endpoints) //nolint:staticcheck // the documented grant has Endpoints, not their slices
	e := &endpoints{}
	for _, s := range o.Subsets {
		kept := subset{ready: addressesOf(s.Addresses), notReady: addressesOf(s.NotReadyAddresses)}
		for _, at := range s.Ports {
			kept.ports = append(kept.ports, endpointPort{at.Name, uint16(at.Port), protocolOf(at.Protocol)}) //nolint:gosec // the API takes ports only
		}
		e.subsets = append(e.subsets, kept)
	}
	return key{o.Namespace, o.Name}, e
}

func addressesOf(list []corev1.EndpointAddress) []netip.Addr { //nolint:staticcheck // as above
	var out []netip.Addr
	for _, at := range list {
		if a, err := netip.ParseAddr(at.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// all are the addresses that e has with their ports, ready or not.
func (e *endpoints) all(yield func(netip.AddrPort) bool) {
	if e == nil {
		return
	}
	for _, s := range e.subsets {
		for _, list := range [][]netip.Addr{s.ready, s.notReady} {
			for _, a := range list {
				for _, at := range s.ports {
					if !yield(netip.AddrPortFrom(a, at.number)) {
						return
					}
				}
			}
		}
	}
}

// of finds the addresses that are ready for a port of a Service, and the port they listen at (0 =
// not known).
func (e *endpoints) of(p port) (ready map[netip.Addr]bool, number uint16) {
	ready = map[netip.Addr]bool{}
	if e == nil {
		return ready, 0
	}
	for _, s := range e.subsets {
		for _, at := range s.ports {
			if at.name != p.name || at.protocol != p.protocol {
				continue
			}
			number = at.number
			for _, a := range s.ready {
				ready[a] = true
			}
		}
	}
	return ready, number
}
