package reach

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/adit-dev/adit/internal/kubeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExtraAddresses(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []string
		want    string // joined; or, after "!", part of the error
	}{
		{"TOW-23 extra addresses, IPv6 in brackets", []string{"203.0.113.7:51820", " [2001:db8::7]:51820 "}, "203.0.113.7:51820 [2001:db8::7]:51820"},
		{"TOW-23 a host name", []string{"Home.Example.com.:51820"}, "home.example.com:51820"},
		{"the same twice", []string{"203.0.113.7:1", "203.0.113.7:1"}, "203.0.113.7:1"},
		{"IPv4 in IPv6", []string{"[::ffff:203.0.113.7]:1"}, "203.0.113.7:1"},
		{"no port", []string{"203.0.113.7:1", "203.0.113.7"}, `!entry 2, "203.0.113.7", is not host:port`},
		{"IPv6 without brackets", []string{"2001:db8::7"}, "!has no port; write [2001:db8::7]:51820"},
		{"port 0", []string{"203.0.113.7:0"}, `!has port "0"`},
		{"port 65536", []string{"203.0.113.7:65536"}, `!has port "65536"`},
		{"no host", []string{":51820"}, "!is not host:port"},
		{"misspelt address", []string{"203.0.113.777:1"}, `!has host "203.0.113.777"`},
		{"misspelt name", []string{"a_b:1"}, `!has host "a_b"`},
		{"wildcard", []string{"0.0.0.0:1"}, "!is no address that anybody could dial"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := New(Config{Extra: c.entries})
			if want, bad := strings.CutPrefix(c.want, "!"); bad {
				if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--extra-local-addrs: ") {
					t.Errorf("%v, want %q", err, want)
				}
				return
			}
			if err != nil || strings.Join(a.List(), " ") != c.want {
				t.Errorf("%q %v, want %q", a.List(), err, c.want)
			}
		})
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"203.0.113.7:51820", "[2001:db8::7]:51820", "host.example:1", "[fe80::1%eth0]:5", ":", "a:b:c", "[::]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseAddress(text)
		if err != nil {
			return
		}
		again, err := parseAddress(at)
		if err != nil || again != at {
			t.Errorf("%q became %q, which becomes %q, %v", text, at, again, err)
		}
	})
}

// api serves one node and one Service, as long as they are there.
type api struct {
	mu      sync.Mutex
	node    *corev1.Node
	service *corev1.Service
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out any
	switch {
	case r.URL.Path == "/api/v1/nodes/node1" && a.node != nil:
		out = a.node
	case r.URL.Path == "/api/v1/namespaces/edge/services/direct" && a.service != nil:
		out = a.service
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound, Message: "not found"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

func (a *api) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func node(addresses ...corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, Status: corev1.NodeStatus{Addresses: addresses}}
}

func direct(ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, Spec: corev1.ServiceSpec{Ports: ports}}
}

func TestNodeAddresses(t *testing.T) {
	a := &api{
		node: node(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.168.7.10"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node1"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00:7::10"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.10"},
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "not an address"}),
		service: direct(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 51820, NodePort: 31820},
			corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 1}),
	}
	s := httptest.NewServer(a)
	defer s.Close()
	connect := sync.OnceValues(func() (*kubeapi.Client, error) { return kubeapi.New(&rest.Config{Host: s.URL}, nil) })
	r, err := New(Config{Extra: []string{"home.example.com:51820"}, Cluster: &Cluster{Connect: connect, Node: "node1", Namespace: "edge", Service: "direct", Step: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}, 100), make(chan struct{})
	go func() { defer close(done); r.Run(ctx, func() { changed <- struct{}{} }) }()
	defer func() { cancel(); <-done; s.CloseClientConnections() }()
	want := func(problem string, list ...string) {
		t.Helper()
		for limit := time.After(30 * time.Second); !slices.Equal(r.List(), list) || !strings.Contains(r.Problem(), problem) || (problem == "") != (r.Problem() == ""); {
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("%q, problem %q; want %q, %q", r.List(), r.Problem(), list, problem)
			}
		}
	}
	all := []string{"203.0.113.10:31820", "192.168.7.10:31820", "[fd00:7::10]:31820", "home.example.com:51820"}
	want("", all...)
	if !r.Node(netip.MustParseAddr("192.168.7.10")) || r.Node(netip.MustParseAddr("192.168.7.11")) {
		t.Error("the addresses of the node are not known as such")
	}
	a.set(func() {
		a.service = direct(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080})
	})
	want("has no UDP node port", all...)
	a.set(func() { a.service = nil })
	want(`Service "direct" in namespace "edge": not found`, all...)
	a.set(func() {
		a.service = direct(corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 51820, NodePort: 31821})
	})
	want("", "203.0.113.10:31821", "192.168.7.10:31821", "[fd00:7::10]:31821", "home.example.com:51820")
	a.set(func() { a.node = node() })
	want("neither an ExternalIP nor an InternalIP", "203.0.113.10:31821", "192.168.7.10:31821", "[fd00:7::10]:31821", "home.example.com:51820")
}

func TestNodeAddressesUnset(t *testing.T) {
	for _, c := range []struct {
		cluster Cluster
		want    string
	}{
		{Cluster{Namespace: "a", Service: "b"}, "NODE_NAME"},
		{Cluster{Node: "a", Service: "b"}, "POD_NAMESPACE"},
		{Cluster{Node: "a", Namespace: "b"}, "--kubernetes-service"},
	} {
		if _, _, err := c.cluster.read(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
