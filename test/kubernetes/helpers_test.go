package kubernetes

import (
	"os"
	"path/filepath"
	"testing"
)

// nsswitch is a file that has names looked up by DNS.
func nsswitch(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nsswitch.conf")
	if err := os.WriteFile(path, []byte("hosts: files dns\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
