package agent

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Mounted Secrets and ConfigMaps change by a link that is renamed over: the file's own folder
// entry never does.
func TestWatchMountedFile(t *testing.T) {
	dir := t.TempDir()
	version := func(name, content string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "token"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "one")
	if err := os.Symlink("..data/token", filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 8)
	f := &watchedFile{path: filepath.Join(dir, "token"), seen: sha256.Sum256([]byte("one")), changed: func(b []byte) { got <- string(b) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(done)
		close(ready)
		watchFiles(ctx, []*watchedFile{f}, slog.New(slog.DiscardHandler))
	}()
	<-ready
	version("..2", "two")
	if s := receive(t, got, "the change was not noticed"); s != "two" {
		t.Errorf("got %q", s)
	}
	cancel()
	<-done
	select {
	case s := <-got:
		t.Errorf("told again: %q", s)
	default:
	}
}
