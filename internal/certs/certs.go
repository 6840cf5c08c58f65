// Package certs gets visitor certificates for names that the hub serves: from the internal CA,
// by ACME, or from files. The hub asks a source for a name and publishes the answer to edges.
package certs

import (
	"context"
	"errors"
	"io/fs"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// Modes of --tls.
const (
	ModeInternal = "internal"
	ModeACME     = "acme"
	ModeFiles    = "files"
)

// Source gives certificates for names that are served. It is the hub's Issuer.
type Source interface {
	// Certificate returns what to present for name (an exact name or "*.x") now: chain and key as
	// PEM, or why there is none (yet) in Problem. It does not wait for an ACME order. A name that
	// is not asked for any more is not renewed.
	Certificate(ctx context.Context, name string) (*hubv1.Certificate, error)
	// Close ends background work and waits for it.
	Close() error
}

// Store keeps secrets sealed. GetSecret fails with fs.ErrNotExist for what was never put.
type Store interface {
	GetSecret(ctx context.Context, name string) ([]byte, error)
	PutSecret(ctx context.Context, name string, value []byte) error
	// MakeSecret returns the secret of a name, storing value if there is none.
	MakeSecret(ctx context.Context, name string, value []byte) ([]byte, error)
}

func problem(name, text string) *hubv1.Certificate {
	return &hubv1.Certificate{Name: name, Problem: text}
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
