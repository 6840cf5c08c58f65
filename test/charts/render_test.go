package charts_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/adit-dev/adit/test/charts"
)

// helm runs it and returns what it prints; its error has what it said.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return run(t, "", "helm", args...)
}

func run(t *testing.T, stdin, name string, args ...string) (string, error) {
	t.Helper()
	path, err := charts.Tool(name)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.Command(path, args...)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir, "KUBECONFIG=/nonexistent")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), &failed{strings.TrimSpace(errs.String() + out.String())}
	}
	return out.String(), nil
}

type failed struct{ text string }

func (f *failed) Error() string { return f.text }

// object is a rendered one.
type object struct {
	APIVersion, Kind, Namespace, Name string
	text                              []byte
}

type objects []object

// template renders a chart as the release r in the namespace ns.
func template(t *testing.T, chart, values string, args ...string) (objects, error) {
	t.Helper()
	return templateAs(t, "r", "ns", chart, values, args...)
}

func templateAs(t *testing.T, release, namespace, chart, values string, args ...string) (objects, error) {
	t.Helper()
	if !filepath.IsAbs(chart) {
		chart = charts.Dir(chart)
	}
	key := fmt.Sprintf("%q", append([]string{release, namespace, chart, values}, args...))
	if done, ok := rendered.Load(key); ok {
		r := done.(rendering)
		return r.all, r.err
	}
	out, err := run(t, values, "helm", append([]string{"template", release, chart, "--namespace", namespace, "--values", "-"}, args...)...)
	r := rendering{err: err}
	if err == nil {
		r.all = parse(t, out)
	}
	rendered.Store(key, r)
	return r.all, r.err
}

// rendered keeps what was rendered: many tests look at the same.
var rendered sync.Map

type rendering struct {
	all objects
	err error
}

func parse(t *testing.T, text string) objects {
	t.Helper()
	var all objects
	for _, doc := range strings.Split("\n"+text, "\n---") {
		if _, rest, ok := strings.Cut(doc, "\n"); ok {
			doc = rest
		}
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Namespace, Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if o.Kind == "" {
			if body := strings.TrimSpace(uncommented(doc)); body != "" {
				t.Fatalf("no object: %q", body)
			}
			continue
		}
		all = append(all, object{o.APIVersion, o.Kind, o.Metadata.Namespace, o.Metadata.Name, []byte(doc)})
	}
	return all
}

func uncommented(doc string) string {
	var b strings.Builder
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// must is template for values that are right.
func must(t *testing.T, chart, values string, args ...string) objects {
	t.Helper()
	all, err := template(t, chart, values, args...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// names are "Kind name", sorted.
func (all objects) names() []string {
	var out []string
	for _, o := range all {
		out = append(out, o.Kind+" "+o.Name)
	}
	slices.Sort(out)
	return out
}

func (all objects) count(kind string) int {
	n := 0
	for _, o := range all {
		if o.Kind == kind {
			n++
		}
	}
	return n
}

func (all objects) text() string {
	var b strings.Builder
	for _, o := range all {
		b.WriteString("---\n")
		b.Write(o.text)
		b.WriteString("\n")
	}
	return b.String()
}

// get reads the object of that name strictly; an empty name is the only one of its kind.
func get[T any](t *testing.T, all objects, kind, name string) *T {
	t.Helper()
	out, text := new(T), all.find(t, kind, name)
	if err := yaml.UnmarshalStrict(text, out); err != nil {
		t.Fatalf("%s %s: %v\n%s", kind, name, err, text)
	}
	return out
}

// some reads only what the type has.
func some[T any](t *testing.T, all objects, kind string) *T {
	t.Helper()
	out, text := new(T), all.find(t, kind, "")
	if err := yaml.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v\n%s", kind, err, text)
	}
	return out
}

func (all objects) find(t *testing.T, kind, name string) []byte {
	t.Helper()
	var found []object
	for _, o := range all {
		if o.Kind == kind && (name == "" || o.Name == name) {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects are %s %q, of %v", len(found), kind, name, all.names())
	}
	return found[0].text
}

func deployment(t *testing.T, all objects) *appsv1.Deployment {
	t.Helper()
	return get[appsv1.Deployment](t, all, "Deployment", "")
}

// env is a container's, with sources as "field:…".
func env(c corev1.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		out[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			out[e.Name] = "field:" + e.ValueFrom.FieldRef.FieldPath
		}
	}
	return out
}

// rules are all of roles of both kinds as "kind: groups resources verbs".
func rules(t *testing.T, all objects) []string {
	t.Helper()
	var out []string
	for _, o := range all {
		if o.Kind != "ClusterRole" && o.Kind != "Role" {
			continue
		}
		var r rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(o.text, &r); err != nil {
			t.Fatal(err)
		}
		for _, rule := range r.Rules {
			s := o.Kind + ": [" + strings.Join(rule.APIGroups, ",") + "] " + strings.Join(rule.Resources, ",")
			if len(rule.ResourceNames) > 0 {
				s += " named " + strings.Join(rule.ResourceNames, ",")
			}
			out = append(out, s+": "+strings.Join(rule.Verbs, ","))
		}
	}
	return out
}

// same compares lists.
func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
