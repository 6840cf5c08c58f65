package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/adit-dev/adit/internal/cli"
)

var dataDir = regexp.MustCompile(`\(default "[^"]*adit"\)`)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type result struct {
	code           int
	stdout, stderr string
}

// run runs one command line with nothing of this machine's environment.
func run(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	code := cli.Run(ctx, args, cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Environ: env})
	return result{code, out.String(), errOut.String()}
}

// commands are those whose help is a promise.
var commands = []string{"", "demo", "server", "agent", "expose", "invite", "invite create", "invite list", "invite get", "invite revoke",
	"tunnel", "tunnel list", "tunnel get", "agents", "agents list", "agents get", "port", "port list", "port reserve", "port release",
	"edge", "edge list", "edge invite", "doctor", "config", "config print server", "config validate agent", "completion", "version"}

func TestHelp(t *testing.T) {
	var b strings.Builder
	for _, c := range commands {
		r := run(t, nil, append(strings.Fields(c), "--help")...)
		if r.code != 0 || r.stderr != "" {
			t.Errorf("%s --help: %+v", c, r)
		}
		// The default data folder depends on who runs the test.
		b.WriteString("$ adit " + strings.TrimSpace(c+" --help") + "\n" + dataDir.ReplaceAllString(r.stdout, `(default "DATA-DIR")`) + "\n")
	}
	golden(t, "help.golden", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; if that is meant, run the test with -update\n%s", path, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return "want: " + w[i] + "\n got: " + g[i]
		}
	}
	return "one is longer"
}

// TestUsage: what cannot work is told before anything starts, with exit code 2.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown command", []string{"tunel"}, `"tunel"`},
		{"unknown subcommand", []string{"invite", "make"}, `"make"`},
		{"unknown flag", []string{"server", "--domian", "x"}, "--domian"},
		{"argument too many", []string{"version", "please"}, `"please"`},
		{"argument missing", []string{"invite", "get"}, "NAME or ID is missing"},
		{"output format", []string{"version", "-o", "xml"}, `"xml"`},
		{"relay role", []string{"server", "--domain", "example.com", "--roles", "hub,edge,relay"}, "relay"},
		{"no domain", []string{"server"}, "--domain example.com"},
		{"bad address", []string{"server", "--domain", "example.com", "--listen-https", "nowhere"}, "listen-https"},
		{"settings of nobody", []string{"config", "validate"}, "adit config validate server"},
		{"agent without token", []string{"agent"}, "ADIT_TOKEN_FILE"},
		{"invite without name", []string{"invite", "create", "--hostname", "a.example.com"}, "--name"},
		{"invite without grant", []string{"invite", "create", "--name", "x"}, "allows nothing"},
		{"bad port", []string{"invite", "create", "--name", "x", "--tcp-port", "0"}, "--tcp-port"},
		{"bad expiry", []string{"invite", "create", "--name", "x", "--tcp-port", "2222", "--expires", "soon"}, "30d"},
		{"past expiry", []string{"invite", "create", "--name", "x", "--tcp-port", "2222", "--expires", "2001-01-01T00:00:00Z"}, "in the past"},
		{"bad demo origin", []string{"demo", "ftp://127.0.0.1"}, `"ftp"`},
		{"tcp demo origin", []string{"demo", "tcp://127.0.0.1:22"}, "web service"},
		{"shell", []string{"completion", "tcsh"}, `"tcsh"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, nil, c.args...)
			if r.code != 2 || !strings.Contains(r.stderr, c.want) || r.stdout != "" {
				t.Errorf("%+v, want exit code 2 and %q", r, c.want)
			}
			j := run(t, nil, append(c.args, "-o", "json")...)
			var e struct{ Error, Code string }
			if c.name == "output format" {
				return
			}
			if err := json.Unmarshal([]byte(j.stderr), &e); err != nil || e.Code != "usage" || e.Error == "" || j.code != 2 {
				t.Errorf("as JSON: %v %+v", err, j)
			}
		})
	}
}

// TestExitCodes: 3 credential, 5 unreachable; 1 and 4 need a server.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	stale := t.TempDir()
	if err := os.WriteFile(filepath.Join(stale, "server.json"), []byte(`{"https":"127.0.0.1:1","hub_key_hash":"`+strings.Repeat("ab", 32)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stale, "admin.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, code string
		exit       int
		env, args  []string
	}{
		{"no server", "hub_unreachable", 5, nil, []string{"invite", "list", "--data-dir", dir}},
		{"server gone", "hub_unreachable", 5, nil, []string{"invite", "list", "--data-dir", stale}},
		{"nobody at the URL", "hub_unreachable", 5, []string{"ADIT_API_KEY=k"}, []string{"tunnel", "list", "--server-url", "https://127.0.0.1:1"}},
		{"no API key", "unauthenticated", 3, nil, []string{"agents", "list", "--server-url", "https://hub.example.com"}},
		{"token that is none", "unauthenticated", 3, nil, []string{"agent", "--token-file", file("hello")}},
		{"token cut short", "unauthenticated", 3, nil, []string{"agent", "--token-file", file("adit_invite_AAAA")}},
		{"token file missing", "usage", 2, nil, []string{"agent", "--token-file", "/nowhere"}},
		{"token of expose", "unauthenticated", 3, []string{"ADIT_TOKEN=adit_invite_AAAA"}, []string{"expose", "3000", "--label", "x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.env, append(c.args, "-o", "json")...)
			var e struct{ Error, Code, Hint string }
			if err := json.Unmarshal([]byte(r.stderr), &e); err != nil {
				t.Fatalf("%v in %+v", err, r)
			}
			if r.code != c.exit || e.Code != c.code {
				t.Errorf("exit %d %+v, want %d %s", r.code, e, c.exit, c.code)
			}
		})
	}
}

func TestConfigCommand(t *testing.T) {
	r := run(t, []string{"ADIT_REGION=eu"}, "config", "print", "server", "--domain", "example.com", "--database-url", "postgres://u:secret@db/adit", "-o", "json")
	var lines []struct{ Name, Value, Source string }
	if err := json.Unmarshal([]byte(r.stdout), &lines); err != nil || r.code != 0 {
		t.Fatalf("%v %+v", err, r)
	}
	got := map[string]string{}
	for _, l := range lines {
		got[l.Name] = l.Value + " from " + l.Source
	}
	if got["region"] != "eu from environment ADIT_REGION" || got["domain"] != "example.com from flag --domain" || strings.Contains(r.stdout, "secret@") {
		t.Errorf("%s", r.stdout)
	}
	if r := run(t, nil, "config", "validate", "server", "--domain", "example.com"); r.code != 0 || !strings.Contains(r.stdout, "valid") {
		t.Errorf("%+v", r)
	}
	if r := run(t, nil, "config", "validate", "server"); r.code != 2 {
		t.Errorf("%+v", r)
	}
	y := run(t, nil, "config", "print", "agent", "-o", "yaml")
	if y.code != 0 || !strings.HasPrefix(y.stdout, "- name: token\n  value: \"\"\n  source: default\n") {
		t.Errorf("%s", y.stdout)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	if r := run(t, nil, "version"); r.code != 0 || !strings.HasPrefix(r.stdout, "adit ") {
		t.Errorf("%+v", r)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := run(t, nil, "completion", shell); r.code != 0 || len(r.stdout) < 500 {
			t.Errorf("%s: code %d, %d bytes, %s", shell, r.code, len(r.stdout), r.stderr)
		}
	}
}
