package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/charts"
	"github.com/adit-dev/adit/test/cluster"
)

// ours are values that have a chart take the image of this checkout.
const ours = "image.registry=docker.io,image.repository=test/adit,image.tag=test,image.pullPolicy=Never"

// installed is a server of chart/adit-server, with what a test does to it.
type installed struct {
	t *testing.T
	k *cluster.Test
	// https is the port of the node that leads to the server's 443.
	https string
	ca    string
}

const (
	serverNamespace = "adit-server"
	// hubHost is reached by Pods at the Service, and by visitors at the node's port.
	hubHost = "adit-server." + serverNamespace + ".svc.cluster.local"
)

// installServer installs a server with the domain example.test and the raw ports 2222 and 3478.
func installServer(t *testing.T, k *cluster.Test) *installed {
	t.Helper()
	program, err := cluster.Program("cmd/adit")
	if err != nil {
		t.Fatal(err)
	}
	load(t, k, cluster.Image{Name: "adit", Files: map[string]string{"/adit": program}, Entrypoint: []string{"/adit"}})
	web(t, k)
	// The volume of the host that the claim binds to; a user that is not root writes there. It goes after
	// the namespace.
	data := t.TempDir()
	if err := os.Chmod(data, 0o777); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	namespace(t, k, serverNamespace, restricted)
	k.Apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: adit-data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: %s, name: data-adit-server-0}
  hostPath: {path: %s}
