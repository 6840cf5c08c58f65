// Package layout asserts who may import whom, so that the parts stay apart.
package layout

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

const module = "github.com/adit-dev/adit/"

// file is one source file: its package folder, and what it imports.
type file struct {
	name, dir string
	test      bool
	imports   []string
}

func sources(t *testing.T) []file {
	t.Helper()
	var files []file
	root := need.Root()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch {
			case rel == "tools", rel == "bin", rel != "." && strings.HasPrefix(d.Name(), "."), d.Name() == "testdata":
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		f := file{name: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go")}
		for _, i := range parsed.Imports {
			v, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, v)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no source files found")
	}
	return files
}

// within reports whether a folder is one of the roots or below one.
func within(dir string, roots ...string) bool {
	for _, r := range roots {
		if dir == r || strings.HasPrefix(dir, r+"/") {
			return true
		}
	}
	return false
}

// rule forbids an import to some folders.
type rule struct {
	name    string
	imports func(imported string) bool
	allowed func(f file) bool
}

func below(prefixes ...string) func(string) bool {
	return func(p string) bool { return within(p, prefixes...) }
}

func apart(name string, others ...string) rule {
	var paths []string
	for _, o := range others {
		paths = append(paths, module+"internal/"+o)
	}
	return rule{
		name:    "internal/" + name + " imports none of " + strings.Join(others, ", "),
		imports: below(paths...),
		allowed: func(f file) bool { return f.test || !within(f.dir, "internal/"+name) },
	}
}

func rules() []rule {
	return []rule{
		{
			name:    "only front, link and reach import quic-go",
			imports: below("github.com/quic-go/quic-go"),
			allowed: func(f file) bool {
				return f.test || within(f.dir, "internal/front", "internal/link", "internal/reach", "test")
			},
		},
		{
			name:    "only edge/proxy imports net/http/httputil",
			imports: below("net/http/httputil"),
			allowed: func(f file) bool { return f.test || within(f.dir, "internal/edge/proxy", "test") },
		},
		apart("hub", "edge", "agent", "operator", "server", "cli"),
		apart("edge", "hub", "agent", "operator", "server", "cli"),
		apart("agent", "hub", "edge", "operator", "server", "cli"),
		apart("operator", "hub", "edge", "agent", "server", "cli"),
		apart("server", "cli", "agent", "operator"),
		{
			name:    "cmd/adit imports internal/cli and nothing else of ours",
			imports: below(strings.TrimSuffix(module, "/")),
			allowed: func(f file) bool { return f.dir != "cmd/adit" || onlyCLI(f) },
		},
		{
			name:    "wire, identity and config stand at the bottom",
			imports: below(module + "internal"),
			allowed: func(f file) bool {
				return f.test || !within(f.dir, "internal/wire", "internal/identity", "internal/reason") || onlyBottom(f)
			},
		},
		{
			name:    "the product imports nothing from test",
			imports: below(module + "test"),
			allowed: func(f file) bool {
				return f.test || within(f.dir, "test") || strings.HasSuffix(path.Base(f.dir), "test")
			},
		},
	}
}

func onlyCLI(f file) bool {
	for _, i := range f.imports {
		if strings.HasPrefix(i, module) && i != module+"internal/cli" {
			return false
		}
	}
	return true
}

func onlyBottom(f file) bool {
	for _, i := range f.imports {
		if within(i, module+"internal") && !within(i, module+"internal/wire", module+"internal/identity", module+"internal/reason") {
			return false
		}
	}
	return true
}

func TestImports(t *testing.T) {
	files := sources(t)
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range files {
				for _, i := range f.imports {
					if r.imports(i) && !r.allowed(f) {
						t.Errorf("%s imports %s", f.name, i)
					}
				}
			}
		})
	}
}

func TestPackageNames(t *testing.T) {
	for _, f := range sources(t) {
		switch path.Base(f.dir) {
		case "util", "utils", "common", "helper", "helpers", "misc":
			t.Errorf("%s: a package is named by the noun of its job", f.name)
		}
	}
}

// TestRulesBite shows that each rule refuses what it is there to refuse.
func TestRulesBite(t *testing.T) {
	bad := []file{
		{name: "a", dir: "internal/edge/raw", imports: []string{"github.com/quic-go/quic-go/http3"}},
		{name: "b", dir: "internal/cli", imports: []string{"net/http/httputil"}},
		{name: "c", dir: "internal/hub/rpc", imports: []string{module + "internal/edge/route"}},
		{name: "d", dir: "internal/edge", imports: []string{module + "internal/hub"}},
		{name: "e", dir: "internal/agent", imports: []string{module + "internal/edge"}},
		{name: "f", dir: "internal/operator", imports: []string{module + "internal/agent"}},
		{name: "g", dir: "internal/server", imports: []string{module + "internal/cli"}},
		{name: "h", dir: "cmd/adit", imports: []string{module + "internal/server"}},
		{name: "i", dir: "internal/wire", imports: []string{module + "internal/link"}},
		{name: "j", dir: "internal/link", imports: []string{module + "test/need"}},
	}
	for i, r := range rules() {
		f := bad[i]
		if !r.imports(f.imports[0]) || r.allowed(f) {
			t.Errorf("rule %q lets %s import %s", r.name, f.dir, f.imports[0])
		}
	}
}

// TestSkips: test/need is the one way to skip.
func TestSkips(t *testing.T) {
	call := regexp.MustCompile(`\b(t|b|f|tb)\.(Skip|Skipf|SkipNow)\(`)
	for _, f := range sources(t) {
		if within(f.dir, "test/need") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(need.Root(), filepath.FromSlash(f.name)))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if call.MatchString(line) && f.name != "test/layout/layout_test.go" {
				t.Errorf("%s:%d: skip through test/need", f.name, i+1)
			}
		}
	}
}

// TestParsersAreFuzzed: whatever reads what others wrote has a fuzz target.
func TestParsersAreFuzzed(t *testing.T) {
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	found := map[string][]string{}
	for _, f := range sources(t) {
		if !f.test {
			continue
		}
		text, err := os.ReadFile(filepath.Join(need.Root(), filepath.FromSlash(f.name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range target.FindAllStringSubmatch(string(text), -1) {
			found[f.dir] = append(found[f.dir], m[1])
		}
	}
	for what, dirs := range map[string][]string{
		"ClientHello":                            {"internal/front/sniff"},
		"PROXY headers":                          {"internal/front"},
		"stream headers, frames and datagrams":   {"internal/wire"},
		"host names":                             {"internal/hostname"},
		"tokens":                                 {"internal/identity"},
		"service lists":                          {"internal/config"},
		"request paths and the matching of them": {"internal/edge/route"},
	} {
		n := 0
		for _, d := range dirs {
			n += len(found[d])
		}
		if n == 0 {
			t.Errorf("nothing fuzzes %s (%s)", what, strings.Join(dirs, ", "))
		}
	}
}
