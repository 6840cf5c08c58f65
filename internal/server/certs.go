package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/adit-dev/adit/internal/certs"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hub"
)

// certificates is the hub's source of visitor certificates and what the listeners want of it.
type certificates struct {
	source certs.Source
	// acme and internal are the source, where it is of that kind.
	acme     *certs.ACME
	internal *certs.Internal
	hubHost  string
	// leads tells whether this hub issues for all on its database.
	leads func() bool
	log   *slog.Logger

	mu   sync.Mutex
	hub  *tls.Certificate
	next time.Time
}

// newCertificates makes the source that --tls names. changed is called when a certificate did.
func newCertificates(ctx context.Context, cfg *config.Server, store certs.Store, changed func(), log *slog.Logger) (*certificates, error) {
	c := &certificates{hubHost: cfg.HubHost, leads: func() bool { return true }, log: log}
	note := func() {
		c.mu.Lock()
		c.next = time.Time{}
		c.mu.Unlock()
		changed()
	}
	var err error
	switch cfg.TLS {
	case certs.ModeACME:
		c.acme, err = certs.NewACME(certs.ACMEConfig{Email: cfg.ACMEEmail, Directory: cfg.ACMEDirectory, CAFile: cfg.ACMECAFile,
			EABKeyID: cfg.ACMEEABKeyID, EABKey: cfg.ACMEEABKey, Dir: filepath.Join(cfg.DataDir, "acme"), Changed: note, Log: log})
		c.source = c.acme
	case certs.ModeFiles:
		c.source, err = certs.NewFiles(certs.FilesConfig{Dir: cfg.CertDir, Changed: note, Log: log})
	case certs.ModeInternal:
		c.internal, err = certs.NewInternal(ctx, certs.InternalConfig{Domain: cfg.Domain, Store: store, File: CAPath(cfg.DataDir),
			Event: func(text string) { log.Warn("the internal CA was reissued", "why", text) }, Log: log})
		c.source = c.internal
	default:
		err = fmt.Errorf("tls: %q is not a source of certificates", cfg.TLS)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// retryHub is how long an answer about the hub's own certificate is kept.
const retryHub = time.Minute

// get answers a hello that the feed has no certificate for: ACME challenges, and the hub's own
// name, which must work before anything was published. nil, nil = none.
func (c *certificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.acme != nil && len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == "acme-tls/1" {
		return c.acme.Challenge(hello)
	}
	if !strings.EqualFold(strings.TrimSuffix(hello.ServerName, "."), c.hubHost) {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.next) {
		return c.hub, nil
	}
	if c.acme != nil && !c.leads() {
		return c.hub, nil // two orders for one name help nobody; the one that leads publishes it
	}
	got, err := c.source.Certificate(hello.Context(), c.hubHost)
	if err != nil {
		return c.hub, nil
	}
	c.next = time.Now().Add(retryHub)
	if got.GetProblem() != "" {
		c.log.Warn("the hub has no certificate", "host", c.hubHost, "why", got.GetProblem())
		return c.hub, nil
	}
	pair, err := tls.X509KeyPair(got.GetChainPem(), got.GetKeyPem())
	if err != nil {
		c.log.Error("the certificate of the hub does not parse", "host", c.hubHost, "err", err)
		return c.hub, nil
	}
	c.hub = &pair
	return c.hub, nil
}

// challenge answers HTTP-01; false = not one of ours.
func (c *certificates) challenge(w http.ResponseWriter, r *http.Request) bool {
	return c.acme != nil && c.acme.ServeChallenge(w, r)
}

func (c *certificates) fingerprint() string {
	if c.internal == nil {
		return ""
	}
	return c.internal.Fingerprint()
}

func (c *certificates) close() error { return c.source.Close() }

var _ hub.Issuer = certs.Source(nil)
