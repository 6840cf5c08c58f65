package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// SetupFile is where a set-up link waits in the data directory when no terminal can show it.
const SetupFile = "setup-link"

// WriteSetupFile keeps a set-up link for whoever can read the data directory.
func (h *Hub) WriteSetupFile(url string) (path string, err error) {
	path = filepath.Join(h.cfg.DataDir, SetupFile)
	if err := writeFile(path, url+"\n"); err != nil {
		return "", fmt.Errorf("set-up link: %w", err)
	}
	return path, nil
}

// dropSetUpFile removes a link that was used.
func (h *Hub) dropSetUpFile() {
	err := os.Remove(filepath.Join(h.cfg.DataDir, SetupFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("the used set-up link could not be removed", "file", SetupFile, "error", err)
	}
}
