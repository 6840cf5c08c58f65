package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/discovery"
	"github.com/adit-dev/adit/internal/kubeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is a sink that remembers what it is told.
type record struct {
	mu       sync.Mutex
	services map[string]*hubv1.DiscoveredService
	puts     int
	state    string
}

func newRecord() *record { return &record{services: map[string]*hubv1.DiscoveredService{}} }

func (r *record) Put(s *hubv1.DiscoveredService) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[s.GetId()] = s
	r.puts++
}

func (r *record) Delete(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, id)
}

func (r *record) Declare(string, *discovery.Declaration) {}

func (r *record) State(state, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = strings.TrimSpace(state + " " + detail)
}

func (r *record) origins() []string {
	var out []string
	for _, s := range r.services {
		out = append(out, s.GetOrigin())
	}
	slices.Sort(out)
	return out
}

// rig is a provider whose API is the test.
type rig struct {
	*Provider
	sink      *record
	services  *mirror[service]
	endpoints *mirror[endpoints]
}

func newRig(cfg Config) *rig {
	p := New(cfg)
	r := &rig{Provider: p, sink: newRecord(),
		services:  &mirror[service]{p, kubeapi.Services, keepService, p.putServices},
		endpoints: &mirror[endpoints]{p, kubeapi.Endpoints, keepEndpoints, p.putEndpoints}}
	p.to, p.domain = r.sink, "cluster.local"
	return r
}

// svc makes a Service namespace/name with an address.
func svc(name string, change func(*corev1.Service), ports ...corev1.ServicePort) *corev1.Service {
	ns, n, _ := strings.Cut(name, "/")
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: n}}
	s.Spec.ClusterIP, s.Spec.Ports, s.Spec.Selector = "10.96.1.1", ports, map[string]string{"app": n}
	if change != nil {
		change(s)
	}
	return s
}

func tcp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
}

func udp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolUDP}
}

//nolint:staticcheck // the documented grant has Endpoints, not their slices
func eps(name string, ready, notReady []string, ports ...corev1.EndpointPort) *corev1.Endpoints {
	ns, n, _ := strings.Cut(name, "/")
	list := func(ips []string) (out []corev1.EndpointAddress) {
		for _, ip := range ips {
			out = append(out, corev1.EndpointAddress{IP: ip})
		}
		return out
	}
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: n}, Subsets: []corev1.EndpointSubset{
		{Addresses: list(ready), NotReadyAddresses: list(notReady), Ports: ports}}}
}

func (r *rig) start(objects ...any) {
	var s, e []any
	for _, o := range objects {
		if _, ok := o.(*corev1.Service); ok {
			s = append(s, o)
		} else {
			e = append(e, o)
		}
	}
	_ = r.services.Replace(s, "1")
	_ = r.endpoints.Replace(e, "1")
}

