package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adit-dev/adit/test/need"
)

// parts are the programs of Kubernetes, all in one binary that goes by its name.
var parts = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}

// Bin is the folder of the programs that are built here.
func Bin() string { return filepath.Join(need.Root(), "bin", "cluster") }

// Build builds what a cluster runs: minutes the first time, a second with the Go build cache. Test programs
// that ask at the same time wait for the one that builds.
var Build = sync.OnceValue(func() error {
	dir := Bin()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	flags, err := versionFlags()
	if err != nil {
		return err
	}
	if err := build("test/cluster/kube", filepath.Join(dir, "kubernetes"), flags); err != nil {
		return err
	}
	for _, p := range parts {
		link := filepath.Join(dir, p)
		if to, err := os.Readlink(link); err == nil && to == "kubernetes" {
			continue
		}
		_ = os.Remove(link)
		if err := os.Symlink("kubernetes", link); err != nil {
			return err
		}
	}
	return errors.Join(
		build("test/cluster/coredns", filepath.Join(dir, "coredns"), "-s -w"),
		build("test/cluster/pause", filepath.Join(dir, "pause"), "-s -w"),
		build("deploy/image", filepath.Join(dir, "image"), "-s -w"))
})

// lock waits until this process alone has a file, and returns what gives it back.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func build(module, out, ldflags string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", ldflags, "-o", out, ".")
	cmd.Dir = filepath.Join(need.Root(), module)
	// Workspaces and vendoring of the caller have no say; a binary for Pods needs no libraries.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", module, err, b)
	}
	return nil
}

var requires = regexp.MustCompile(`k8s\.io/kubernetes (v1\.(\d+)\.\d+)`)

// versionFlags make the programs say which version of Kubernetes they are.
func versionFlags() (string, error) {
	mod, err := os.ReadFile(filepath.Join(need.Root(), "test/cluster/kube/go.mod"))
	if err != nil {
		return "", err
	}
	m := requires.FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("test/cluster/kube/go.mod requires no release of k8s.io/kubernetes")
	}
	var b strings.Builder
	b.WriteString("-s -w")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		// The order is fixed: the build cache goes by it.
		for _, kv := range []string{
			"gitVersion=" + string(m[1]), "gitMajor=1", "gitMinor=" + string(m[2]), "gitTreeState=clean",
			"gitCommit=" + strings.Repeat("0", 40), "buildDate=1970-01-01T00:00:00Z",
		} {
			fmt.Fprintf(&b, " -X %s.%s", pkg, kv)
		}
	}
	return b.String(), nil
}
