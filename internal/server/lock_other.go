//go:build !unix

package server

import (
	"os"
	"path/filepath"
)

// lockDataDir has no locks to use on this system.
func lockDataDir(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "server.lock"), os.O_CREATE|os.O_RDWR, 0o600)
}
