package charts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/adit-dev/adit/test/need"
)

var examples = filepath.Join(need.Root(), "docs", "examples", "kubernetes")

func example(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{examples}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// reader runs a program of the module readers, which has the types and grammars of others.
func reader(t *testing.T, name, stdin string, args ...string) error {
	t.Helper()
	program := filepath.Join(need.Root(), "bin", "charts", name)
	build := exec.Command("go", "build", "-o", program, "./"+name)
	build.Dir = "readers"
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return &failed{string(out)}
	}
	return nil
}

func TestExamples(t *testing.T) {
	app := filepath.Join(examples, "adit-agent", "app")
	t.Run("TOW-4 OCIRepository, HelmRelease and both Kustomizations are what Flux reads", func(t *testing.T) {
		if err := reader(t, "flux", "", filepath.Join(app, "ocirepository.yaml"), filepath.Join(app, "helmrelease.yaml"), filepath.Join(app, "kustomization.yaml"), filepath.Join(examples, "adit-agent", "ks.yaml")); err != nil {
			t.Error(err)
		}
		wrong := filepath.Join(t.TempDir(), "x.yaml")
		if err := os.WriteFile(wrong, []byte(strings.Replace(example(t, "adit-agent", "app", "ocirepository.yaml"), "layerSelector", "layerselektor", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if reader(t, "flux", "", wrong) == nil {
			t.Error("a misspelt field is not found")
		}
		var repo struct {
			Metadata struct{ Name string }
			Spec     struct {
				LayerSelector struct{ MediaType, Operation string }
				Ref           struct{ Tag string }
				URL           string
			}
		}
		if err := yaml.Unmarshal([]byte(example(t, "adit-agent", "app", "ocirepository.yaml")), &repo); err != nil {
			t.Fatal(err)
		}
		if repo.Spec.LayerSelector.MediaType != chartLayer || repo.Spec.LayerSelector.Operation != "copy" || repo.Spec.Ref.Tag == "" || !strings.HasSuffix(repo.Spec.URL, "/charts/adit-agent") {
			t.Errorf("%+v", repo)
		}
	})
	t.Run("TOW-27 ExternalSecret and DNSEndpoint are what their controllers read", func(t *testing.T) {
		if err := conform(t, filepath.Join(app, "externalsecret.yaml"), filepath.Join(app, "dnsendpoint.yaml")); err != nil {
			t.Error(err)
		}
	})
	t.Run("every file is in the Kustomization", func(t *testing.T) {
		var k struct{ Resources []string }
		if err := yaml.Unmarshal([]byte(example(t, "adit-agent", "app", "kustomization.yaml")), &k); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(app, "*.yaml"))
		if err != nil || len(k.Resources) != len(files)-1 {
			t.Errorf("%v of %v, %v", k.Resources, files, err)
		}
	})
	t.Run("the values of the HelmRelease are those people bring along, but for the Secret's name", func(t *testing.T) {
		var r struct {
			Spec struct{ Values map[string]any }
		}
		if err := yaml.Unmarshal([]byte(example(t, "adit-agent", "app", "helmrelease.yaml")), &r); err != nil {
			t.Fatal(err)
		}
		var brought map[string]any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(testdata(t, "declared.yaml"), "towonel-agent-secret", "adit-agent-secret")), &brought); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.Spec.Values, brought) {
			t.Errorf("%v\nwant %v", r.Spec.Values, brought)
		}
		values, err := yaml.Marshal(r.Spec.Values)
		if err != nil {
			t.Fatal(err)
		}
		must(t, "adit-agent", string(values))
	})
	t.Run("values files install", func(t *testing.T) {
		for chart, files := range map[string][]string{"adit": {"values.yaml"}, "adit-server": {"values.yaml", "values-postgresql.yaml", "values-edges.yaml"}} {
			for _, f := range files {
				text := example(t, chart, f)
				must(t, chart, text)
				if a, b := strings.Index(text, "create namespace"), strings.Index(text, "create secret"); b >= 0 && (a < 0 || a > b) {
					t.Errorf("%s/%s makes a Secret before its namespace", chart, f)
				}
			}
		}
	})
}
