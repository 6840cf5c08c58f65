package charts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/adit-dev/adit/internal/config"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDeclaringAgent is about chart/adit-agent.
func TestDeclaringAgent(t *testing.T) {
	seed, direct := testdata(t, "declared.yaml"), testdata(t, "declared.yaml")+testdata(t, "direct.yaml")
	const least = "agent:\n  inviteTokenSecret: {name: token}\n"
	t.Run("TOW-1 a Deployment, a ServiceAccount and a metrics Service", func(t *testing.T) {
		same(t, "objects", must(t, "adit-agent", least+"podDisruptionBudget: {enabled: false}\n").names(),
			"Deployment r-adit-agent", "Service r-adit-agent", "ServiceAccount r-adit-agent")
	})
	t.Run("TOW-2 lists become JSON in the environment, and the agent takes them", func(t *testing.T) {
		e := env(deployment(t, must(t, "adit-agent", seed)).Spec.Template.Spec.Containers[0])
		for name, want := range map[string]string{
			"ADIT_AGENT_SERVICES":     `[{"hostname":"*.example.dev","origin":"envoy.network.svc:443"}]`,
			"ADIT_AGENT_TCP_SERVICES": `[{"listen_port":2222,"name":"ssh","origin":"forgejo-ssh.network.svc:2222"}]`,
			"ADIT_AGENT_UDP_SERVICES": `[{"listen_port":3478,"name":"turn","origin":"coturn.network.svc:3478"}]`,
		} {
			if e[name] != want {
				t.Errorf("%s is %s, want %s", name, e[name], want)
			}
		}
		list, err := config.ParseServices(config.ServiceLists{Services: e["ADIT_AGENT_SERVICES"], TCP: e["ADIT_AGENT_TCP_SERVICES"], UDP: e["ADIT_AGENT_UDP_SERVICES"]}, nil)
		if err != nil || len(list) != 3 {
			t.Errorf("the agent reads %v, %v", list, err)
		}
		for name := range env(deployment(t, must(t, "adit-agent", least)).Spec.Template.Spec.Containers[0]) {
			if strings.HasSuffix(name, "_SERVICES") {
				t.Errorf("%s is set, though nothing is declared", name)
			}
		}
	})
	t.Run("TOW-5 replicas and annotations of the controller", func(t *testing.T) {
		all := must(t, "adit-agent", seed)
		d := deployment(t, all)
		if *d.Spec.Replicas != 2 || d.Annotations["reloader.stakater.com/auto"] != "true" || d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
			t.Errorf("%d replicas, annotations %v, %s", *d.Spec.Replicas, d.Annotations, d.Spec.Strategy.Type)
		}
		if s := d.Spec.Strategy.RollingUpdate; s.MaxUnavailable.IntValue() != 0 || s.MaxSurge.IntValue() != 1 {
			t.Errorf("a rollout takes a replica away first: %+v", s)
		}
		if get[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget", "").Spec.MaxUnavailable.IntValue() != 1 || len(d.Spec.Template.Spec.TopologySpreadConstraints) != 2 {
			t.Error("no disruption budget or no spread")
		}
		all = must(t, "adit-agent", least+"controllers: {main: {replicas: 1, strategy: Recreate}}\n")
		d = deployment(t, all)
		if all.count("PodDisruptionBudget") != 0 || len(d.Spec.Template.Spec.TopologySpreadConstraints) != 0 || d.Spec.Strategy.RollingUpdate != nil {
			t.Errorf("with one replica: %v", all.names())
		}
	})
	t.Run("TOW-6 the Secret is mounted, with a key or without, by name or as an object", func(t *testing.T) {
		for values, want := range map[string]string{
			seed:                                "/etc/adit/token towonel-agent-secret ",
			least:                               "/etc/adit/token token ",
			"agent: {inviteTokenSecret: token}": "/etc/adit/token token ",
			"agent: {inviteTokenSecret: {name: token, key: TOWONEL_INVITE_TOKEN}}": "/etc/adit/token/TOWONEL_INVITE_TOKEN token TOWONEL_INVITE_TOKEN",
		} {
			spec := deployment(t, must(t, "adit-agent", values)).Spec.Template.Spec
			v := spec.Volumes[0].Secret
			got := env(spec.Containers[0])["ADIT_TOKEN_FILE"] + " " + v.SecretName + " "
			for _, i := range v.Items {
				got += i.Key
			}
			if got != want || v.Optional != nil || spec.Containers[0].VolumeMounts[0].MountPath != "/etc/adit/token" {
				t.Errorf("%q, want %q", got, want)
			}
		}
		if err := refused(t, "adit-agent", ""); !strings.Contains(err, "agent.inviteTokenSecret.name") || strings.Index(err, "create namespace") > strings.Index(err, "create secret") {
			t.Errorf("without a token: %s", err)
		}
	})
	t.Run("TOW-7 the ServiceMonitor finds the metrics Service and no other", func(t *testing.T) { monitored(t, seed) })
	t.Run("TOW-8 health and metrics on 9090, or another port", func(t *testing.T) {
		for values, want := range map[string]int32{seed: 9090, strings.Replace(seed, "agent:\n", "agent:\n  healthPort: 8081\n", 1): 8081} {
			all := must(t, "adit-agent", values)
			c := deployment(t, all).Spec.Template.Spec.Containers[0]
			s := get[corev1.Service](t, all, "Service", "")
			if c.Ports[0].ContainerPort != want || env(c)["ADIT_HEALTH_ADDR"] != fmt.Sprintf(":%d", want) || s.Spec.Ports[0].Port != want ||
				s.Spec.Ports[0].TargetPort.StrVal != c.Ports[0].Name || c.LivenessProbe.HTTPGet.Port.StrVal != c.Ports[0].Name {
				t.Errorf("port %d: container %+v, Service %+v, %s", want, c.Ports, s.Spec.Ports, env(c)["ADIT_HEALTH_ADDR"])
			}
		}
	})
	t.Run("TOW-12 no state: the token's is the only volume", func(t *testing.T) {
		spec := deployment(t, must(t, "adit-agent", seed)).Spec.Template.Spec
		if len(spec.Volumes) != 1 || *spec.AutomountServiceAccountToken || env(spec.Containers[0])["ADIT_STATE_DIR"] != "" {
			t.Errorf("%+v", spec.Volumes)
		}
	})
	t.Run("TOW-23 further addresses", func(t *testing.T) {
		c := deployment(t, must(t, "adit-agent", least+"extraLocalAddrs: 'a.example.com:1,[2001:db8::1]:2'\n")).Spec.Template.Spec.Containers[0]
		if env(c)["ADIT_EXTRA_LOCAL_ADDRS"] != "a.example.com:1,[2001:db8::1]:2" {
			t.Error(env(c)["ADIT_EXTRA_LOCAL_ADDRS"])
		}
	})
	t.Run("TOW-24 with directConnect there are two Services, and serviceName main is the metrics one", func(t *testing.T) {
		monitored(t, direct)
		monitored(t, direct+"# by name\n", "--set", "serviceMonitor.main.serviceName=main")
		monitored(t, direct, "--set", "serviceMonitor.main.serviceName=r-adit-agent")
		if err := refused(t, "adit-agent", direct, "--set", "serviceMonitor.main.serviceName=r-adit-agent-direct"); !strings.Contains(err, "write main") {
			t.Error(err)
		}
	})
	t.Run("directConnect: the Service, the rights and the settings", func(t *testing.T) {
		all := must(t, "adit-agent", direct)
		s := get[corev1.Service](t, all, "Service", "r-adit-agent-direct")
		p := s.Spec.Ports[0]
		if s.Spec.Type != corev1.ServiceTypeNodePort || !s.Spec.PublishNotReadyAddresses || p.Protocol != corev1.ProtocolUDP || p.Port != 51820 || p.NodePort != 31820 || p.TargetPort.StrVal != "direct" {
			t.Errorf("%+v", s.Spec)
		}
		same(t, "rules", rules(t, all), "ClusterRole: [] nodes: get", "Role: [] services named r-adit-agent-direct: get")
		spec := deployment(t, all).Spec.Template.Spec
		e := env(spec.Containers[0])
		if !*spec.AutomountServiceAccountToken || e["ADIT_KUBERNETES_ADDRESSES"] != "true" || e["ADIT_KUBERNETES_SERVICE"] != s.Name || e["NODE_NAME"] != "field:spec.nodeName" || e["POD_NAMESPACE"] != "field:metadata.namespace" || e["ADIT_DIRECT_PORT"] != "51820" {
			t.Errorf("%v", e)
		}
		for values, port := range map[string]int32{"directConnect: {enabled: true, port: 4000}\n": 4000, "directConnect: {enabled: true, irohPort: 4001}\n": 4001} {
			s := get[corev1.Service](t, must(t, "adit-agent", least+values), "Service", "r-adit-agent-direct")
			if s.Spec.Ports[0].Port != port || s.Spec.Ports[0].NodePort != 0 {
				t.Errorf("%s gives %+v", values, s.Spec.Ports)
			}
		}
	})
	t.Run("on the host's network the old Pod goes first", func(t *testing.T) {
		d := deployment(t, must(t, "adit-agent", least+"hostNetwork: true\ndisableUdpGso: true\n"))
		s := d.Spec.Strategy.RollingUpdate
		if !d.Spec.Template.Spec.HostNetwork || d.Spec.Template.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet || s.MaxSurge.IntValue() != 0 || s.MaxUnavailable.IntValue() != 1 || env(d.Spec.Template.Spec.Containers[0])["ADIT_DISABLE_UDP_GSO"] != "true" {
			t.Errorf("%+v", d.Spec)
		}
	})
	restricted(t, "adit-agent", seed)
	restricted(t, "adit-agent", direct)
}

// monitored checks that a ServiceMonitor selects one Service, and names a port of it.
func monitored(t *testing.T, values string, args ...string) {
	t.Helper()
	all := must(t, "adit-agent", values, args...)
	m := some[struct {
		Spec struct {
			Selector  struct{ MatchLabels map[string]string }
			Endpoints []struct{ Port string }
		}
	}](t, all, "ServiceMonitor")
	var found []string
	for _, o := range all {
		if o.Kind != "Service" {
			continue
		}
		s := get[corev1.Service](t, all, "Service", o.Name)
		matches := true
		for k, v := range m.Spec.Selector.MatchLabels {
			matches = matches && s.Labels[k] == v
		}
		if matches && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
			found = append(found, s.Name)
		}
	}
	same(t, "Services read", found, "r-adit-agent")
}
