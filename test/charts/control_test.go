package charts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/adit-dev/adit/test/cluster"
)

// TestControlPlane has a real API server take everything that the charts render, defaulting, validation
// and admission included; and keeps the schemas of TestStrict as that server has them.
func TestControlPlane(t *testing.T) {
	k := cluster.ControlPlane(t)
	files, err := filepath.Glob("crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		k.Apply(string(b))
	}
	k.Kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
	k.Kubectl("create", "namespace", "ns")
	k.Kubectl("label", "namespace", "ns", "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	k.Kubectl("-n", "ns", "create", "serviceaccount", "default")
	apply := func(t *testing.T, text string, args ...string) error {
		t.Helper()
		file := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := k.Try(append([]string{"apply", "--dry-run=server", "--validate=strict", "-f", file}, args...)...)
		return err
	}
	var rendered, pods, onHosts strings.Builder
	refusals := 0
	for i, v := range variants {
		rendered.WriteString(must(t, v.chart, v.values).text())
		to := &pods
		if strings.Contains(v.values, "hostNetwork") || strings.Contains(v.values, "DaemonSet") {
			to = &onHosts
			refusals++
		}
		b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": fmt.Sprint("p", i), "namespace": "ns"}, "spec": withoutAccount(t, v.chart, v.values)})
		if err != nil {
			t.Fatal(err)
		}
		to.WriteString("---\n" + string(b) + "\n")
	}
	t.Run("everything that is rendered is taken", func(t *testing.T) {
		if err := apply(t, rendered.String()); err != nil {
			t.Error(err)
		}
	})
	// Admission looks at Pods; about a workload it only warns.
	t.Run("Pods are admitted where Pod Security enforces restricted", func(t *testing.T) {
		if err := apply(t, pods.String()); err != nil {
			t.Error(err)
		}
	})
	t.Run("Pods on the hosts' network are not", func(t *testing.T) {
		if err := apply(t, onHosts.String()); err == nil || strings.Count(err.Error(), "violates PodSecurity") != refusals {
			t.Errorf("want %d refusals: %v", refusals, err)
		}
	})
	t.Run("examples", func(t *testing.T) {
		k.Kubectl("create", "namespace", "network")
		for _, name := range []string{"externalsecret.yaml", "dnsendpoint.yaml"} {
			if err := apply(t, example(t, "adit-agent", "app", name), "--namespace=network"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("TOW-4 charts install from a registry and are upgraded", func(t *testing.T) {
		addr := pushed(t)
		for _, chart := range all {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(least[chart]), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"r-" + chart, "oci://" + addr + "/charts/" + chart, "--version", "1.2.3", "--plain-http", "--namespace", "ns", "--values", file}
			k.Helm(append([]string{"install"}, args...)...)
			k.Helm(append([]string{"upgrade", "--set", "commonLabels.new=label"}, args...)...)
			k.Helm("uninstall", "r-"+chart, "--namespace", "ns")
		}
		if out := k.Kubectl("get", "deployments,statefulsets,services,secrets,serviceaccounts,clusterroles,clusterrolebindings", "--namespace", "ns", "-l", "app.kubernetes.io/part-of=adit", "-o", "name"); out != "" {
			t.Errorf("left: %s", out)
		}
	})
	t.Run("schemas are this server's", func(t *testing.T) {
		// CRDs reach the document a moment after they are established.
		var doc struct{ Definitions map[string]map[string]any }
		k.Eventually(30*time.Second, func() error {
			doc.Definitions = nil
			if err := json.Unmarshal([]byte(k.Kubectl("get", "--raw", "/openapi/v2")), &doc); err != nil {
				return err
			}
			for _, want := range schemas {
				if _, ok := definitionOf(doc.Definitions, want); !ok {
					return fmt.Errorf("no %v", want)
				}
			}
			return nil
		})
		for name, text := range schemaFiles(t, doc.Definitions) {
			path := filepath.Join("schemas", name)
			if os.Getenv("ADIT_WRITE_DOCS") == "1" {
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if old, err := os.ReadFile(path); err != nil || string(old) != string(text) {
				t.Errorf("%s is not as the API server has it (%v); write it with ADIT_WRITE_DOCS=1", path, err)
			}
		}
	})
}

// withoutAccount is the Pod of a chart, with no ServiceAccount, as none is there.
func withoutAccount(t *testing.T, chart, values string) corev1.PodSpec {
	t.Helper()
	spec := podSpec(t, must(t, chart, values))
	spec.ServiceAccountName, spec.PriorityClassName = "", ""
	off := false
	spec.AutomountServiceAccountToken = &off
	// The volume of a claim that a StatefulSet makes is not in its Pod yet.
	spec.Containers[0].VolumeMounts = slices.DeleteFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	})
	return spec
}
