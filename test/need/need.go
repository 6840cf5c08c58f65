// Package need is the one way a test may be skipped: it asks for what it needs, and is
// skipped by name where the machine lacks it. Under ADIT_TEST_STRICT=1 a missing
// program is a failure, so that a run on a fully equipped machine cannot pass by
// leaving things out; only the kernel features named here may still be missing there.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Strict reports whether a skip counts as a failure (ADIT_TEST_STRICT=1).
func Strict() bool { return os.Getenv("ADIT_TEST_STRICT") == "1" }

// Program skips the test unless every named program is there, and returns their paths
// in the order asked for. Programs are looked for in the tool directory (ADIT_TOOLS,
// else bin/tools of the checkout), on PATH and in the system directories that an
// ordinary user's PATH leaves out.
func Program(t testing.TB, names ...string) []string {
	t.Helper()
	paths := make([]string, 0, len(names))
	var missing []string
	for _, name := range names {
		if p := Find(name); p != "" {
			paths = append(paths, p)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		skip(t, "needs the program "+strings.Join(missing, ", "))
	}
	return paths
}

// Find returns the path of a program, or "" where there is none.
func Find(name string) string {
	dirs := []string{ToolDir()}
	dirs = append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
	dirs = append(dirs, "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/openssh")
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

// ToolDir is where `make tools` puts the programs of the tools module.
func ToolDir() string {
	if dir := os.Getenv("ADIT_TOOLS"); dir != "" {
		return dir
	}
	return filepath.Join(Root(), "bin", "tools")
}

// Root is the top of the checkout, from wherever in it a test runs.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if ok && filepath.IsAbs(file) {
		return filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d
		}
		if _, err := os.Stat(filepath.Join(d, "cmd", "adit")); err == nil {
			return d
		}
	}
	return dir
}

// RootUser skips the test unless it runs as root.
func RootUser(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root: "+why)
	}
}

// Linux skips the test on every other system.
func Linux(t testing.TB, why string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		skip(t, "needs Linux: "+why)
	}
}

// Soak reports whether the long forms of the tests are asked for (make soak).
func Soak() bool { return os.Getenv("ADIT_TEST_SOAK") == "1" }

// Skip skips for a reason that none of the functions above names; strict runs fail.
func Skip(t testing.TB, why string) {
	t.Helper()
	skip(t, why)
}

func skip(t testing.TB, why string) {
	t.Helper()
	if Strict() {
		t.Fatalf("%s (ADIT_TEST_STRICT=1 allows no skip)", why)
	}
	t.Skip(why)
}