func TestLeftOut(t *testing.T) {
	headless := func(s *corev1.Service) { s.Spec.ClusterIP = "None" }
	label := func(k string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Labels = map[string]string{k: "denied"} }
	}
	annotation := func(k string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{k: "denied"} }
	}
	names := []string{"metrics", "telemetry", "health", "probe"}
	for _, c := range []struct {
		name string
		cfg  Config
		svc  *corev1.Service
		want string
	}{
		{"HLE-S12 the address the agent would dial", Config{}, svc("monitoring/grafana", nil, tcp("service", 3000)), "http://grafana.monitoring.svc.cluster.local:3000"},
		{"several ports", Config{}, svc("a/b", nil, tcp("http", 80), tcp("https", 443)), "http://b.a.svc.cluster.local:80 https://b.a.svc.cluster.local:443"},
		{"UDP is offered as UDP", Config{}, svc("a/turn", nil, udp("turn", 3478)), "udp://turn.a.svc.cluster.local:3478"},
		{"SCTP is not", Config{}, svc("a/b", nil, corev1.ServicePort{Port: 9, Protocol: corev1.ProtocolSCTP}), ""},
		{"HLE-S14 kube-system", Config{}, svc("kube-system/b", nil, tcp("http", 80)), ""},
		{"HLE-S14 kube-public", Config{}, svc("kube-public/b", nil, tcp("http", 80)), ""},
		{"HLE-S14 kube-node-lease", Config{}, svc("kube-node-lease/b", nil, tcp("http", 80)), ""},
		{"system namespaces on demand", Config{IncludeSystem: true}, svc("kube-system/b", nil, tcp("http", 80)), "http://b.kube-system.svc.cluster.local:80"},
		{"a namespace that is left out", Config{ExcludeNamespaces: []string{"Secret"}}, svc("secret/b", nil, tcp("http", 80)), ""},
		{"others beside it", Config{ExcludeNamespaces: []string{"secret"}}, svc("secrets/b", nil, tcp("http", 80)), "http://b.secrets.svc.cluster.local:80"},
		{"namespaces add to the system's", Config{ExcludeNamespaces: []string{"secret"}}, svc("kube-system/b", nil, tcp("http", 80)), ""},
		{"the API server", Config{IncludeSystem: true}, svc("default/kubernetes", nil, tcp("https", 443)), ""},
		{"headless", Config{}, svc("a/b", headless, tcp("http", 80)), ""},
		{"headless on demand", Config{IncludeHeadless: true}, svc("a/b", headless, tcp("http", 80)), "http://b.a.svc.cluster.local:80"},
		{"ExternalName", Config{IncludeHeadless: true}, svc("a/b", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "example.com", ""
		}, tcp("http", 80)), ""},
		{"no address yet", Config{}, svc("a/b", func(s *corev1.Service) { s.Spec.ClusterIP = "" }, tcp("http", 80)), ""},
		{"opted out by label", Config{}, svc("a/b", label("adit.dev/expose"), tcp("http", 80)), ""},
		{"opted out by annotation", Config{}, svc("a/b", annotation("adit.dev/expose"), tcp("http", 80)), ""},
		{"opted out by HLE's label", Config{}, svc("a/b", label("hle.world/expose"), tcp("http", 80)), ""},
		{"opted out by HLE's annotation", Config{}, svc("a/b", annotation("hle.world/expose"), tcp("http", 80)), ""},
		{"HLE-S14 ports named metrics, telemetry, health, probe", Config{ExcludePortNames: names},
			svc("a/b", nil, tcp("http", 80), tcp("metrics", 1), tcp("telemetry", 2), tcp("health", 3), tcp("probe", 4)), "http://b.a.svc.cluster.local:80"},
		{"names count whole", Config{ExcludePortNames: names}, svc("a/b", nil, tcp("http-metrics", 90)), "http://b.a.svc.cluster.local:90"},
		{"ports by number", Config{ExcludePorts: []uint16{80}}, svc("a/b", nil, tcp("http", 80), tcp("web", 81)), "http://b.a.svc.cluster.local:81"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(c.cfg)
			r.start(c.svc)
			if got := strings.Join(r.sink.origins(), " "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if r.sink.state != discovery.OK {
				t.Errorf("state %q", r.sink.state)
			}
		})
	}
}

