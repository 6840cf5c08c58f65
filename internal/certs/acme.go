package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// forgotten is how long after the last question a name is let go. The hub asks every minute while
// there is a problem or the end is near; before that nothing needs to be done for a name.
const forgotten = 10 * time.Minute

// retries are the waits after failures of an order in a row; the last one repeats. Public CAs
// allow few failures an hour.
var retries = []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour}

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
// (TLS-ALPN-01) and 80 (HTTP-01). It is safe for concurrent use.
type ACME struct {
	cfg        ACMEConfig
	magic      *certmagic.Config
	cache      *certmagic.Cache
	challenges *challenges
	ctx        context.Context
	cancel     context.CancelFunc
	running    sync.WaitGroup
	// speed divides the waits after failures; tests raise it.
	speed time.Duration

	mu    sync.Mutex
	names map[string]*managed
}

// managed is one name that is served.
type managed struct {
	cancel  context.CancelFunc
	asked   time.Time
	problem string
}

// NewACME opens the storage. Nothing is ordered until a name is asked for.
func NewACME(cfg ACMEConfig) (*ACME, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Directory == "" {
		cfg.Directory = certmagic.LetsEncryptProductionCA
	}
	if u, err := url.Parse(cfg.Directory); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--acme-directory %q: is not an https URL", cfg.Directory)
	}
	var roots *x509.CertPool
	if cfg.CAFile != "" {
		data, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--acme-ca-file: %w", err)
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--acme-ca-file %s: holds no PEM certificate", cfg.CAFile)
		}
	}
	if (cfg.EABKeyID == "") != (cfg.EABKey == "") {
		return nil, errors.New("--acme-eab-kid and --acme-eab-key-file belong together; set both or none")
	}
	a := &ACME{cfg: cfg, challenges: newChallenges(), names: map[string]*managed{}, speed: 1}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	storage := &certmagic.FileStorage{Path: cfg.Dir}
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return a.magic, nil },
		Logger:           zap.NewNop(),
	})
	a.magic = certmagic.New(a.cache, certmagic.Config{
		Storage: storage, Logger: zap.NewNop(), OnEvent: a.event,
		OCSP:      certmagic.OCSPConfig{DisableStapling: true},
		KeySource: certmagic.StandardKeyGenerator{KeyType: certmagic.P256},
	})
	a.magic.Issuers = []certmagic.Issuer{newIssuer(cfg, roots, storage, a.challenges)}
	a.running.Go(a.sweep)
	return a, nil
}

// Certificate is what was issued for name; the first call for a name starts its order.
func (a *ACME) Certificate(ctx context.Context, name string) (*hubv1.Certificate, error) {
	pat, err := hostname.Parse(name)
	if err != nil {
		return nil, err
	}
	if pat.Depth != hostname.Exact {
		return problem(name, "a wildcard needs proof by DNS, which this version cannot give yet; declare exact names, or put a certificate into --cert-dir and use --tls files"), nil
	}
	if a.cfg.Directory == certmagic.LetsEncryptProductionCA && CannotBePublic(pat.Name) {
		return problem(name, "no public CA issues for this name; use --tls internal or --tls files"), nil
	}
	name = pat.Name
	a.mu.Lock()
	m := a.names[name]
	if m == nil && a.ctx.Err() == nil {
		// What is stored is there at once; only what is not stored, or due, is ordered.
		_, _ = a.magic.CacheManagedCertificate(ctx, name)
		m = a.manage(name)
	}
	text := "the server is shutting down"
	if m != nil {
		m.asked, text = time.Now(), m.problem
	}
	a.mu.Unlock()
	for _, c := range a.cache.AllMatchingCertificates(name) {
		if out, err := encode(name, c); err == nil && time.Now().Before(out.GetNotAfter().AsTime()) {
			return out, nil
		}
	}
	return problem(name, text), nil
}

// manage is called with mu held.
func (a *ACME) manage(name string) *managed {
	ctx, cancel := context.WithCancel(a.ctx)
	m := &managed{cancel: cancel, problem: "the certificate is being ordered"}
	a.names[name] = m
	a.running.Go(func() {
		defer cancel()
		for n := 0; ; n++ {
			err := a.magic.ManageSync(ctx, []string{name})
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				a.cfg.Log.Info("certificate ready", "name", name, "ca", a.cfg.Directory)
				a.note(name, "")
				return
			}
			wait := retries[min(n, len(retries)-1)] / a.speed
			wait += rand.N(wait/4 + 1) //nolint:gosec // jitter is no secret
			a.note(name, explain(err, time.Now().Add(wait)))
			a.cfg.Log.Error("certificate order failed", "name", name, "ca", a.cfg.Directory, "error", err, "next_try", wait.Round(time.Second))
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
		}
	})
	return m
}

// note keeps what there is to say about name and tells the hub.
func (a *ACME) note(name, text string) {
	a.mu.Lock()
	m := a.names[name]
	if m != nil {
		m.problem = text
	}
	a.mu.Unlock()
	if m != nil && a.cfg.Changed != nil {
		a.cfg.Changed()
	}
}

// event hears of renewals, which certmagic does on its own.
func (a *ACME) event(_ context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	if !renewal {
		return nil
	}
	switch event {
	case "cert_obtained":
		a.cfg.Log.Info("certificate renewed", "name", name)
		if a.cfg.Changed != nil {
			// The renewed one is in the cache a moment later; the hub's minute finds it at the latest.
			a.cfg.Changed()
		}
	case "cert_failed":
		a.cfg.Log.Error("certificate renewal failed; it will be tried again", "name", name, "error", data["error"])
	}
	return nil
}

// sweep forgets names that are no longer asked for: their orders end and nothing renews them.
func (a *ACME) sweep() {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case now := <-t.C:
			a.forget(now.Add(-forgotten))
		}
	}
}

func (a *ACME) forget(before time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, m := range a.names {
		if m.asked.Before(before) {
			m.cancel()
			delete(a.names, name)
			a.cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: name}})
		}
	}
}

// Challenge answers a hello that offers acme-tls/1; nil, nil without a pending challenge.
func (a *ACME) Challenge(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.challenges.tlsALPN(hello), nil
}

// ServeChallenge answers /.well-known/acme-challenge/ requests on port 80; false = not one of
// ours.
func (a *ACME) ServeChallenge(w http.ResponseWriter, r *http.Request) bool {
	return a.challenges.http(w, r)
}

// Close ends renewal and running orders.
func (a *ACME) Close() error {
	a.cancel()
	a.running.Wait()
	a.cache.Stop()
	return nil
}

func encode(name string, c certmagic.Certificate) (*hubv1.Certificate, error) {
	key, err := certmagic.PEMEncodePrivateKey(c.PrivateKey)
	if err != nil {
		return nil, err
	}
	var chain []byte
	for _, der := range c.Certificate.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return &hubv1.Certificate{Name: name, ChainPem: chain, KeyPem: key, NotAfter: timestamppb.New(c.Leaf.NotAfter)}, nil
}
