package kubernetes

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// grant is what discovery is given: HLE's documentation shows these rules and no others.
const grant = `
apiVersion: v1
kind: Namespace
metadata: {name: adit}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: agent, namespace: adit}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: adit-discovery}
rules:
  - apiGroups: [""]
    resources: ["services", "endpoints"]
    verbs: ["get", "list", "watch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: adit-discovery}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: adit-discovery}
subjects: [{kind: ServiceAccount, name: agent, namespace: adit}]
`

// account is the user that the grant is for.
const account = "system:serviceaccount:adit:agent"

// beside is how an agent without a container sees what a Pod sees: the token of its ServiceAccount,
// the API's address, and a resolver for the cluster's domain.
type beside struct {
	wrap, env []string
	// server and ca are the API's.
	server string
	ca     []byte
}

func besidePod(t *testing.T, k *cluster.Control, domain string) beside {
	t.Helper()
	need.RootUser(t, "mount namespaces")
	need.Program(t, "unshare", "mount")
	b := beside{server: k.Kubectl("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}")}
	var err error
	if b.ca, err = base64.StdEncoding.DecodeString(k.Kubectl("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"token": strings.TrimSpace(k.Kubectl("-n", "adit", "create", "token", "agent")), "ca.crt": string(b.ca), "namespace": "adit",
		"resolv.conf": fmt.Sprintf("nameserver 127.0.0.1\nsearch adit.svc.%[1]s svc.%[1]s %[1]s\n", domain),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := `set -e; dir=$1; shift; to=/run/secrets/kubernetes.io/serviceaccount
mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p $to && cp $dir/token $dir/ca.crt $dir/namespace $to
mount --bind $dir/resolv.conf /etc/resolv.conf; exec "$@"`
	host, port, _ := strings.Cut(strings.TrimPrefix(b.server, "https://"), ":")
	b.wrap = []string{"unshare", "--mount", "sh", "-c", script, "sh", dir}
	b.env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	return b
}

// found is what `adit agents services` says.
type found struct {
	Providers []struct{ Provider, State, Detail string }
	Services  []struct {
		ID, Origin, Readiness string
		ReadyEndpoints        uint32 `json:"ready_endpoints"`
	}
}

func services(t *testing.T, s *stack.Server, agent string) (v found) {
	t.Helper()
	s.CLI("agents", "services", agent).JSON(t, &v)
	return v
}

// state is what the provider says of itself.
func (f found) state() string {
	for _, p := range f.Providers {
		if p.Provider == "kubernetes" {
			return strings.TrimSpace(p.State + " " + p.Detail)
		}
	}
	return "nothing"
}

// of is origin and readiness of a service; empty = it is not listed.
func (f found) of(id string) string {
	for _, s := range f.Services {
		if s.ID == "kubernetes/"+id {
			return fmt.Sprintf("%s %s %d", s.Origin, s.Readiness, s.ReadyEndpoints)
		}
	}
	return ""
}

func (f found) ids() (out []string) {
	for _, s := range f.Services {
		out = append(out, s.ID)
	}
	return out
}

// awaitState waits until the provider's state begins so.
func awaitState(t *testing.T, s *stack.Server, agent, want string) (v found) {
	t.Helper()
	stack.Eventually(t, 60*time.Second, func() error {
		if v = services(t, s, agent); !strings.HasPrefix(v.state(), want) {
			return fmt.Errorf("state %q", v.state())
		}
		return nil
	})
	return v
}

// awaitService waits for what is said of one service, and returns how long that took.
func awaitService(t *testing.T, s *stack.Server, agent, id, want string) time.Duration {
	t.Helper()
	start := time.Now()
	stack.Eventually(t, 60*time.Second, func() error {
		if got := services(t, s, agent).of(id); got != want {
			return fmt.Errorf("%s: %q, want %q", id, got, want)
		}
		return nil
	})
	return time.Since(start)
}

const manifests = `
apiVersion: v1
kind: Namespace
metadata: {name: monitoring}
---
apiVersion: v1
kind: Namespace
metadata: {name: private}
---
apiVersion: v1
kind: Service
metadata: {name: grafana, namespace: monitoring, labels: {app.kubernetes.io/name: grafana}}
spec: {selector: {app: grafana}, ports: [{name: service, port: 3000}, {name: metrics, port: 9100}, {name: telemetry, port: 9101}, {name: health, port: 9102}, {name: probe, port: 9103}]}
---
apiVersion: v1
kind: Service
metadata: {name: turn, namespace: monitoring}
spec: {selector: {app: turn}, ports: [{name: turn, port: 3478, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: kube-system}
spec: {selector: {app: dns}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: info, namespace: kube-public}
spec: {selector: {app: info}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: lease, namespace: kube-node-lease}
spec: {selector: {app: lease}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: private}
spec: {selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: pods, namespace: monitoring}
spec: {clusterIP: None, selector: {app: pods}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: monitoring}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: v1
kind: Service
metadata: {name: shy, namespace: monitoring, labels: {adit.dev/expose: denied}}
spec: {selector: {app: shy}, ports: [{port: 80}]}
`

const grafanaEndpoints = `
apiVersion: v1
kind: Endpoints
metadata: {name: grafana, namespace: monitoring}
subsets: [{addresses: [{ip: 10.244.0.5}, {ip: 10.244.0.6}], notReadyAddresses: [{ip: 10.244.0.7}], ports: [{name: service, port: 3000}]}]
`

// TestDiscovery: the Services of a cluster are listed at the hub, and what changes is.
func TestDiscovery(t *testing.T) {
	k := cluster.ControlPlane(t)
	k.Apply(grant)
	k.Apply(manifests)
	pod := besidePod(t, k, "cluster.local")
	s := stack.StartServer(t, stack.ServerConfig{})
	t.Run("with discovery off the API is left alone", func(t *testing.T) {
		inv := s.Invite("off", "--hostname", "off.localhost")
		stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: pod.env, Args: []string{"--discovery", "off"}})
		stack.Always(t, 2*time.Second, func() error {
			if r := k.Requests(account); len(r) > 0 {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
		if v := services(t, s, "off"); v.state() != "nothing" {
			t.Errorf("state %q", v.state())
		}
	})
	o := newOutage(t, k, s, pod)
	agent := o.start("home", "HLE_DISCOVERY_EXCLUDE_NAMESPACES=private")
	v := awaitState(t, s, "home", "ok")
	t.Run("HLE-S9 the grant is enough", func(t *testing.T) {
		if len(v.Services) == 0 {
			t.Error("nothing is listed")
		}
		for _, r := range k.Requests(account) {
			// Servers that cannot send a list as a watch refuse that as invalid, not as forbidden.
			if r.Code >= 400 && r.Code != 422 {
				t.Errorf("%+v", r)
			}
		}
	})
	t.Run("HLE-S12 the address that the agent would use", func(t *testing.T) {
		if got, want := v.of("monitoring/grafana/3000/tcp"), "http://grafana.monitoring.svc.cluster.local:3000 unknown 0"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("HLE-S14 what is left out", func(t *testing.T) {
		want := []string{"kubernetes/monitoring/grafana/3000/tcp", "kubernetes/monitoring/turn/3478/udp"}
		if got := v.ids(); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("changes arrive", func(t *testing.T) {
		k.Apply(grafanaEndpoints)
		took := awaitService(t, s, "home", "monitoring/grafana/3000/tcp", "http://grafana.monitoring.svc.cluster.local:3000 ready 2")
		k.Apply("{apiVersion: v1, kind: Service, metadata: {name: wiki, namespace: monitoring}, spec: {selector: {app: wiki}, ports: [{name: https, port: 8080}]}}")
		t.Logf("readiness after %s, a new Service after %s", took, awaitService(t, s, "home", "monitoring/wiki/8080/tcp", "https://wiki.monitoring.svc.cluster.local:8080 unknown 0"))
		k.Kubectl("-n", "monitoring", "annotate", "service", "wiki", "hle.world/expose=denied")
		awaitService(t, s, "home", "monitoring/wiki/8080/tcp", "")
		k.Kubectl("-n", "monitoring", "delete", "endpoints", "grafana")
		awaitService(t, s, "home", "monitoring/grafana/3000/tcp", "http://grafana.monitoring.svc.cluster.local:3000 unknown 0")
	})
	t.Run("the API server's warning is logged once", func(t *testing.T) {
		if n := strings.Count(agent.Log(), "Endpoints is deprecated"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
	t.Run("K31 cluster domain corp.local", func(t *testing.T) {
		corp := besidePod(t, k, "corp.local")
		inv := s.Invite("corp", "--hostname", "corp.localhost")
		stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: corp.wrap, Env: corp.env, Args: []string{"--discovery-include-headless", "--discovery-include-system", "--discovery-exclude-ports", "9100-9102"}})
		v := awaitState(t, s, "corp", "ok")
		for id, want := range map[string]string{
			"monitoring/grafana/3000/tcp": "http://grafana.monitoring.svc.corp.local:3000 unknown 0",
			"monitoring/grafana/9103/tcp": "http://grafana.monitoring.svc.corp.local:9103 unknown 0",
			"monitoring/grafana/9101/tcp": "",
			"monitoring/pods/80/tcp":      "http://pods.monitoring.svc.corp.local:80 unknown 0",
			"kube-system/dns/80/tcp":      "http://dns.kube-system.svc.corp.local:80 unknown 0",
		} {
			if got := v.of(id); got != want {
				t.Errorf("%s: %q, want %q", id, got, want)
			}
		}
	})
	t.Run("K29 API server away", func(t *testing.T) { o.run(t, agent) })
	t.Run("K24 the agent asks for no more than it is granted, and for all of it", func(t *testing.T) {
		asked := map[string]bool{}
		for _, r := range k.Requests(account) {
			asked[r.Resource+" "+r.Verb] = true
		}
		for _, resource := range []string{"services", "endpoints"} {
			// A list comes as a watch where the API server can send it so.
			if !asked[resource+" watch"] {
				t.Errorf("%s: asked %v", resource, asked)
			}
		}
	})
	t.Run("HLE-S10 the agent writes nothing", func(t *testing.T) {
		requests := k.Requests(account)
		if len(requests) == 0 {
			t.Error("the audit log knows of no request")
		}
		for _, r := range requests {
			if !slices.Contains([]string{"get", "list", "watch"}, r.Verb) || r.Group != "" || !slices.Contains([]string{"services", "endpoints"}, r.Resource) {
				t.Errorf("%+v", r)
			}
		}
	})
	t.Run("without the grant the state says so", func(t *testing.T) {
		k.Kubectl("delete", "clusterrolebinding", "adit-discovery")
		inv := s.Invite("other", "--hostname", "other.localhost")
		stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: pod.env})
		awaitState(t, s, "other", "unavailable services is forbidden")
	})
}

// many makes n Services with an Endpoints object each.
func many(t *testing.T, k *cluster.Control, pod beside, n int) {
	t.Helper()
	k.Kubectl("create", "clusterrolebinding", "maker", "--clusterrole=cluster-admin", "--serviceaccount=adit:maker")
	k.Kubectl("-n", "adit", "create", "serviceaccount", "maker")
	k.Kubectl("create", "namespace", "many")
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	c, err := rest.RESTClientFor(&rest.Config{
		Host: pod.server, APIPath: "/api", QPS: -1, BearerToken: strings.TrimSpace(k.Kubectl("-n", "adit", "create", "token", "maker")),
		TLSClientConfig: rest.TLSClientConfig{CAData: pod.ca}, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion()},
	})
	if err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(8)
	for i := range n {
		name := fmt.Sprintf("service-%04d", i)
		labels := map[string]string{"app": name, "app.kubernetes.io/name": name, "app.kubernetes.io/instance": "many", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "many-1.2.3"}
		meta := metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"description": strings.Repeat("text ", 60)}}
		s := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
		//nolint:staticcheck // the documented grant has Endpoints, not their slices
		e := &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: fmt.Sprintf("10.244.%d.%d", i/200, i%200+1)}, {IP: fmt.Sprintf("10.245.%d.%d", i/200, i%200+1)}},
			Ports:     []corev1.EndpointPort{{Name: "http", Port: 8080}},
		}}}
		group.Go(func() error { return c.Post().Namespace("many").Resource("services").Body(s).Do(ctx).Error() })
		group.Go(func() error { return c.Post().Namespace("many").Resource("endpoints").Body(e).Do(ctx).Error() })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestManyServices: a thousand Services are told at once and cost little memory.
func TestManyServices(t *testing.T) {
	k := cluster.ControlPlane(t)
	k.Apply(grant)
	pod := besidePod(t, k, "cluster.local")
	many(t, k, pod, 1000)
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	agent := stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: pod.env})
	start := time.Now()
	v := awaitState(t, s, "home", "ok")
	took := time.Since(start)
	if got := len(v.Services); got != 1000 {
		t.Errorf("%d services", got)
	}
	if got, want := v.of("many/service-0999/80/tcp"), "http://service-0999.many.svc.cluster.local:80 ready 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	anon := anonymous(t, agent)
	t.Logf("told within %s of the agent being ready; %.1f MiB anonymous memory", took, float64(anon)/(1<<20))
	if anon > 40<<20 {
		t.Errorf("the agent has %d MiB of anonymous memory, more than 40", anon>>20)
	}
}

// anonymous is the RssAnon of an agent in bytes.
func anonymous(t *testing.T, a *stack.Agent) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var kib int64
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no RssAnon")
	return 0
}
