package kubernetes

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/cluster"
)

// web is an image whose program answers at :8080 with its argument.
func web(t *testing.T, k *cluster.Test) {
	t.Helper()
	program, err := cluster.Program("test/e2e/testdata/web")
	if err != nil {
		t.Fatal(err)
	}
	load(t, k, cluster.Image{Name: "web", Files: map[string]string{"/web": program}, Entrypoint: []string{"/web"}})
}

func load(t *testing.T, k *cluster.Test, i cluster.Image) {
	t.Helper()
	archive, err := i.Build()
	if err == nil {
		err = k.LoadImage(archive)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// namespace makes one that ends with the test; labels are "key: value".
func namespace(t *testing.T, k *cluster.Test, name string, labels ...string) {
	t.Helper()
	k.Apply(fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {%s}}\n", name, strings.Join(labels, ", ")))
	t.Cleanup(func() { k.Kubectl("delete", "namespace", name, "--wait=true", "--timeout=60s") })
}

// restricted is the label of a namespace whose Pods must ask for nothing special.
const restricted = `pod-security.kubernetes.io/enforce: restricted`

// service is a Deployment of web with a Service.
func service(namespace, name string, port int, serviceFields string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: web
        image: docker.io/test/web:test
        imagePullPolicy: Never
        args: [%[2]s]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {selector: {app: %[2]s}, ports: [{name: http, port: %[3]d, targetPort: 8080}], %[4]s}
`, namespace, name, port, serviceFields)
}

// outside runs a program outside of the cluster.
func outside(k *cluster.Test, args ...string) (string, error) {
	line := append(k.Outside(), args...)
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestCluster is about the cluster itself: what the other tests stand on.
func TestCluster(t *testing.T) {
	k := cluster.Shared(t)
	web(t, k)
	namespace(t, k, "demo", restricted)
	k.Apply(service("demo", "hello", 80, "type: NodePort"))
	k.Kubectl("-n", "demo", "wait", "deployment/hello", "--for=condition=Available", "--timeout=60s")
	nodePort := k.Kubectl("-n", "demo", "get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	k.Eventually(30*time.Second, func() error {
		if out, err := outside(k, "curl", "-sS", "-m", "5", "http://"+cluster.NodeAddr+":"+nodePort+"/"); err != nil || out != "hello" {
			return fmt.Errorf("NodePort from outside: %q %v", out, err)
		}
		return nil
	})
	t.Run("Pods cannot be reached from outside", func(t *testing.T) {
		pod := k.Kubectl("-n", "demo", "get", "pod", "-o", "jsonpath={.items[0].status.podIP}")
		if out, err := outside(k, "curl", "-sS", "-m", "2", "http://"+pod+":8080/"); err == nil {
			t.Errorf("it answers %q", out)
		}
	})
	t.Run("names of Services resolve in a Pod", func(t *testing.T) {
		load(t, k, cluster.Image{Name: "tools", Files: map[string]string{"/bin/getent": "/usr/bin/getent", "/lib/x86_64-linux-gnu/libnss_dns.so.2": "/lib/x86_64-linux-gnu/libnss_dns.so.2", "/etc/nsswitch.conf": nsswitch(t)}})
		k.Eventually(60*time.Second, func() error {
			out, err := k.Try("-n", "demo", "run", "ask", "--rm", "-i", "--restart=Never", "--image=docker.io/test/tools:test", "--image-pull-policy=Never",
				`--overrides={"spec":{"securityContext":{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"ask","image":"docker.io/test/tools:test","imagePullPolicy":"Never","command":["/bin/getent","hosts","hello.demo.svc.cluster.local"],"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`)
			if err != nil || !strings.Contains(out, "hello.demo.svc.cluster.local") {
				return fmt.Errorf("%q %w", out, err)
			}
			return nil
		})
	})
	t.Run("a Pod that asks for more than restricted is refused", func(t *testing.T) {
		out, err := k.Try("-n", "demo", "run", "root", "--image=docker.io/test/web:test")
		if err == nil || !strings.Contains(err.Error(), "PodSecurity") {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("the audit log tells who asked for what", func(t *testing.T) {
		k.Kubectl("-n", "demo", "create", "serviceaccount", "somebody")
		config := k.ConfigOf("demo", "somebody")
		if _, err := k.TryAs(config, "-n", "demo", "get", "pods"); err == nil {
			t.Error("an account without a role may list Pods")
		}
		got := k.Requests("system:serviceaccount:demo:somebody")
		found := false
		for _, r := range got {
			found = found || r.Verb == "list" && r.Resource == "pods" && r.Namespace == "demo" && r.Code == 403
		}
		if !found {
			t.Errorf("the audit log has %v", got)
		}
	})
}
