package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/adit-dev/adit/test/charts"
)

// alone are the values of the agent without the operator, as the seed's commands set them.
const alone = "operator: {enabled: false}\nagent:\n  enabled: true\n  token: {value: adit_agent_secret}\n"

const withSecret = "operator: {enabled: false}\nagent:\n  enabled: true\n  token: {existingSecret: hle-agent}\n"

// TestAgentInDashboard is about chart/adit with the agent alone.
func TestAgentInDashboard(t *testing.T) {
	all := must(t, "adit", alone)
	d := deployment(t, all)
	c := d.Spec.Template.Spec.Containers[0]
	t.Run("HLE-S5 the seed's command installs the agent from a folder", func(t *testing.T) {
		out, err := helm(t, "template", "hle", charts.Dir("adit"), "--namespace", "hle", "--create-namespace",
			"--set", "operator.enabled=false", "--set", "agent.enabled=true", "--set", "agent.token.value=hlea_your_token_here")
		if err != nil {
			t.Fatal(err)
		}
		all := parse(t, out)
		same(t, "objects", all.names(), "ClusterRole hle-hle-adit-agent-discovery", "ClusterRoleBinding hle-hle-adit-agent-discovery",
			"Deployment hle-adit-agent", "Secret hle-adit-agent-token", "ServiceAccount hle-adit-agent")
		secret := get[corev1.Secret](t, all, "Secret", "")
		if secret.StringData["agent-token"] != "hlea_your_token_here" {
			t.Errorf("the Secret has %v", secret.StringData)
		}
		if e := env(deployment(t, all).Spec.Template.Spec.Containers[0]); e["ADIT_TOKEN_FILE"] != "/etc/adit/token/agent-token" {
			t.Errorf("the agent reads its token from %q", e["ADIT_TOKEN_FILE"])
		}
	})
	t.Run("HLE-S7 an existing Secret wins over a value, and no token is rendered", func(t *testing.T) {
		all := must(t, "adit", strings.Replace(withSecret, "existingSecret:", "value: adit_agent_secret, existingSecret:", 1))
		if all.count("Secret") != 0 || strings.Contains(all.text(), "adit_agent_secret") {
			t.Errorf("the token is in what is rendered: %v", all.names())
		}
		v := deployment(t, all).Spec.Template.Spec.Volumes[0].Secret
		if v.SecretName != "hle-agent" || v.Items[0].Key != "agent-token" {
			t.Errorf("mounted is %+v", v)
		}
		if err := refused(t, "adit", "operator: {enabled: false}\nagent: {enabled: true}\n"); !strings.Contains(err, "agent.token") ||
			strings.Index(err, "create namespace") > strings.Index(err, "create secret") || !strings.Contains(err, "create namespace") {
			t.Errorf("without a token: %s", err)
		}
	})
	t.Run("HLE-S8 nothing listens: no Service, no Ingress, no port", func(t *testing.T) {
		for _, values := range []string{alone, withSecret, alone + "  metrics: {enabled: true}\n"} {
			all := must(t, "adit", values)
			for _, kind := range []string{"Service", "Ingress", "ServiceMonitor"} {
				if all.count(kind) != 0 {
					t.Errorf("there is a %s", kind)
				}
			}
			for _, c := range deployment(t, all).Spec.Template.Spec.Containers {
				if len(c.Ports) != 0 {
					t.Errorf("ports %v", c.Ports)
				}
			}
		}
	})
	t.Run("HLE-S9 discovery has one ClusterRole: services and endpoints, get, list and watch", func(t *testing.T) {
		same(t, "rules", rules(t, all), "ClusterRole: [] services,endpoints: get,list,watch")
		b := get[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding", "")
		if s := b.Subjects; len(s) != 1 || s[0].Name != d.Spec.Template.Spec.ServiceAccountName || s[0].Namespace != "ns" {
			t.Errorf("bound to %+v", s)
		}
		if !*d.Spec.Template.Spec.AutomountServiceAccountToken || env(c)["ADIT_DISCOVERY"] != "kubernetes" {
			t.Errorf("the token is not mounted, or discovery is %q", env(c)["ADIT_DISCOVERY"])
		}
		all := must(t, "adit", alone+"  discovery: {excludeNamespaces: [private, internal]}\n")
		if got := env(deployment(t, all).Spec.Template.Spec.Containers[0])["ADIT_DISCOVERY_EXCLUDE_NAMESPACES"]; got != "private,internal" {
			t.Errorf("excluded are %q", got)
		}
	})
	t.Run("HLE-S11 without discovery there is no role and no token of the API", func(t *testing.T) {
		all := must(t, "adit", alone+"  discovery: {enabled: false, excludeNamespaces: [x]}\n")
		same(t, "objects", all.names(), "Deployment r-adit-agent", "Secret r-adit-agent-token", "ServiceAccount r-adit-agent")
		spec := deployment(t, all).Spec.Template.Spec
		if *spec.AutomountServiceAccountToken || *get[corev1.ServiceAccount](t, all, "ServiceAccount", "").AutomountServiceAccountToken {
			t.Error("a token is mounted")
		}
		e := env(spec.Containers[0])
		if _, ok := e["ADIT_DISCOVERY_EXCLUDE_NAMESPACES"]; ok || e["ADIT_DISCOVERY"] != "off" {
			t.Errorf("discovery is %q", e["ADIT_DISCOVERY"])
		}
	})
	t.Run("HLE-S15 the defaults are the documented ones", func(t *testing.T) {
		var v struct {
			Agent struct {
				Enabled   bool
				Token     struct{ Value, ExistingSecret, SecretKey string }
				Discovery struct{ Enabled bool }
				Env       []any
			}
			Operator struct{ Enabled bool }
			APIKey   struct{ Value, ExistingSecret, SecretKey string } `json:"apiKey"`
		}
		values(t, "adit", &v)
		if v.Agent.Enabled || v.Agent.Token.Value != "" || v.Agent.Token.ExistingSecret != "" || v.Agent.Token.SecretKey != "agent-token" ||
			!v.Agent.Discovery.Enabled || v.Agent.Env == nil || len(v.Agent.Env) != 0 || !v.Operator.Enabled || v.APIKey.SecretKey != "api-key" {
			t.Errorf("%+v", v)
		}
		if err := refused(t, "adit", ""); !strings.Contains(err, "operator.enabled=false") {
			t.Errorf("the operator is not here, but: %s", err)
		}
	})
	t.Run("HLE-S16 agent.env reaches the agent, HLE_SERVER_URL too", func(t *testing.T) {
		all := must(t, "adit", alone+"  env: [{name: HLE_SERVER_URL, value: https://relay.example.com}]\n")
		if got := env(deployment(t, all).Spec.Template.Spec.Containers[0])["HLE_SERVER_URL"]; got != "https://relay.example.com" {
			t.Errorf("it is %q", got)
		}
		all = must(t, "adit", alone+"server: {url: https://hub.example.com}\n")
		if got := env(deployment(t, all).Spec.Template.Spec.Containers[0])["ADIT_SERVER_URL"]; got != "https://hub.example.com" {
			t.Errorf("server.url gives %q", got)
		}
	})
	t.Run("HLE-S17 with the operator off nothing of it is there", func(t *testing.T) {
		same(t, "objects", must(t, "adit", "operator: {enabled: false}").names())
		if all.count("CustomResourceDefinition") != 0 || all.count("Deployment") != 1 {
			t.Errorf("%v", all.names())
		}
	})
	t.Run("HLE-S18 one replica and Recreate, whatever the values", func(t *testing.T) {
		if *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			t.Errorf("%d replicas, %s", *d.Spec.Replicas, d.Spec.Strategy.Type)
		}
		for _, more := range []string{"  replicaCount: 2\n", "  replicas: 2\n", "  strategy: RollingUpdate\n", "replicaCount: 2\n"} {
			if err := refused(t, "adit", alone+more); !strings.Contains(err, "not allowed") {
				t.Errorf("%q: %s", more, err)
			}
		}
	})
	t.Run("a changed token rolls the Pod", func(t *testing.T) {
		other := deployment(t, must(t, "adit", strings.Replace(alone, "adit_agent_secret", "adit_agent_other", 1)))
		a, b := d.Spec.Template.Annotations["checksum/token"], other.Spec.Template.Annotations["checksum/token"]
		if a == "" || a == b {
			t.Errorf("the annotation is %q and %q", a, b)
		}
		d := deployment(t, must(t, "adit", withSecret+"  annotations: {reloader.stakater.com/auto: \"true\"}\n"))
		if d.Annotations["reloader.stakater.com/auto"] != "true" {
			t.Errorf("annotations %v", d.Annotations)
		}
	})
	t.Run("targets that it may dial", func(t *testing.T) {
		d := deployment(t, must(t, "adit", alone+"  allowTargets: [10.0.0.0/8, '*.svc.cluster.local:3000']\n"))
		if got := env(d.Spec.Template.Spec.Containers[0])["ADIT_ALLOW_TARGET"]; got != "10.0.0.0/8,*.svc.cluster.local:3000" {
			t.Errorf("%q", got)
		}
	})
	restricted(t, "adit", alone)
}

