// Package charts tests the Helm charts: what they render, what their schemas refuse, that a real API
// server takes it, and that they install from a registry. Helm and kubeconform are built from the
// module in tools.
package charts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/adit-dev/adit/test/need"
)

// tools are the programs by the packages they are built from.
var tools = map[string]string{
	"helm": "helm.sh/helm/v4/cmd/helm", "helm3": "helm.sh/helm/v3/cmd/helm", "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform",
}

var building sync.Mutex

// Tool is the path of helm, helm3 (the major version before) or kubeconform. It is built when its
// pins have changed.
func Tool(name string) (string, error) {
	building.Lock()
	defer building.Unlock()
	module := filepath.Join(need.Root(), "test", "charts", "tools")
	out := filepath.Join(need.Root(), "bin", "charts", name)
	pins, err := os.Stat(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	if built, err := os.Stat(out); err == nil && built.ModTime().After(pins.ModTime()) {
		return out, nil
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, tools[name])
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, b)
	}
	// The build may have found nothing to do.
	now := pins.ModTime().Add(1)
	if built, err := os.Stat(out); err == nil && !built.ModTime().After(pins.ModTime()) {
		return out, os.Chtimes(out, now, now)
	}
	return out, nil
}

// Dir is the folder of a chart.
func Dir(chart string) string { return filepath.Join(need.Root(), "chart", chart) }
