package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

// schemas are the kinds that charts and examples have, as group, version and kind; TestControlPlane
// takes them from a real API server.
var schemas = [][3]string{
	{"", "v1", "ConfigMap"}, {"", "v1", "Namespace"}, {"", "v1", "Pod"}, {"", "v1", "Secret"}, {"", "v1", "Service"}, {"", "v1", "ServiceAccount"},
	{"apps", "v1", "DaemonSet"}, {"apps", "v1", "Deployment"}, {"apps", "v1", "StatefulSet"},
	{"networking.k8s.io", "v1", "NetworkPolicy"}, {"policy", "v1", "PodDisruptionBudget"},
	{"rbac.authorization.k8s.io", "v1", "ClusterRole"}, {"rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"},
	{"rbac.authorization.k8s.io", "v1", "Role"}, {"rbac.authorization.k8s.io", "v1", "RoleBinding"},
	{"monitoring.coreos.com", "v1", "PodMonitor"}, {"monitoring.coreos.com", "v1", "PrometheusRule"}, {"monitoring.coreos.com", "v1", "ServiceMonitor"},
	{"external-secrets.io", "v1", "ExternalSecret"}, {"externaldns.k8s.io", "v1alpha1", "DNSEndpoint"},
}

const definitions = "#/definitions/"

// definitionOf is the name of the definition of a group, version and kind.
func definitionOf(defs map[string]map[string]any, want [3]string) (string, bool) {
	for name, d := range defs {
		gvks, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(gvks) != 1 {
			continue // what belongs to every group
		}
		g := gvks[0].(map[string]any)
		if g["group"] == want[0] && g["version"] == want[1] && g["kind"] == want[2] {
			return name, true
		}
	}
	return "", false
}

// schemaFiles are a file for each kind, and one with what they refer to.
func schemaFiles(t *testing.T, defs map[string]map[string]any) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	used := map[string]any{}
	var use func(name string)
	use = func(name string) {
		if used[name] != nil {
			return
		}
		d := defs[name]
		if strings.HasSuffix(name, "api.resource.Quantity") || d["format"] == "int-or-string" {
			delete(d, "type")
			d["oneOf"] = []any{map[string]any{"type": "string"}, map[string]any{"type": "number"}}
		}
		used[name] = strict(d)
		for _, ref := range refs(d) {
			use(strings.TrimPrefix(ref, definitions))
		}
	}
	write := func(name string, v any) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = append(b, '\n')
	}
	for _, s := range schemas {
		name, ok := definitionOf(defs, s)
		if !ok {
			t.Fatalf("no %v", s)
		}
		use(name)
		suffix := s[1]
		if s[0] != "" {
			suffix = strings.Split(s[0], ".")[0] + "-" + suffix
		}
		write(strings.ToLower(s[2])+"-"+suffix+".json", map[string]any{"$schema": "http://json-schema.org/schema#", "$ref": "definitions.json" + definitions + name})
	}
	write("definitions.json", map[string]any{"definitions": used})
	return out
}

// strict refuses fields that are not in a schema, and drops what is only for people.
func strict(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["properties"]; ok && v["x-kubernetes-preserve-unknown-fields"] != true && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		if d, ok := v["description"].(string); ok && d != "" {
			delete(v, "description")
		}
		if v["x-kubernetes-int-or-string"] == true {
			delete(v, "type")
		}
		for k, e := range v {
			if strings.HasPrefix(k, "x-kubernetes-") && k != "x-kubernetes-preserve-unknown-fields" {
				if _, isSchema := e.(map[string]any); !isSchema {
					delete(v, k)
					continue
				}
			}
			strict(e)
		}
	case []any:
		for _, e := range v {
			strict(e)
		}
	}
	return v
}

func refs(v any) (out []string) {
	switch v := v.(type) {
	case map[string]any:
		if r, ok := v["$ref"].(string); ok {
			out = append(out, r)
		}
		for _, e := range v {
			out = append(out, refs(e)...)
		}
	case []any:
		for _, e := range v {
			out = append(out, refs(e)...)
		}
	}
	return out
}

// conform has kubeconform look at a file.
func conform(t *testing.T, files ...string) error {
	t.Helper()
	_, err := run(t, "", "kubeconform", append([]string{"-strict", "-schema-location", filepath.Join(need.Root(), "test/charts/schemas") + "/{{.ResourceKind}}{{.KindSuffix}}.json"}, files...)...)
	return err
}

func TestStrict(t *testing.T) {
	file := filepath.Join(t.TempDir(), "all.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range variants {
		write(must(t, v.chart, v.values).text())
		if err := conform(t, file); err != nil {
			t.Errorf("%s, %s: %v", v.chart, v.name, err)
		}
	}
	rendered := must(t, "adit-agent", variants[5].values).text()
	for _, wrong := range [][2]string{
		{"terminationGracePeriodSeconds:", "terminationGracePeriod:"}, {"replicas: 2", "replicas: two"}, {"scrapeTimeout:", "scrapeTimeOut:"}, {"kind: ServiceMonitor", "kind: ServiceMoniter"},
	} {
		write(strings.Replace(rendered, wrong[0], wrong[1], 1))
		if err := conform(t, file); err == nil || !strings.Contains(rendered, wrong[0]) {
			t.Errorf("%q is not found", wrong[1])
		}
	}
}
