package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adit-dev/adit/test/cluster"
	"github.com/adit-dev/adit/test/stack"
)

// addressGrant is what the addresses of the node need: get, nothing else, and nothing of discovery.
const addressGrant = `
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
metadata: {name: adit-nodes}
rules: [{apiGroups: [""], resources: ["nodes"], verbs: ["get"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: adit-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: adit-nodes}
subjects: [{kind: ServiceAccount, name: agent, namespace: adit}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: adit-direct, namespace: adit}
rules: [{apiGroups: [""], resources: ["services"], verbs: ["get"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: adit-direct, namespace: adit}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: adit-direct}
subjects: [{kind: ServiceAccount, name: agent, namespace: adit}]
---
apiVersion: v1
kind: Node
metadata: {name: node1}
---
apiVersion: v1
kind: Service
metadata: {name: home-direct, namespace: adit}
spec: {type: NodePort, selector: {app: home}, ports: [{name: direct, protocol: UDP, port: 51820, nodePort: 31820}, {name: web, port: 80}]}
`

const nodeStatus = `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.7.10"},{"type":"Hostname","address":"node1"},{"type":"ExternalIP","address":"203.0.113.10"}]}}`

// TestNodeAddresses: the addresses of the node are advertised with the Service's node ports.
func TestNodeAddresses(t *testing.T) {
	k := cluster.ControlPlane(t)
	k.Apply(addressGrant)
	k.Kubectl("patch", "node", "node1", "--subresource=status", "--type=merge", "-p", nodeStatus)
	pod := besidePod(t, k, "cluster.local")
	s := stack.StartServer(t, stack.ServerConfig{})
	inv := s.Invite("home", "--hostname", "app.localhost")
	advertised := func() []string {
		var v struct {
			Replicas []struct{ Advertised []string }
		}
		s.CLI("agents", "get", "home").JSON(t, &v)
		if len(v.Replicas) != 1 {
			return nil
		}
		return v.Replicas[0].Advertised
	}
	await := func(want ...string) {
		t.Helper()
		stack.Eventually(t, 90*time.Second, func() error {
			if got := advertised(); !slices.Equal(got, want) {
				return fmt.Errorf("advertised %q, want %q", got, want)
			}
			return nil
		})
	}
	// The names that Towonel's chart uses.
	env := append(pod.env, "NODE_NAME=node1", "POD_NAMESPACE=adit", "TOWONEL_AGENT_K8S_AUTODISCOVER=true", "TOWONEL_AGENT_K8S_SERVICE=home-direct",
		"TOWONEL_AGENT_EXTRA_LOCAL_ADDRS=198.51.100.7:51820,[2001:db8::7]:51820")
	agent := stack.StartAgent(t, inv.File, stack.AgentConfig{Wrap: pod.wrap, Env: env, Args: []string{"--discovery", "off"}})
	t.Run("TOW-21 addresses of the node with the UDP node port", func(t *testing.T) {
		await("203.0.113.10:31820", "192.168.7.10:31820", "198.51.100.7:51820", "[2001:db8::7]:51820")
	})
	t.Run("TOW-23 extra addresses are advertised too", func(t *testing.T) {
		if got := advertised(); !slices.Contains(got, "198.51.100.7:51820") || !slices.Contains(got, "[2001:db8::7]:51820") {
			t.Errorf("advertised %q", got)
		}
	})
	t.Run("a changed node port is advertised", func(t *testing.T) {
		k.Kubectl("-n", "adit", "patch", "service", "home-direct", "--type=json", "-p", `[{"op":"replace","path":"/spec/ports/0/nodePort","value":31821}]`)
		await("203.0.113.10:31821", "192.168.7.10:31821", "198.51.100.7:51820", "[2001:db8::7]:51820")
	})
	t.Run("K24 the agent asks for no more than it is granted", func(t *testing.T) {
		requests := k.Requests(account)
		if len(requests) == 0 {
			t.Error("the audit log knows of no request")
		}
		for _, r := range requests {
			node := r.Resource == "nodes" && r.Name == "node1"
			service := r.Resource == "services" && r.Namespace == "adit" && r.Name == "home-direct"
			if r.Verb != "get" || r.Code != 200 || r.Group != "" || !node && !service {
				t.Errorf("%+v", r)
			}
		}
	})
	t.Run("without the right it says so and goes on", func(t *testing.T) {
		k.Kubectl("delete", "clusterrolebinding", "adit-nodes")
		agent.WaitReadyz(90*time.Second, `node \"node1\"`, "forbidden", "203.0.113.10:31821")
		if code, body := agent.Readyz(); code != 200 || !strings.Contains(body, `"ready":true`) && !strings.Contains(body, `"ready": true`) {
			t.Errorf("/readyz: %d %s", code, body)
		}
	})
}
