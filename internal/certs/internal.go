package certs

import (
	"context"
	"log/slog"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// InternalConfig is for the internal CA.
type InternalConfig struct {
	// Domain is the base domain: permitted from the first issue.
	Domain string
	// Store keeps the CA's key and certificate.
	Store Store
	// File gets the CA certificate (<data-dir>/ca.crt); empty = none.
	File string
	// Event is called when the CA was reissued for another name; nil = none.
	Event func(text string)
	Now   func() time.Time
	Log   *slog.Logger
}

// Internal is the internal CA. It is safe for concurrent use.
type Internal struct{ cfg InternalConfig }

// NewInternal loads the CA, or makes it on the first start.
func NewInternal(ctx context.Context, cfg InternalConfig) (*Internal, error) { panic("unbuilt") }

// Certificate is a P-256 leaf for exactly name, renewed after two thirds of its life.
func (i *Internal) Certificate(ctx context.Context, name string) (*hubv1.Certificate, error) {
	panic("unbuilt")
}

// CA is the CA certificate as PEM.
func (i *Internal) CA() []byte { panic("unbuilt") }

// Fingerprint is SHA-256 of the CA certificate, in hex with colons.
func (i *Internal) Fingerprint() string { panic("unbuilt") }

// Close does nothing: the CA has no background work.
func (i *Internal) Close() error { return nil }
