// Package stack runs the real programs for black-box tests: it builds the binary once, starts
// servers, edges and agents as processes on free ports with data folders of their own, waits
// until they say they are ready, and ends each by its process id. Their logs are shown when
// the test fails.
package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/adit-dev/adit/test/need"
)

var binary struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Main runs a package's tests and removes what Binary built.
func Main(m *testing.M) {
	code := m.Run()
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

// Binary is the path of the adit binary: ADIT_BIN if that names one, else one built for this
// run, without the race detector, as users get it.
func Binary(t testing.TB) string {
	t.Helper()
	binary.once.Do(func() {
		if p := os.Getenv("ADIT_BIN"); p != "" {
			if _, err := os.Stat(p); err == nil {
				binary.path = p
				return
			}
		}
		//nolint:usetesting // it outlives the test that builds it
		binary.dir, binary.err = os.MkdirTemp("", "adit-binary-")
		if binary.err != nil {
			return
		}
		binary.path = filepath.Join(binary.dir, "adit")
		cmd := exec.Command("go", "build", "-o", binary.path, "./cmd/adit")
		cmd.Dir = need.Root()
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			binary.err = fmt.Errorf("go build ./cmd/adit: %w\n%s", err, out)
		}
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}
