// Package certs gets visitor certificates for names that the hub serves: from the internal CA,
// by ACME, or from files.
package certs

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"
)

// Modes of --tls.
const (
	ModeInternal = "internal"
	ModeACME     = "acme"
	ModeFiles    = "files"
)

// Certificate is what one name gets.
type Certificate struct {
	// Name is the exact name, or the wildcard, that was asked for.
	Name string
	// ChainPEM and KeyPEM are empty while Problem is set.
	ChainPEM, KeyPEM []byte
	NotAfter         time.Time
	// Problem says in words why there is no certificate (yet), with the remedy.
	Problem string
}

// Source gives certificates for the names that are served.
type Source interface {
	// Manage sets the full set of names served now (exact names and wildcards). It does not block
	// on issuance; what changes is told by OnChange.
	Manage(names []string)
	// Get returns what there is for name now.
	Get(ctx context.Context, name string) Certificate
	// OnChange sets what is called when a name's certificate or problem changed. Set before Manage.
	OnChange(func(Certificate))
	// Close ends renewal and waits.
	Close() error
}

// Challenger answers ACME challenges on the public listeners; only the ACME source is one.
type Challenger interface {
	// TLSALPN answers a hello with acme-tls/1; nil, nil when the name has no pending challenge.
	TLSALPN(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// HTTP answers /.well-known/acme-challenge/; false = not a pending challenge.
	HTTP(w http.ResponseWriter, r *http.Request) bool
}
