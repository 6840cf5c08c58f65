package certs

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
)

// ACMEConfig is for certificates from a public (or any ACME) CA.
type ACMEConfig struct {
	Email string
	// Directory is the CA's directory URL; empty = Let's Encrypt.
	Directory string
	// CAFile holds PEM roots for the directory's own TLS; empty = the system's.
	CAFile string
	// EABKeyID and EABKey (base64url) bind the account to one at the CA.
	EABKeyID, EABKey string
	// Dir keeps account, keys and certificates, e.g. <data-dir>/acme.
	Dir string
	// Changed is called when a certificate or a problem changed; nil = none.
	Changed func()
	Log     *slog.Logger
}

// ACME orders and renews certificates for exact names: challenges are answered on 443
// (TLS-ALPN-01) and 80 (HTTP-01).
type ACME struct{ cfg ACMEConfig }

// NewACME opens the storage. Nothing is ordered until a name is asked for.
func NewACME(cfg ACMEConfig) (*ACME, error) { panic("unbuilt") }

// Certificate is what was issued for name; the first call for a name starts its order.
func (a *ACME) Certificate(ctx context.Context, name string) (*hubv1.Certificate, error) {
	panic("unbuilt")
}

// Challenge answers a hello that offers acme-tls/1; nil, nil without a pending challenge.
func (a *ACME) Challenge(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { panic("unbuilt") }

// ServeChallenge answers /.well-known/acme-challenge/ requests on port 80; false = not one of
// ours.
func (a *ACME) ServeChallenge(w http.ResponseWriter, r *http.Request) bool { panic("unbuilt") }

// Close ends renewal and running orders.
func (a *ACME) Close() error { panic("unbuilt") }