// refused is why values are not taken.
func refused(t *testing.T, chart, values string, args ...string) string {
	t.Helper()
	all, err := template(t, chart, values, args...)
	if err == nil {
		t.Errorf("accepted: %s\n%v", values, all.names())
		return ""
	}
	return err.Error()
}

// values reads those of a chart.
func values(t *testing.T, chart string, to any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(charts.Dir(chart), "values.yaml"))
	if err == nil {
		err = yaml.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// podSpec is that of the workload.
func podSpec(t *testing.T, all objects) corev1.PodSpec {
	t.Helper()
	for _, o := range all {
		var w struct {
			Spec struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		switch o.Kind {
		case "Deployment", "StatefulSet", "DaemonSet":
			if err := yaml.Unmarshal(o.text, &w); err != nil {
				t.Fatal(err)
			}
			return w.Spec.Template.Spec
		}
	}
	t.Fatalf("no workload in %v", all.names())
	panic("unreachable")
}

// restricted checks a Pod against Pod Security's restricted profile, and what all our Pods have.
func restricted(t *testing.T, chart, values string) {
	t.Helper()
	t.Run("Pods ask for nothing special", func(t *testing.T) {
		spec := podSpec(t, must(t, chart, values))
		p, c := spec.SecurityContext, spec.Containers[0].SecurityContext
		if !*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || spec.HostNetwork {
			t.Errorf("Pod: %+v", p)
		}
		if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" || len(c.Capabilities.Add) != 0 {
			t.Errorf("container: %+v", c)
		}
		for _, s := range p.Sysctls {
			if s.Name != "net.ipv4.ip_unprivileged_port_start" {
				t.Errorf("sysctl %s is not a safe one", s.Name)
			}
		}
		if *spec.EnableServiceLinks || *spec.TerminationGracePeriodSeconds < 30 {
			t.Errorf("service links %v, grace %d", *spec.EnableServiceLinks, *spec.TerminationGracePeriodSeconds)
		}
	})
	t.Run("O06 liveness asks for the process, readiness for sessions", func(t *testing.T) {
		c := podSpec(t, must(t, chart, values)).Containers[0]
		if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.StartupProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Errorf("live %s, start %s, ready %s", c.LivenessProbe.HTTPGet.Path, c.StartupProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
		}
	})
	t.Run("images are pinned by tag and digest", func(t *testing.T) {
		digest := "sha256:" + strings.Repeat("a1", 32)
		spec := podSpec(t, must(t, chart, values, "--set", "image.tag=v1.2.3,image.digest="+digest))
		if got := spec.Containers[0].Image; got != "ghcr.io/adit-dev/adit:v1.2.3@"+digest {
			t.Errorf("image %s", got)
		}
		if got := podSpec(t, must(t, chart, values, "--set", "image.registry=,image.repository=adit")).Containers[0].Image; got != "adit:0.0.0" {
			t.Errorf("image %s", got)
		}
	})
	t.Run("standard values reach the Pods", func(t *testing.T) {
		all := must(t, chart, values, "--set", "imagePullSecrets[0].name=pull,commonLabels.team=a,fullnameOverride=full", "--set-string", prefix(chart)+"nodeSelector.disk=ssd,"+prefix(chart)+"podLabels.x=y,"+prefix(chart)+"priorityClassName=high")
		spec := podSpec(t, all)
		if spec.ImagePullSecrets[0].Name != "pull" || spec.NodeSelector["disk"] != "ssd" || spec.PriorityClassName != "high" {
			t.Errorf("%+v", spec)
		}
		for _, o := range all {
			if !strings.Contains(o.Name, "full") || !strings.Contains(string(o.text), "team: a") {
				t.Errorf("%s %s has another name, or lacks the common label", o.Kind, o.Name)
			}
		}
	})
}

// prefix is where a chart has the values of its Pods.
func prefix(chart string) string {
	if chart == "adit" {
		return "agent."
	}
	return ""
}
