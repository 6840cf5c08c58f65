package kubernetes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/adit-dev/adit/test/cluster"
)

// TestTeardown kills what holds the Pods of a cluster, as a crash would, and looks for what is left when
// the cluster has been ended.
func TestTeardown(t *testing.T) {
	cluster.Need(t, true)
	const name = "left"
	dir := filepath.Join(os.TempDir(), "adit-k8s-"+name)
	overcommit := "/proc/sys/vm/overcommit_memory"
	before, err := os.ReadFile(overcommit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Up(cluster.Options{Name: name, Log: func(s string) { t.Log(s) }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Down(name) })
	if len(of(t, dir)) < 8 {
		t.Fatalf("of the cluster run %v", of(t, dir))
	}
	b, err := os.ReadFile(filepath.Join(dir, "pid", "containerd"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Down(name); err != nil {
		t.Error(err)
	}
	if left := of(t, dir); len(left) > 0 {
		t.Errorf("processes: %q", left)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), "adit-k8s-"+name) || strings.Contains(string(mounts), "adit-out-"+name) {
		t.Errorf("mounts: %v\n%s", err, mounts)
	}
	for _, pattern := range []string{dir, "/run/netns/adit-*-" + name, "/sys/fs/cgroup/adit-" + name, "/sys/fs/cgroup/*/adit-" + name} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("%v %v", left, err)
		}
	}
	if after, err := os.ReadFile(overcommit); err != nil || string(after) != string(before) {
		t.Errorf("vm.overcommit_memory was %s and is %s, %v", before, after, err)
	}
}

// of are the command lines of processes that name something of a folder.
func of(t *testing.T, dir string) (lines []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir+"/") {
			lines = append(lines, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return lines
}
