package charts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/adit-dev/adit/test/charts"
	"github.com/adit-dev/adit/test/need"
)

// TestReference keeps docs/reference/values.md as schemas and defaults say; ADIT_WRITE_DOCS=1 (make
// docs) writes it.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Values of the charts\n\n<!-- made from the charts by `make docs` -->\n\nUnknown values are refused. `global` and `enabled` are allowed at the top, for umbrella charts.\n")
	for _, chart := range all {
		fmt.Fprintf(&b, "\n## %s\n\n| value | default | meaning |\n|---|---|---|\n", chart)
		text, err := os.ReadFile(filepath.Join(charts.Dir(chart), "values.yaml"))
		var defaults yaml.Node
		if err == nil {
			err = yaml.Unmarshal(text, &defaults)
		}
		if err != nil {
			t.Fatal(err)
		}
		rows(t, &b, schema(t, chart), defaults.Content[0], "")
		if chart == "adit-agent" {
			b.WriteString("\nEntries of the lists of services:\n\n| field | of | meaning |\n|---|---|---|\n")
			for _, list := range []string{"services", "tcpServices", "udpServices"} {
				fields(&b, schema(t, chart)["properties"].(node)["agent"].(node)["properties"].(node)[list].(node)["items"].(node), list)
			}
		}
	}
	path := filepath.Join(need.Root(), "docs", "reference", "values.md")
	if os.Getenv("ADIT_WRITE_DOCS") == "1" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(path); err != nil || string(old) != b.String() {
		t.Errorf("%s is not what schemas and defaults say (%v); make docs writes it", path, err)
	}
}

// rows are the values in the order of values.yaml; what has no default comes after its siblings.
func rows(t *testing.T, b *strings.Builder, s node, defaults *yaml.Node, path string) {
	t.Helper()
	props, _ := s["properties"].(node)
	have := map[string]bool{"global": true, "enabled": path == ""}
	for i := 0; i+1 < len(defaults.Content); i += 2 {
		name, v := defaults.Content[i].Value, defaults.Content[i+1]
		have[name] = true
		p, _ := props[name].(node)
		if v.Kind == yaml.MappingNode && p["properties"] != nil {
			row(b, path+name, "", p)
			rows(t, b, p, v, path+name+".")
			continue
		}
		row(b, path+name, compact(t, v), p)
	}
	for _, name := range order(props) {
		if !have[name] {
			row(b, path+name, "", props[name].(node))
		}
	}
}

func row(b *strings.Builder, path, def string, p node) {
	if def != "" {
		def = "`" + def + "`"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", path, def, meaning(p))
}

// meaning is the description with the words that are possible.
func meaning(p node) string {
	d, _ := p["description"].(string)
	if words, ok := p["enum"].([]any); ok {
		var quoted []string
		for _, w := range words {
			if w != "" {
				quoted = append(quoted, fmt.Sprintf("`%v`", w))
			}
		}
		d += " One of " + strings.Join(quoted, ", ") + "."
	}
	return strings.ReplaceAll(d, "|", "\\|")
}

// compact is a default in one line, as YAML people would write it.
func compact(t *testing.T, v *yaml.Node) string {
	t.Helper()
	if v.Kind == yaml.ScalarNode {
		if v.Tag == "!!str" && v.Style != 0 {
			return `"` + v.Value + `"`
		}
		if v.Tag == "!!null" {
			return ""
		}
		return v.Value
	}
	var x any
	err := v.Decode(&x)
	var j []byte
	if err == nil {
		j, err = json.Marshal(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(j)
}

func fields(b *strings.Builder, entry node, list string) {
	props := entry["properties"].(node)
	for _, name := range order(props) {
		must := ""
		if r, _ := entry["required"].([]any); slices.Contains(r, any(name)) {
			must = "Required. "
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s%s |\n", name, list, must, meaning(props[name].(node)))
	}
}

// order is by name: JSON objects have none.
func order(props node) []string {
	var out []string
	for name := range props {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
