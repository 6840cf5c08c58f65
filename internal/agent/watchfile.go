package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle lets a writer finish; poll is for file systems that report nothing.
	settle = 100 * time.Millisecond
	poll   = 10 * time.Second
)

// watchedFile is a file whose content matters.
type watchedFile struct {
	path    string
	seen    [sha256.Size]byte
	changed func(content []byte)
}

// watchFiles calls changed when the content of a file is another than the one seen, until ctx
// ends. Folders are watched, not files: mounted ConfigMaps and Secrets change by renaming links.
func watchFiles(ctx context.Context, files []*watchedFile, log *slog.Logger) {
	if len(files) == 0 {
		return
	}
	var events <-chan fsnotify.Event
	var problems <-chan error
	if w, err := fsnotify.NewWatcher(); err != nil {
		log.Warn("changes of files are found by polling only", "every", poll, "error", err)
	} else {
		defer func() { _ = w.Close() }()
		for _, f := range files {
			if err := w.Add(filepath.Dir(f.path)); err != nil {
				log.Warn("changes of the file are found by polling only", "file", f.path, "every", poll, "error", err)
			}
		}
		events, problems = w.Events, w.Errors
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	// What changed before the folders were watched counts as well.
	quiet := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			quiet = time.After(settle)
			continue
		case err := <-problems:
			log.Debug("watching files", "error", err)
		case <-quiet:
			quiet = nil
		case <-ticker.C:
		}
		for _, f := range files {
			content, err := os.ReadFile(f.path)
			if err != nil {
				// Half of a replacement, or gone: the last good content stays in use.
				log.Debug("file cannot be read now", "file", f.path, "error", err)
				continue
			}
			if sum := sha256.Sum256(content); !bytes.Equal(sum[:], f.seen[:]) {
				f.seen = sum
				f.changed(content)
			}
		}
	}
}
