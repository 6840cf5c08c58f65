package reach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/adit-dev/adit/internal/kubeapi"
)

// readTime bounds one look at the cluster.
const readTime = 10 * time.Second

// read returns the addresses of the node, and each of them with each UDP node port of the Service.
// The rights that charts grant for this are get alone, so there is nothing to watch.
func (c *Cluster) read(ctx context.Context) ([]netip.Addr, []string, error) {
	switch {
	case c.Node == "":
		return nil, nil, errors.New("the node is not known; set NODE_NAME from the Pod's spec.nodeName")
	case c.Namespace == "":
		return nil, nil, errors.New("the namespace is not known; set POD_NAMESPACE from the Pod's metadata.namespace")
	case c.Service == "":
		return nil, nil, errors.New("the Service is not known; name it with --kubernetes-service")
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	api, err := c.Connect()
	if err != nil {
		return nil, nil, err
	}
	var node corev1.Node
	if err := api.Get(ctx, "", kubeapi.Nodes, c.Node, &node); err != nil {
		return nil, nil, fmt.Errorf("node %q: %w", c.Node, err)
	}
	var service corev1.Service
	if err := api.Get(ctx, c.Namespace, kubeapi.Services, c.Service, &service); err != nil {
		return nil, nil, fmt.Errorf("Service %q in namespace %q: %w", c.Service, c.Namespace, err) //nolint:staticcheck // a kind of Kubernetes
	}
	addresses := nodeAddresses(&node)
	ports := nodePorts(&service)
	switch {
	case len(addresses) == 0:
		return nil, nil, fmt.Errorf("node %q has neither an ExternalIP nor an InternalIP", c.Node)
	case len(ports) == 0:
		return nil, nil, fmt.Errorf("Service %q in namespace %q has no UDP node port; make it one of type NodePort with a port of protocol UDP", c.Service, c.Namespace) //nolint:staticcheck // a kind of Kubernetes
	}
	return addresses, combine(addresses, ports), nil
}

// nodeAddresses are the node's, those that others can reach first.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, at := range n.Status.Addresses {
			if a, err := netip.ParseAddr(at.Address); err == nil && at.Type == kind {
				out = append(out, a.Unmap())
			}
		}
	}
	return out
}

func nodePorts(s *corev1.Service) []uint16 {
	var out []uint16
	for _, p := range s.Spec.Ports {
		if p.Protocol == corev1.ProtocolUDP && p.NodePort > 0 {
			out = append(out, uint16(p.NodePort)) //nolint:gosec // the API takes ports only
		}
	}
	return out
}

func combine(addresses []netip.Addr, ports []uint16) []string {
	out := make([]string, 0, len(addresses)*len(ports))
	for _, a := range addresses {
		for _, p := range ports {
			out = append(out, netip.AddrPortFrom(a, p).String())
		}
	}
	return out
}