func TestSchemes(t *testing.T) {
	for _, c := range []struct {
		app, name string
		number    uint16
		want      string
	}{
		{"", "", 3000, "http"}, {"", "", 80, "http"}, {"", "", 443, "https http:https"}, {"", "", 8443, "https http:https"},
		{"", "", 22, "tcp ssh"}, {"", "", 5432, "tcp postgresql"}, {"", "", 9100, "http"},
		{"", "https", 80, "https https"}, {"", "https-web", 8080, "https https"}, {"", "web-https", 8080, "https https"}, {"", "tls", 80, "https tls"},
		{"", "HTTP", 443, "http http"}, {"", "http-web", 443, "http http"}, {"", "ssh", 80, "tcp ssh"}, {"", "grpc", 443, "h2c grpc"}, {"", "grpc-web", 80, "http grpc-web"},
		{"", "tcp-db", 80, "tcp tcp"}, {"", "service", 443, "https"},
		{"https", "http", 80, "https https"}, {"HTTP", "https", 443, "http HTTP"}, {"kubernetes.io/h2c", "http", 80, "h2c kubernetes.io/h2c"},
		{"kubernetes.io/ws", "", 443, "http kubernetes.io/ws"}, {"kubernetes.io/wss", "", 80, "https kubernetes.io/wss"},
		{"postgresql", "http", 80, "tcp postgresql"}, {"example.com/own", "https", 80, "https example.com/own"}, {"example.com/own", "", 443, "https example.com/own"},
	} {
		t.Run(fmt.Sprint(c.app, "/", c.name, "/", c.number), func(t *testing.T) {
			scheme, app := schemeOf(port{name: c.name, app: c.app, number: c.number, protocol: "tcp"})
			want, wantApp, given := strings.Cut(c.want, " ")
			if scheme != want || given && app != strings.TrimPrefix(wantApp, "http:") {
				t.Errorf("%s %s, want %s", scheme, app, c.want)
			}
		})
	}
	if scheme, _ := schemeOf(port{name: "http3", number: 443, protocol: "udp"}); scheme != "udp" {
		t.Errorf("UDP became %s", scheme)
	}
}

