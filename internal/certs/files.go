package certs

import (
	"context"
	"log/slog"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// FilesConfig is for certificates that the operator of the server provides.
type FilesConfig struct {
	// Dir holds <name>.crt and <name>.key; a wildcard's files are _wildcard.<x> or *.<x>.
	Dir string
	// Changed is called when files changed; nil = none.
	Changed func()
	Log     *slog.Logger
}

// Files reads certificates from a directory and notices changes.
type Files struct{ cfg FilesConfig }

// NewFiles watches the directory.
func NewFiles(cfg FilesConfig) (*Files, error) { panic("unbuilt") }

// Certificate is the pair of files for name, else that of the wildcard that covers it.
func (f *Files) Certificate(ctx context.Context, name string) (*hubv1.Certificate, error) {
	panic("unbuilt")
}

// Close ends the watch.
func (f *Files) Close() error { panic("unbuilt") }
