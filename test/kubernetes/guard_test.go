package kubernetes

import (
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/stack"
)

// disguises are Services whose endpoints, written by hand or picked, are where nobody should go.
const disguises = `
apiVersion: v1
kind: Endpoints
metadata: {name: kubernetes, namespace: default}
subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{name: https, port: 6443}]}]
---
apiVersion: v1
kind: Service
metadata: {name: sly, namespace: default}
spec: {clusterIP: 10.96.77.1, ports: [{port: 443, targetPort: 6443}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: sly, namespace: default}
subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 6443}]}]
---
apiVersion: v1
kind: Service
metadata: {name: kubelet, namespace: default}
spec: {clusterIP: 10.96.77.2, ports: [{port: 10250}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: kubelet, namespace: default}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 10250}]}]
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: default}
spec: {clusterIP: 10.96.77.3, selector: {app: ingress}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: ingress, namespace: default}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]
`

// TestTargetGuard: what discovery knows of the cluster keeps origins away from its API and nodes.
func TestTargetGuard(t *testing.T) {
	k := cluster.ControlPlane(t)
	k.Apply(grant)
	k.Apply(disguises)
	pod := besidePod(t, k, "cluster.local")
	s := stack.StartServer(t, stack.ServerConfig{})
	check := func(agent, origin string) string {
		var v struct {
			Findings []struct{ Text, Evidence string }
		}
		r := s.CLI("preflight", "--agent", agent, origin)
		r.Code = 0
		r.JSON(t, &v)
		if len(v.Findings) == 0 {
			return "nothing"
		}
		return v.Findings[0].Text + " " + v.Findings[0].Evidence
	}
	start := func(agent string, args ...string) {
		inv := s.Invite(agent, "--hostname", agent+".localhost")
		// What the guard permits ends at this pattern instead of at a dial.
		stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: append(pod.env, "HOST_IPS=192.0.2.7"), Args: append(args, "--deny-target", "192.0.2.0/24,10.0.0.0/8")})
	}
	start("home")
	awaitState(t, s, "home", "ok")
	start("blind", "--discovery", "off")
	const permitted = "--deny-target"
	for _, c := range []struct{ name, origin, knowing, blind string }{
		{"the API server behind its Service", "https://192.0.2.1:6443", "is the Kubernetes API server", permitted},
		{"the node it runs on", "https://192.0.2.1:10250", "a node that the Kubernetes API server runs on", permitted},
		{"a Service written for the API server", "https://10.96.77.1:443", "leads to 192.0.2.1, which is the Kubernetes API server", permitted},
		{"a Service written for a kubelet", "https://10.96.77.2:10250", "leads to 192.0.2.7, which is the node the agent runs on", permitted},
		{"the agent's node", "https://192.0.2.7:10250", "the node the agent runs on", "the node the agent runs on"},
		{"a Pod of a Service in its host network", "http://192.0.2.7:80", permitted, "the node the agent runs on"},
		{"an ordinary Service", "http://10.96.77.3:80", permitted, permitted},
		{"the address the Pod was told", "https://127.0.0.1:443", "is loopback", "is loopback"},
		{"the API server by name", "https://kubernetes.default.svc:443", "the Kubernetes API server", "the Kubernetes API server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := check("home", c.origin); !strings.Contains(got, c.knowing) {
				t.Errorf("with discovery: %s; want %q", got, c.knowing)
			}
			if got := check("blind", c.origin); !strings.Contains(got, c.blind) {
				t.Errorf("without: %s; want %q", got, c.blind)
			}
		})
	}
}
