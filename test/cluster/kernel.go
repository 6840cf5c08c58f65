package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kept are the settings of the kernel that the kubelet changes.
var kept = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

func sysctls() (string, error) {
	var b strings.Builder
	for _, k := range kept {
		v, err := os.ReadFile("/proc/sys/" + k)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s %s", k, v)
	}
	return b.String(), nil
}

func restore(file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		errs = append(errs, os.WriteFile("/proc/sys/"+k, []byte(v), 0o644))
	}
	return errors.Join(errs...)
}

// cgroup is the control group of all Pods.
func (c *Cluster) cgroup() string { return "adit-" + c.opts.Name }

// controllers are the folders that control groups are made in: one each with version 1, or one.
func controllers() ([]string, error) {
	const root = "/sys/fs/cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return nil, err
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(root, e.Name()))
		}
	}
	return out, err
}

// makeCgroups makes the group that the kubelet puts its own into: it expects it to be there.
func makeCgroups(name string) error {
	all, err := controllers()
	if err != nil {
		return err
	}
	for _, dir := range all {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		// A new cpuset is empty, and nothing can run in an empty one.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if v, err := os.ReadFile(filepath.Join(dir, f)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, name, f), v, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeCgroups removes the group and those in it; a process may take a moment to go.
func removeCgroups(name string) error {
	all, err := controllers()
	if err != nil {
		return err
	}
	var left error
	until(10*time.Second, func() bool {
		left = nil
		for _, dir := range all {
			killIn(filepath.Join(dir, name))
			var groups []string
			_ = filepath.WalkDir(filepath.Join(dir, name), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			for i := len(groups) - 1; i >= 0; i-- {
				if err := os.Remove(groups[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					left = err
				}
			}
		}
		return left == nil
	})
	return left
}

// killIn ends what runs in a control group: Pods that nobody else ends, where containerd was killed.
func killIn(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		b, _ := os.ReadFile(path)
		for _, text := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(text); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}

// killWith ends programs that were started for a folder: containerd leaves one beside each Pod.
func killWith(dir string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), "/usr/bin/containerd-shim") || !strings.Contains(string(b), dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
