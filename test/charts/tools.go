// Package charts tests the Helm charts: what they render, what their schemas refuse, that a real API
// server takes it, and that they install from a registry.
package charts

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/adit-dev/adit/test/need"
)

var building sync.Mutex

// Tool is the path of helm, helm3 (the major version before), kubeconform or registry. It is built
// from the module in tools when its pins have changed.
func Tool(name string) (string, error) {
	building.Lock()
	defer building.Unlock()
	var errs strings.Builder
	cmd := exec.Command(filepath.Join(need.Root(), "test", "charts", "tool"), name)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, errs.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Dir is the folder of a chart.
func Dir(chart string) string { return filepath.Join(need.Root(), "chart", chart) }
