// Package docs keeps the reference pages true: tables come from the code, and what links
// between pages name exists. ADIT_WRITE_DOCS=1 (make docs) writes the made parts.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hub/rpc"
	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

func page(name string) string { return filepath.Join(need.Root(), "docs", "reference", name) }

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// made compares the part of a page between its markers with what the code gives.
func made(t *testing.T, path, mark, want string) {
	t.Helper()
	text := read(t, path)
	re := regexp.MustCompile(`(?s)(<!-- ` + mark + `:[^\n]*-->\n)(.*?)(<!-- end -->)`)
	m := re.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no part %q", path, mark)
	}
	if m[2] == want {
		return
	}
	if os.Getenv("ADIT_WRITE_DOCS") != "1" {
		t.Errorf("%s, part %q, is not what the code gives; make docs writes it", filepath.Base(path), mark)
		return
	}
	next := strings.Replace(text, m[0], m[1]+want+m[3], 1)
	if err := os.WriteFile(path, []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSettings(t *testing.T) {
	for mark, program := range map[string]config.Program{"server": config.ForServer, "agent": config.ForAgent, "client": config.ForClient} {
		var b strings.Builder
		b.WriteString("| flag | environment | default | meaning |\n|---|---|---|---|\n")
		for _, s := range config.Settings(program) {
			def := s.Default
			switch {
			case s.Name == "data-dir":
				def = "`/var/lib/adit` for root, else the user's data folder"
			case def != "":
				def = "`" + def + "`"
			}
			flag := "`--" + s.Name + "`"
			env := "`" + s.Env() + "`"
			if s.Secret {
				flag += ", `--" + s.Name + "-file`"
				env += ", `" + s.Env() + "_FILE`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", flag, env, def, markdown.Replace(s.Help))
		}
		made(t, page("settings.md"), mark, b.String())
	}
}

func TestCommands(t *testing.T) {
	var b strings.Builder
	describe(t, &b, nil)
	made(t, page("cli.md"), "commands", b.String())
}

// describe writes the help of a command and of those below it.
func describe(t *testing.T, b *strings.Builder, path []string) {
	help := stack.Run(t, []string{"XDG_DATA_HOME=/data"}, append(slices.Clone(path), "--help")...).Stdout
	body, _, _ := strings.Cut(help, "\nGlobal Flags:")
	body, _, _ = strings.Cut(body, "\nUse \"adit ")
	// Flags of server and agent stand in settings.md; repeating them here would only be longer.
	if len(path) > 0 && strings.Count(body, "\n      --") > 20 {
		body, _, _ = strings.Cut(body, "\nFlags:")
		body += "\nFlags are listed in settings.md."
	}
	fmt.Fprintf(b, "## adit %s\n\n```\n%s\n```\n\n", strings.Join(path, " "), strings.TrimSpace(dataDir.ReplaceAllString(body, `(default of data-dir)`)))
	_, list, ok := strings.Cut(help, "Available Commands:\n")
	if !ok {
		return
	}
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "help" {
			describe(t, b, append(slices.Clone(path), f[0]))
		}
	}
}

// dataDir differs between root and others.
var dataDir = regexp.MustCompile(`\(default "(/var/lib/adit|/data/adit)"\)`)

func TestReasons(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(need.Root(), "internal", "reason", "reason.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Code" && len(spec.Values) == 1 {
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				v, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				codes[v] = true
			}
		}
		return true
	})
	if len(codes) < 20 {
		t.Fatalf("only %d codes found in the code", len(codes))
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| (?:\\d+ \\| )?`([a-z_]+)` \\|").FindAllStringSubmatch(read(t, page("reasons.md")), -1) {
		documented[m[1]] = true
	}
	for c := range codes {
		if !documented[c] {
			t.Errorf("reasons.md does not explain %s", c)
		}
	}
	for c := range documented {
		if !codes[c] {
			t.Errorf("reasons.md explains %s, which the code does not have", c)
		}
	}
}

// TestLinks follows the relative links of every page.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join(need.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
					t.Errorf("%s links to %s, which is not there", filepath.Base(p), m[1])
				}
			}
		}
	}
}

// markdown keeps what a table cell or a browser would take for its own.
var markdown = strings.NewReplacer("|", `\|`, "<", "&lt;")

func TestProcedures(t *testing.T) {
	var b strings.Builder
	b.WriteString("| procedure | role | scope of a key | more |\n|---|---|---|---|\n")
	for _, p := range rpc.Procedures() {
		role, scope, more := p.Role, "`"+p.Scope+"`", ""
		switch {
		case p.Role == "":
			role, scope = "nobody's key is needed", ""
		case p.Scope == "":
			scope = "a key without scopes"
		case p.Scope == "*":
			scope = "any"
		}
		switch {
		case p.Local:
			more = "only with `admin.key`, on the server's host"
		case p.Fresh:
			more = "a sign-in younger than 10 minutes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.Name, role, scope, more)
	}
	made(t, page("api.md"), "procedures", b.String())
}

// TestEvents: every kind of event that the hub may tell is described.
func TestEvents(t *testing.T) {
	text := read(t, page("events.md"))
	for _, kind := range hub.EventKinds() {
		if !strings.Contains(text, "| `"+kind+"` |") {
			t.Errorf("events.md does not describe %s", kind)
		}
	}
}