func TestEntry(t *testing.T) {
	app := "https"
	r := newRig(Config{IncludeHeadless: true})
	named := tcp("web", 8000)
	named.TargetPort = intstr.FromString("http")
	numbered := tcp("admin", 8001)
	numbered.TargetPort, numbered.AppProtocol = intstr.FromInt32(9001), &app
	r.start(
		svc("shop/Front.End", func(s *corev1.Service) {
			s.Labels = map[string]string{"app.kubernetes.io/name": "front", "app": "x", "adit.dev/tier": "1", "hle.world/y": "2", "other": "no", "apple": strings.Repeat("x", 1000)}
		}, named, numbered, udp("dns", 53)),
		svc("shop/pods", func(s *corev1.Service) {
			s.Spec.ClusterIP = "None"
			s.Annotations = map[string]string{"adit.dev/label": "My Pods"}
		}, named, numbered),
		svc("shop/byhand", func(s *corev1.Service) { s.Spec.Selector = nil }, tcp("", 80)),
		eps("shop/Front.End", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"},
			corev1.EndpointPort{Name: "web", Port: 8080, Protocol: "TCP"}, corev1.EndpointPort{Name: "dns", Port: 5353, Protocol: "UDP"}), //nolint:staticcheck // see eps
		eps("shop/pods", nil, []string{"10.0.0.3"}, corev1.EndpointPort{Name: "web", Port: 8080, Protocol: "TCP"}), //nolint:staticcheck // see eps
	)
	for id, want := range map[string]string{
		"kubernetes/shop/Front.End/8000/tcp": "KIND_HTTP http://Front.End.shop.svc.cluster.local:8000 ready 2 front-end web",
		"kubernetes/shop/Front.End/8001/tcp": "KIND_HTTP https://Front.End.shop.svc.cluster.local:8001 not_ready 0 front-end admin https",
		"kubernetes/shop/Front.End/53/udp":   "KIND_UDP udp://Front.End.shop.svc.cluster.local:53 ready 2 front-end dns",
		// The name of a headless Service leads to Pods, whose port is their own.
		"kubernetes/shop/pods/8000/tcp": "KIND_HTTP http://pods.shop.svc.cluster.local:8080 not_ready 0 my-pods web",
		"kubernetes/shop/pods/8001/tcp": "KIND_HTTP https://pods.shop.svc.cluster.local:9001 not_ready 0 my-pods admin https",
		// No Endpoints object says nothing; it is not the same as none ready.
		"kubernetes/shop/byhand/80/tcp": "KIND_HTTP http://byhand.shop.svc.cluster.local:80 unknown 0 byhand",
	} {
		s := r.sink.services[id]
		got := strings.Join(strings.Fields(fmt.Sprint(s.GetKind(), " ", s.GetOrigin(), " ", s.GetReadiness(), " ", s.GetReadyEndpoints(), " ", s.GetSuggestedLabel(), " ", s.GetPortName(), " ", s.GetAppProtocol())), " ")
		want = strings.Join(strings.Fields(want), " ")
		if got != want && got != want+" http" {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if len(r.sink.services) != 6 {
		t.Errorf("%d services", len(r.sink.services))
	}
	s := r.sink.services["kubernetes/shop/Front.End/8000/tcp"]
	if got := slices.Sorted(maps.Keys(s.GetLabels())); !slices.Equal(got, []string{"adit.dev/tier", "app", "app.kubernetes.io/name", "hle.world/y"}) {
		t.Errorf("labels %q", got)
	}
	if s.GetProvider() != "kubernetes" || s.GetNamespace() != "shop" || s.GetName() != "Front.End" || s.GetPort() != 8000 || s.GetKind() != wirev1.Kind_KIND_HTTP {
		t.Errorf("%v", s)
	}
}

func TestChanges(t *testing.T) {
	web := corev1.EndpointPort{Name: "web", Port: 80, Protocol: "TCP"} //nolint:staticcheck // see eps
	r := newRig(Config{})
	down := errors.New("the API server does not answer")
	want := func(what, state string, ids ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(r.sink.services)); !slices.Equal(got, ids) || r.sink.state != state {
			t.Errorf("%s: %q %q, want %q %q", what, got, r.sink.state, ids, state)
		}
	}
	r.heard(kubeapi.Services)(down)
	want("no answer", "unavailable "+down.Error())
	r.heard(kubeapi.Services)(nil)
	_ = r.services.Replace([]any{svc("a/x", nil, tcp("web", 80)), svc("a/y", nil, tcp("web", 80))}, "1")
	want("only Services yet", "unavailable "+down.Error())
	_ = r.endpoints.Replace([]any{eps("a/x", []string{"10.0.0.1"}, nil, web)}, "1")
	want("both", "ok", "kubernetes/a/x/80/tcp", "kubernetes/a/y/80/tcp")
	puts := r.sink.puts
	_ = r.endpoints.Update(eps("a/y", []string{"10.0.0.1"}, nil, web))
	if s := r.sink.services["kubernetes/a/y/80/tcp"]; s.GetReadiness() != "ready" || r.sink.puts != puts+1 {
		t.Errorf("%v after %d more puts", s, r.sink.puts-puts)
	}
	_ = r.services.Update(svc("a/x", nil, tcp("web", 80), tcp("", 81)))
	want("one port more", "ok", "kubernetes/a/x/80/tcp", "kubernetes/a/x/81/tcp", "kubernetes/a/y/80/tcp")
	_ = r.services.Update(svc("a/x", func(s *corev1.Service) { s.Labels = map[string]string{"adit.dev/expose": "denied"} }, tcp("web", 80)))
	want("opted out", "ok", "kubernetes/a/y/80/tcp")
	_ = r.services.Delete(svc("a/y", nil))
	want("deleted", "ok")
	_ = r.services.Replace([]any{svc("a/z", nil, tcp("web", 80))}, "2")
	want("a new list", "ok", "kubernetes/a/z/80/tcp")
	r.heard(kubeapi.Endpoints)(down)
	want("lost: what was said stays", "unavailable "+down.Error(), "kubernetes/a/z/80/tcp")
	r.heard(kubeapi.Endpoints)(nil)
	want("back", "ok", "kubernetes/a/z/80/tcp")

	t.Run("Endpoints that may not be read leave Services of unknown readiness", func(t *testing.T) {
		r = newRig(Config{})
		_ = r.services.Replace([]any{svc("a/x", nil, tcp("web", 80))}, "1")
		r.heard(kubeapi.Endpoints)(errors.New("endpoints is forbidden"))
		want("forbidden", "unavailable endpoints is forbidden", "kubernetes/a/x/80/tcp")
		if s := r.sink.services["kubernetes/a/x/80/tcp"]; s.GetReadiness() != "unknown" {
			t.Errorf("%v", s)
		}
	})
}

func TestGuardKnowledge(t *testing.T) {
	at := netip.MustParseAddrPort
	with := func(ip string, selector bool, change func(*corev1.Service)) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{ip}
			if !selector {
				s.Spec.Selector = nil
			}
			if change != nil {
				change(s)
			}
		}
	}
	p := func(n int32) corev1.EndpointPort { return corev1.EndpointPort{Port: n, Protocol: "TCP"} } //nolint:staticcheck // see eps
	r := newRig(Config{})
	r.start(
		svc("default/kubernetes", with("10.96.0.1", false, nil), tcp("https", 443)), eps("default/kubernetes", []string{"192.168.1.1"}, nil, p(6443)),
		svc("ingress/nginx", with("10.96.0.2", true, nil), tcp("", 443)), eps("ingress/nginx", []string{"192.168.1.1", "192.168.1.2"}, []string{"192.168.1.3"}, p(443)),
		svc("sly/api", with("10.96.0.3", false, nil), tcp("", 443)), eps("sly/api", []string{"192.168.1.1"}, nil, p(6443)),
		svc("sly/same", with("10.96.0.4", true, nil), tcp("", 443)), eps("sly/same", []string{"192.168.1.1"}, nil, p(6443)),
		svc("kube-system/etcd", with("10.96.0.5", true, nil), tcp("", 2379)), eps("kube-system/etcd", []string{"192.168.1.1"}, nil, p(2379)),
	)
	for _, c := range []struct {
		at                 string
		api, host, selects bool
		behind             string
	}{
		{"10.96.0.1:443", true, false, false, "[]"},
		{"192.168.1.1:6443", true, true, false, "[]"},
		{"192.168.1.1:443", false, true, true, "[]"},
		{"192.168.1.2:443", false, false, true, "[]"},
		{"192.168.1.3:443", false, false, true, "[]"},
		{"192.168.1.2:10250", false, false, false, "[]"},
		{"192.168.1.1:2379", false, true, false, "[]"}, // system namespaces are not offered
		{"10.96.0.2:443", false, false, false, "[]"},
		{"10.96.0.3:443", false, false, false, "[192.168.1.1:6443]"},
		{"10.9.9.9:443", false, false, false, "[]"},
	} {
		a := at(c.at)
		if r.APIServer(a) != c.api || r.APIHost(a.Addr()) != c.host || r.Selected(a) != c.selects || fmt.Sprint(r.Behind(a)) != c.behind {
			t.Errorf("%s: API %v, host %v, selected %v, behind %v", a, r.APIServer(a), r.APIHost(a.Addr()), r.Selected(a), r.Behind(a))
		}
	}
	_ = r.services.Delete(svc("ingress/nginx", nil))
	if r.Selected(at("192.168.1.2:443")) {
		t.Error("a Service that is gone selects")
	}
}

func TestNoAccess(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted bool
		err    error
		want   string
	}{
		{"no cluster, nobody asked", false, fmt.Errorf("%w: this is no Pod", kubeapi.ErrNoAccess), "off this is no Pod"},
		{"no token, but asked for", true, fmt.Errorf("%w: the Pod has no token", kubeapi.ErrNoAccess), "unavailable no access to a Kubernetes API: the Pod has no token"},
		{"a broken CA", false, errors.New("the API server's CA: no PEM"), "unavailable the API server's CA: no PEM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, sink := New(Config{Wanted: c.wanted, Connect: func() (*kubeapi.Client, error) { return nil, c.err }}), newRecord()
			p.Run(t.Context(), sink)
			if sink.state != c.want {
				t.Errorf("state %q, want %q", sink.state, c.want)
			}
			if p.APIServer(netip.MustParseAddrPort("10.0.0.1:1")) || p.Selected(netip.MustParseAddrPort("10.0.0.1:1")) || p.Behind(netip.MustParseAddrPort("10.0.0.1:1")) != nil {
				t.Error("it knows something of the cluster")
			}
		})
	}
}
