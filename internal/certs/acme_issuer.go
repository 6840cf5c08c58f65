package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/adit-dev/adit/internal/outbound"
)

const (
	// orders bounds how many orders run at the same time.
	orders = 8
	// orderTimeout bounds one order with its validations.
	orderTimeout  = 5 * time.Minute
	protocolACME  = "acme-tls/1"
	challengePath = "/.well-known/acme-challenge/"
)

// issuer orders from one ACME directory. certmagic has one of its own, but that opens listeners
// to answer challenges; here the listeners of the front do.
type issuer struct {
	cfg     ACMEConfig
	storage certmagic.Storage
	client  *acmez.Client
	slots   chan struct{}

	mu      sync.Mutex
	account *acme.Account
}

func newIssuer(cfg ACMEConfig, roots *x509.CertPool, storage certmagic.Storage, c *challenges) *issuer {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	// A minute between requests of an order is rare; kept connections are not worth their sockets.
	transport.IdleConnTimeout = 10 * time.Second
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, network, outbound.Loopback(addr))
	}
	return &issuer{
		cfg: cfg, storage: storage, slots: make(chan struct{}, orders),
		client: &acmez.Client{
			Client: &acme.Client{
				Directory: cfg.Directory, UserAgent: "adit", Logger: cfg.Log,
				HTTPClient: &http.Client{Transport: transport, Timeout: 30 * time.Second}, PollTimeout: orderTimeout,
			},
			ChallengeSolvers: map[string]acmez.Solver{acme.ChallengeTypeTLSALPN01: c, acme.ChallengeTypeHTTP01: c},
		},
	}
}

// IssuerKey implements certmagic.Issuer: certificates of two directories do not mix.
func (i *issuer) IssuerKey() string {
	sum := sha256.Sum256([]byte(i.cfg.Directory))
	return "acme-" + hex.EncodeToString(sum[:6])
}

// Issue implements certmagic.Issuer.
func (i *issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case i.slots <- struct{}{}:
	}
	defer func() { <-i.slots }()
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	account, err := i.register(ctx)
	if err != nil {
		return nil, fmt.Errorf("ACME account: %w", err)
	}
	params, err := acmez.OrderParametersFromCSR(*account, csr)
	if err != nil {
		return nil, err
	}
	chains, err := i.client.ObtainCertificate(ctx, params)
	if err != nil {
		return nil, err
	}
	if len(chains) == 0 {
		return nil, errors.New("the CA answered without a certificate")
	}
	return &certmagic.IssuedCertificate{Certificate: chains[0].ChainPEM, Metadata: chains[0]}, nil
}

// storedAccount is how an account is kept, by directory.
type storedAccount struct {
	Account acme.Account `json:"account"`
	KeyPEM  string       `json:"key_pem"`
}

// register returns the account at the directory, made on first use.
func (i *issuer) register(ctx context.Context) (*acme.Account, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.account != nil {
		return i.account, nil
	}
	path := "accounts/" + i.IssuerKey() + ".json"
	if data, err := i.storage.Load(ctx, path); err == nil {
		var s storedAccount
		if err := json.Unmarshal(data, &s); err != nil {
			return nil, fmt.Errorf("stored account: %w", err)
		}
		if s.Account.PrivateKey, err = certmagic.PEMDecodePrivateKey([]byte(s.KeyPEM)); err != nil {
			return nil, fmt.Errorf("stored account key: %w", err)
		}
		i.account = &s.Account
		return i.account, nil
	} else if !missing(err) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	account := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if i.cfg.Email != "" {
		account.Contact = []string{"mailto:" + i.cfg.Email}
	}
	if i.cfg.EABKeyID != "" {
		err := account.SetExternalAccountBinding(ctx, i.client.Client, acme.EAB{KeyID: i.cfg.EABKeyID, MACKey: strings.TrimSpace(i.cfg.EABKey)})
		if err != nil {
			return nil, fmt.Errorf("external binding %s: %w", i.cfg.EABKeyID, err)
		}
	}
	if account, err = i.client.NewAccount(ctx, account); err != nil {
		return nil, err
	}
	keyPEM, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(storedAccount{Account: account, KeyPEM: string(keyPEM)})
	if err != nil {
		return nil, err
	}
	if err := i.storage.Store(ctx, path, data); err != nil {
		return nil, err
	}
	i.account = &account
	return i.account, nil
}

// challenges are the pending ones of this process.
type challenges struct {
	mu      sync.Mutex
	certs   map[string]*tls.Certificate // by name
	answers map[string]string           // by token: key authorization
	hosts   map[string]string           // by token: name
}

func newChallenges() *challenges {
	return &challenges{certs: map[string]*tls.Certificate{}, answers: map[string]string{}, hosts: map[string]string{}}
}

// Present implements acmez.Solver.
func (c *challenges) Present(_ context.Context, ch acme.Challenge) error {
	name := strings.ToLower(ch.Identifier.Value)
	if ch.Type == acme.ChallengeTypeTLSALPN01 {
		cert, err := acmez.TLSALPN01ChallengeCert(ch)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.certs[name] = cert
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[ch.Token], c.hosts[ch.Token] = ch.KeyAuthorization, name
	return nil
}

// CleanUp implements acmez.Solver.
func (c *challenges) CleanUp(_ context.Context, ch acme.Challenge) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch.Type == acme.ChallengeTypeTLSALPN01 {
		delete(c.certs, strings.ToLower(ch.Identifier.Value))
		return nil
	}
	delete(c.answers, ch.Token)
	delete(c.hosts, ch.Token)
	return nil
}

func (c *challenges) tlsALPN(hello *tls.ClientHelloInfo) *tls.Certificate {
	if !slices.Contains(hello.SupportedProtos, protocolACME) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.certs[strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))]
}

func (c *challenges) http(w http.ResponseWriter, r *http.Request) bool {
	token, ok := strings.CutPrefix(r.URL.Path, challengePath)
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	c.mu.Lock()
	answer, name := c.answers[token], c.hosts[token]
	c.mu.Unlock()
	if answer == "" || !strings.EqualFold(strings.TrimSuffix(host, "."), name) {
		return false
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write([]byte(answer))
	return true
}

// explain turns an order's failure into words with a remedy.
func explain(err error, next time.Time) string {
	text, remedy := err.Error(), "see the server's log"
	var p acme.Problem
	if errors.As(err, &p) {
		text = p.Detail
		switch p.Type {
		case acme.ProblemTypeDNS:
			remedy = "the name must have an A or AAAA record that points at this server"
		case acme.ProblemTypeConnection, acme.ProblemTypeTLS:
			remedy = "ports 443 and 80 of this server must be reachable from the internet under this name (this version cannot prove a name that points only at a further edge; use --tls files for it)"
		case acme.ProblemTypeUnauthorized:
			remedy = "the name must point at this server, not only at a further edge, and no other program may answer ports 443 and 80"
		case acme.ProblemTypeCAA:
			remedy = "the domain's CAA record forbids this CA; add it there"
		case acme.ProblemTypeRateLimited:
			remedy = "the CA asks to wait"
		case acme.ProblemTypeExternalAccountRequired:
			remedy = "this CA needs --acme-eab-kid and --acme-eab-key-file"
		case acme.ProblemTypeRejectedIdentifier:
			remedy = "this CA does not issue for this name; use --tls files or another --acme-directory"
		}
	}
	return fmt.Sprintf("the certificate order failed: %s; %s (next try about %s)", text, remedy, next.UTC().Format("15:04 MST"))
}
