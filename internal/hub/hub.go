// Package hub is the control plane: tokens and their grants, tunnels and who declares them, the
// change feed that edges and agents watch, and what they report back.
package hub

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	wirev1 "github.com/adit-dev/adit/api/wire/v1"
	"github.com/adit-dev/adit/internal/identity"
)

// Config is what a hub needs to know. Listeners are bound before it is made, so that URL and
// OwnPorts hold real ports.
type Config struct {
	// DataDir holds adit.db, secret.key and admin.key.
	DataDir string
	// DatabaseURL is sqlite:PATH; empty = sqlite:<DataDir>/adit.db.
	DatabaseURL string
	// SecretKeyFile seals secrets in the store; empty = <DataDir>/secret.key, made if missing.
	SecretKeyFile string
	// Domain is the base domain, HubHost the hub's name below it (or elsewhere).
	Domain, HubHost string
	// URL goes into tokens: https://<hub-host>[:port].
	URL string
	// TCPPorts and UDPPorts are public raw ports that may be granted.
	TCPPorts, UDPPorts []*hubv1.PortRange
	// OwnPorts are ports the server itself listens on; they cannot be granted.
	OwnPorts []OwnPort
	// Version of the software, for status.
	Version string
	// Now is the clock; nil = time.Now.
	Now      func() time.Time
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// OwnPort is a port of the server itself. Kind is KIND_TCP or KIND_UDP.
type OwnPort struct {
	Kind wirev1.Kind
	Port uint16
}

// Issuer makes the certificates that edges present to visitors.
type Issuer interface {
	// Certificate returns what to present for name (an exact name or "*.x") now, issuing or
	// renewing when needed. When there is none yet it returns one with Problem set, or an error,
	// which the hub publishes as the problem. It is asked again every minute and after
	// CertificatesChanged.
	Certificate(ctx context.Context, name string) (*hubv1.Certificate, error)
}

// Hub is one control plane over one store.
type Hub struct{ cfg Config }

// New opens the store, migrates it and makes what a first start needs: the hub's identity key,
// secret.key and admin.key.
func New(ctx context.Context, cfg Config) (*Hub, error) { panic("unbuilt") }

// Key is the hub's identity, whose hash every token pins.
func (h *Hub) Key() *identity.NodeKey { panic("unbuilt") }

// SetIssuer is called before Run. Without an issuer no certificates are published.
func (h *Hub) SetIssuer(i Issuer) { panic("unbuilt") }

// CertificatesChanged makes the hub ask the issuer for every name again.
func (h *Hub) CertificatesChanged() { panic("unbuilt") }

// GetSecret returns what PutSecret stored, or an error that is fs.ErrNotExist.
func (h *Hub) GetSecret(ctx context.Context, name string) ([]byte, error) { panic("unbuilt") }

// PutSecret stores value sealed with secret.key.
func (h *Hub) PutSecret(ctx context.Context, name string, value []byte) error { panic("unbuilt") }

// LocalFeed is the feed of an edge in the hub's own process.
func (h *Hub) LocalFeed(edge ed25519.PublicKey) *LocalFeed { panic("unbuilt") }

// Run does what needs time until ctx ends: withdrawals, expiries, certificates.
func (h *Hub) Run(ctx context.Context) error { panic("unbuilt") }

// Close closes the store; call it after Run has returned and no RPC runs.
func (h *Hub) Close() error { panic("unbuilt") }

// LocalFeed has the methods that an edge wants of its feed.
type LocalFeed struct{}

// Watch calls apply for each message from revision from on until ctx ends or apply fails.
func (f *LocalFeed) Watch(ctx context.Context, from uint64, apply func(*hubv1.WatchResponse) error) error {
	panic("unbuilt")
}

// Report tells the hub what the edge sees.
func (f *LocalFeed) Report(ctx context.Context, r *hubv1.ReportRequest) error { panic("unbuilt") }
