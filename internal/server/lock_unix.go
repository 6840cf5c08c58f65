//go:build unix

package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockDataDir keeps a second server out of a data folder; the lock ends with the process.
func lockDataDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "server.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data-dir: %w; make it writable for this user, or choose another with --data-dir", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data-dir: lock %s: %w; it must be on a file system with locks", path, err)
		}
		who := ""
		if st, err := ReadState(dir); err == nil {
			who = fmt.Sprintf(" (process %d)", st.PID)
		}
		return nil, fmt.Errorf("data-dir: another server%s uses %s; stop it, or choose another folder with --data-dir", who, dir)
	}
	return f, nil
}
