package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adit-dev/adit/test/need"
	"github.com/adit-dev/adit/test/stack"
)

// TestAPIExamples runs the shell blocks of the API's reference against a server, in order, with curl.
func TestAPIExamples(t *testing.T) {
	bash := need.Program(t, "bash", "curl")[0]
	s := stack.StartServer(t, stack.ServerConfig{})
	key, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	host := "hub.localhost:" + s.Port()
	writeFile(t, filepath.Join(home, ".curlrc"), "cacert = "+s.CAFile()+"\nresolve = "+host+":127.0.0.1\n")
	script := "set -euo pipefail\n" + strings.Join(blocksOf(t, "docs/reference/api.md", "sh"), "\n")
	cmd := exec.CommandContext(t.Context(), bash, "-c", script)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HUB=https://" + host, "KEY=" + strings.TrimSpace(string(key))}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"token":"adit_agent_`, `"hostname":"grafana.localhost"`, `"responseTimeoutSeconds":300`, `"stepSeconds":3600`} {
		if !strings.Contains(strings.ReplaceAll(string(out), " ", ""), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}