`, serverNamespace, data))
	t.Cleanup(func() { k.Kubectl("delete", "persistentvolume", "adit-data", "--wait=false") })
	k.Helm("install", "adit-server", charts.Dir("adit-server"), "--namespace", serverNamespace, "--wait", "--timeout=120s", "--set", ours,
		"--set", "domain=example.test,hubHost="+hubHost+",tcpPorts={2222},udpPorts={3478},service.type=NodePort,persistence.storageClass=-,networkPolicy.enabled=true,terminationGracePeriodSeconds=15")
	i := &installed{t: t, k: k, ca: filepath.Join(data, "ca.crt")}
	i.https = k.Kubectl("-n", serverNamespace, "get", "service", "adit-server", "-o", `jsonpath={.spec.ports[?(@.name=="https")].nodePort}`)
	return i
}

// adit runs a command in the server's Pod.
func (i *installed) adit(args ...string) string {
	i.t.Helper()
	return strings.TrimSpace(i.k.Kubectl(append([]string{"-n", serverNamespace, "exec", "adit-server-0", "--", "/adit"}, args...)...))
}

// get asks for a tunnel's host from outside of the cluster.
func (i *installed) get(host string) (string, error) {
	return outside(i.k, "curl", "-sS", "-m", "10", "--cacert", i.ca, "--resolve", host+":"+i.https+":"+cluster.NodeAddr, "https://"+host+":"+i.https+"/")
}

// answers waits until a tunnel's host answers from outside with what its Pod says.
func (i *installed) answers(host, want string) {
	i.t.Helper()
	i.k.Eventually(60*time.Second, func() error {
		if got, err := i.get(host); err != nil || got != want {
			return fmt.Errorf("https://%s answers %q, %v", host, got, err)
		}
		return nil
	})
}

// TestInstall installs server and agent as the documents say, and has a Pod answer to outside.
func TestInstall(t *testing.T) {
	k := cluster.Shared(t)
	s := installServer(t, k)
	namespace(t, k, "monitoring", restricted)
	k.Apply(service("monitoring", "grafana", 3000, ""))
	namespace(t, k, "hle", restricted)
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(s.adit("agents", "create", "home", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	seed := []string{"hle", charts.Dir("adit"), "--namespace", "hle", "--create-namespace", "--set", "operator.enabled=false", "--set", "agent.enabled=true"}
	install := func(verb string, more ...string) {
		t.Helper()
		k.Helm(append(append([]string{verb}, seed...), append([]string{"--set", ours, "--wait", "--timeout=90s", "--set", "agent.terminationGracePeriodSeconds=15"}, more...)...)...)
	}
	pod := func() string {
		return k.Kubectl("-n", "hle", "get", "pods", "--field-selector=status.phase=Running", "-o", "json")
	}
	t.Run("HLE-S5 helm install with a token, as the document says", func(t *testing.T) {
		install("install", "--set", "agent.token.value="+made.Token)
		if out := k.Kubectl("-n", "hle", "get", "service,ingress", "-o", "name"); out != "" {
			t.Errorf("HLE-S8: there is %s", out)
		}
		if strings.Contains(pod(), `"hostPort"`) || strings.Contains(pod(), `"containerPort"`) {
			t.Error("HLE-S8: the Pod has a port")
		}
	})
	t.Run("HLE-S12 the Service is discovered with the address the agent would use", func(t *testing.T) {
		k.Eventually(30*time.Second, func() error {
			if out := s.adit("agents", "services", "home"); !strings.Contains(out, "http://grafana.monitoring.svc.cluster.local:3000") {
				return fmt.Errorf("discovered: %s", out)
			}
			return nil
		})
	})
	t.Run("HLE-S13 exposed, the Pod answers to outside", func(t *testing.T) {
		s.adit("tunnel", "create", "grafana", "http://grafana.monitoring.svc.cluster.local:3000", "--agent", "home", "--access", "public")
		s.answers("grafana.example.test", "grafana")
	})
	t.Run("a raw port of the chart's Service reaches the Pod", func(t *testing.T) {
		s.adit("tunnel", "create", "raw", "tcp://grafana.monitoring.svc.cluster.local:3000", "--agent", "home", "--port", "2222", "--access", "public")
		port := k.Kubectl("-n", serverNamespace, "get", "service", "adit-server", "-o", `jsonpath={.spec.ports[?(@.name=="tcp-2222")].nodePort}`)
		k.Eventually(60*time.Second, func() error {
			if got, err := outside(k, "curl", "-sS", "-m", "10", "http://"+cluster.NodeAddr+":"+port+"/"); err != nil || got != "grafana" {
				return fmt.Errorf("%q, %v", got, err)
			}
			return nil
		})
	})
	t.Run("HLE-S6 the token was shown once", func(t *testing.T) {
		for _, args := range [][]string{{"agents", "get", "home", "-o", "json"}, {"agents", "list", "-o", "json"}, {"audit", "-o", "json"}} {
			if out := s.adit(args...); strings.Contains(out, made.Token) {
				t.Errorf("%v shows it again", args)
			}
		}
	})
	t.Run("HLE-S3 a tunnel is changed at the server, and no Pod restarts", func(t *testing.T) {
		before := k.Kubectl("-n", "hle", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[0].restartCount}")
		k.Apply(service("monitoring", "loki", 3100, ""))
		k.Kubectl("-n", "monitoring", "wait", "deployment/loki", "--for=condition=Available", "--timeout=60s")
		s.adit("tunnel", "set", "grafana", "--origin", "http://loki.monitoring.svc.cluster.local:3100")
		s.answers("grafana.example.test", "loki")
		s.adit("tunnel", "set", "grafana", "--origin", "http://grafana.monitoring.svc.cluster.local:3000")
		s.answers("grafana.example.test", "grafana")
		if after := k.Kubectl("-n", "hle", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[0].restartCount}"); after != before {
			t.Errorf("Pods were %s, are %s", before, after)
		}
	})
	t.Run("an edge on every node joins and serves at the node's own port", func(t *testing.T) {
		namespace(t, k, "edges", "pod-security.kubernetes.io/enforce: privileged")
		var edge struct{ Token string }
		if err := json.Unmarshal([]byte(s.adit("edge", "invite", "-o", "json")), &edge); err != nil {
			t.Fatal(err)
		}
		k.Kubectl("-n", "edges", "create", "secret", "generic", "adit-edge", "--from-literal=edge-token="+edge.Token)
		k.Helm("install", "edges", charts.Dir("adit-server"), "--namespace", "edges", "--wait", "--timeout=90s", "--set", ours,
			"--set", "roles={edge},join.existingSecret=adit-edge,edge.kind=DaemonSet,metrics.port=9190,terminationGracePeriodSeconds=15,persistence.hostPath="+t.TempDir())
		k.Eventually(60*time.Second, func() error {
			got, err := outside(k, "curl", "-sS", "-m", "10", "--cacert", s.ca, "--resolve", "grafana.example.test:443:"+cluster.NodeAddr, "https://grafana.example.test/")
			if err != nil || got != "grafana" {
				return fmt.Errorf("%q, %v; edges: %s", got, err, s.adit("edge", "list"))
			}
			return nil
		})
		k.Helm("uninstall", "edges", "--namespace", "edges", "--wait")
	})
	t.Run("a server that is replaced is the same server", func(t *testing.T) {
		k.Kubectl("-n", serverNamespace, "delete", "pod", "adit-server-0")
		k.Kubectl("-n", serverNamespace, "rollout", "status", "statefulset/adit-server", "--timeout=90s")
		s.answers("grafana.example.test", "grafana")
	})
	t.Run("HLE-S7 the same with a Secret that exists", func(t *testing.T) {
		k.Helm("uninstall", "hle", "--namespace", "hle", "--wait")
		k.Kubectl("-n", "hle", "create", "secret", "generic", "hle-agent", "--from-literal=agent-token="+made.Token)
		install("install", "--set", "agent.token.existingSecret=hle-agent")
		if out := k.Helm("get", "values", "hle", "--namespace", "hle") + k.Helm("get", "manifest", "hle", "--namespace", "hle"); strings.Contains(out, made.Token) {
			t.Error("the token is in the release")
		}
		s.answers("grafana.example.test", "grafana")
	})
	t.Run("HLE-S9 the account may do what the document says and no more", func(t *testing.T) {
		config := k.ConfigOf("hle", "hle-adit-agent")
		list := k.Kubectl("--kubeconfig", config, "auth", "can-i", "--list")
		for line := range strings.Lines(list) {
			f := strings.Fields(line)
			if len(f) > 0 && (f[0] == "services" || f[0] == "endpoints") && !strings.Contains(line, "[get list watch]") {
				t.Error(line)
			}
		}
		for _, ask := range []string{"list services", "watch endpoints"} {
			if out, err := k.TryAs(config, append([]string{"auth", "can-i", "-A"}, strings.Fields(ask)...)...); err != nil {
				t.Errorf("%s: %s %v", ask, out, err)
			}
		}
		for _, ask := range []string{"list secrets", "list pods", "create services", "delete endpoints", "get nodes", "patch services"} {
			if out, err := k.TryAs(config, append([]string{"auth", "can-i", "-A"}, strings.Fields(ask)...)...); err == nil {
				t.Errorf("%s: %s", ask, out)
			}
		}
	})
	t.Run("HLE-S10 the agent has written nothing", func(t *testing.T) {
		requests := k.Requests("system:serviceaccount:hle:hle-adit-agent")
		for _, r := range requests {
			if !slices.Contains([]string{"get", "list", "watch"}, r.Verb) && r.Resource != "selfsubjectaccessreviews" && r.Resource != "selfsubjectrulesreviews" {
				t.Errorf("%+v", r)
			}
		}
		if !slices.ContainsFunc(requests, func(r cluster.Request) bool { return r.Verb == "watch" && r.Resource == "services" }) {
			t.Error("the audit log knows nothing of the agent")
		}
	})
	t.Run("HLE-S16 agent.env points the agent at the server", func(t *testing.T) {
		install("upgrade", "--set", "agent.token.existingSecret=hle-agent", "--set", "agent.env[0].name=HLE_SERVER_URL,agent.env[0].value=https://"+hubHost)
		s.answers("grafana.example.test", "grafana")
	})
	t.Run("HLE-S11 without discovery: no role, no token, and a typed address works", func(t *testing.T) {
		install("upgrade", "--set", "agent.token.existingSecret=hle-agent", "--set", "agent.discovery.enabled=false")
		if out, err := k.Try("get", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/instance=hle", "-o", "name"); err != nil || out != "" {
			t.Errorf("%s %v", out, err)
		}
		if strings.Contains(pod(), "kube-api-access") || strings.Contains(pod(), "serviceAccountToken") {
			t.Error("a token is mounted")
		}
		s.adit("tunnel", "create", "typed", "http://grafana.monitoring:3000", "--agent", "home", "--access", "public")
		s.answers("typed.example.test", "grafana")
	})
	t.Run("HLE-S18 one Pod, replaced by Recreate", func(t *testing.T) {
		if out := k.Kubectl("-n", "hle", "get", "deployment", "hle-adit-agent", "-o", "jsonpath={.spec.replicas} {.spec.strategy.type}"); out != "1 Recreate" {
			t.Error(out)
		}
	})
	t.Run("HLE-S19 a second Pod with the same token stands by and takes over", func(t *testing.T) {
		holder := func() (replica, state string) {
			var v struct {
				State    string
				Holder   string `json:"holder_replica"`
				Replicas []struct{ State string }
			}
			if err := json.Unmarshal([]byte(s.adit("agents", "get", "home", "-o", "json")), &v); err != nil {
				t.Fatal(err)
			}
			var states []string
			for _, r := range v.Replicas {
				states = append(states, r.State)
			}
			slices.Sort(states)
			return v.Holder, strings.Join(states, " ")
		}
		first, _ := holder()
		// A standby is not ready, so nobody waits for it.
		k.Helm("install", "second", charts.Dir("adit"), "--namespace", "hle", "--set", ours,
			"--set", "operator.enabled=false,agent.enabled=true,agent.token.existingSecret=hle-agent,agent.terminationGracePeriodSeconds=15,agent.discovery.enabled=false")
		k.Eventually(60*time.Second, func() error {
			if _, states := holder(); !strings.Contains(states, "standby") {
				return fmt.Errorf("states %s", states)
			}
			return nil
		})
		for range 10 {
			if now, states := holder(); now != first {
				t.Fatalf("the enrolment went from %s to %s: %s", first, now, states)
			}
			time.Sleep(time.Second)
		}
		k.Kubectl("-n", "hle", "scale", "deployment/hle-adit-agent", "--replicas=0")
		k.Eventually(60*time.Second, func() error {
			if now, states := holder(); now == first || now == "" {
				return fmt.Errorf("nobody has taken over: %s", states)
			}
			return nil
		})
		s.answers("typed.example.test", "grafana")
		k.Helm("uninstall", "second", "--namespace", "hle", "--wait")
	})
	t.Run("HLE-S17 uninstalling leaves nothing", func(t *testing.T) {
		k.Helm("uninstall", "hle", "--namespace", "hle", "--wait")
		// Helm does not wait for Pods that end.
		k.Eventually(60*time.Second, func() error {
			if out := k.Kubectl("-n", "hle", "get", "all,serviceaccount,role,rolebinding", "-l", "app.kubernetes.io/instance=hle", "-o", "name"); out != "" {
				return fmt.Errorf("left: %s", out)
			}
			return nil
		})
	})
}
