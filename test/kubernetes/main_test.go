// Package kubernetes tests Adit in a real cluster.
package kubernetes

import (
	"fmt"
	"os"
	"testing"

	"github.com/adit-dev/adit/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := cluster.End(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster left something behind:", err)
		code = 1
	}
	os.Exit(code)
}
