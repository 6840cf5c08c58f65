package certs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	caMargin = 365 * 24 * time.Hour
	leafLife = 60 * 24 * time.Hour
	// backdate forgives clocks that are behind.
	backdate = time.Hour

	secretCAKey  = "certs/ca-key"
	secretCACert = "certs/ca"
	secretLeaf   = "certs/leaf/"
)

// permitted are the names that cannot be public; the base domain joins them.
var permitted = []string{"localhost", "test", "internal", "local", "lan", "home.arpa"}

// CannotBePublic reports whether no public CA issues for domain.
func CannotBePublic(domain string) bool {
	for _, p := range permitted {
		if domain == p || hostname.Below(domain, p) {
			return true
		}
	}
	return !strings.Contains(domain, ".")
}

// InternalConfig is for the internal CA.
type InternalConfig struct {
	// Domain is the base domain: permitted from the first issue.
	Domain string
	// Store keeps the CA's key and certificate, and the leaves.
	Store Store
	// File gets the CA certificate (<data-dir>/ca.crt); empty = none.
	File string
	// Event is called when the CA was reissued for another name; nil = none.
	Event func(text string)
	Now   func() time.Time
	Log   *slog.Logger
}

// Internal is the internal CA: name-constrained, and under one key until that is rotated (RotateCA).
// It is safe for concurrent use.
type Internal struct {
	cfg InternalConfig

	mu     sync.Mutex
	key    *ecdsa.PrivateKey
	ca     *x509.Certificate
	leaves map[string]*leaf
	// next takes over at a time, before has been replaced; nil = there is none.
	next   *successor
	before *x509.Certificate
}

type leaf struct {
	chain, key          []byte
	notBefore, notAfter time.Time
}

// NewInternal loads the CA, or makes it on the first start.
func NewInternal(ctx context.Context, cfg InternalConfig) (*Internal, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	i := &Internal{cfg: cfg, leaves: map[string]*leaf{}}
	keyPEM, err := cfg.Store.GetSecret(ctx, secretCAKey)
	switch {
	case missing(err):
		if err := i.create(ctx); err != nil {
			return nil, fmt.Errorf("make the internal CA: %w", err)
		}
		return i, nil
	case err != nil:
		return nil, fmt.Errorf("read the internal CA's key: %w", err)
	}
	if err := i.load(ctx, keyPEM); err != nil {
		return nil, err
	}
	if err := i.takeOver(ctx); err != nil {
		return nil, err
	}
	var names []string
	if i.ca != nil {
		names = i.ca.PermittedDNSDomains
	}
	switch {
	case i.ca == nil || !i.permits(cfg.Domain):
		return i, i.reissue(ctx, append(names, cfg.Domain), "the base domain is "+cfg.Domain)
	case i.ca.NotAfter.Sub(cfg.Now()) < caMargin:
		return i, i.reissue(ctx, names, "it would expire at "+i.ca.NotAfter.Format(time.DateOnly))
	}
	return i, i.writeFile()
}

func (i *Internal) create(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	// Hubs that start together end up with one key.
	if keyPEM, err = i.cfg.Store.MakeSecret(ctx, secretCAKey, keyPEM); err != nil {
		return err
	}
	if i.key, err = parseKey(keyPEM); err != nil {
		return err
	}
	return i.sign(ctx, append([]string{i.cfg.Domain}, permitted...))
}

// reissue signs the CA again under its key, for names beside the standing ones.
func (i *Internal) reissue(ctx context.Context, names []string, why string) error {
	if err := i.sign(ctx, append(names, permitted...)); err != nil {
		return fmt.Errorf("reissue the internal CA: %w", err)
	}
	text := fmt.Sprintf("the internal CA was reissued under the same key (%s); clients that imported the old certificate need the new one for the added names only; SHA-256 %s", why, i.fingerprint())
	i.cfg.Log.Warn("internal CA reissued", "reason", why, "sha256", i.fingerprint())
	if i.cfg.Event != nil {
		i.cfg.Event(text)
	}
	return nil
}

func (i *Internal) sign(ctx context.Context, names []string) error {
	ca, err := selfSign(i.key, names, i.cfg.Now())
	if err != nil {
		return err
	}
	i.ca = ca
	if err := i.cfg.Store.PutSecret(ctx, secretCACert, i.pem()); err != nil {
		return err
	}
	return i.writeFile()
}

// selfSign makes the certificate of a CA for names and all below them.
func selfSign(key *ecdsa.PrivateKey, names []string, now time.Time) (*x509.Certificate, error) {
	names = slices.Compact(slices.Sorted(slices.Values(slices.DeleteFunc(names, func(s string) bool { return s == "" }))))
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(spki)
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// The same for every issue of one key, so that leaves chain to any of them; different for
		// every installation.
		Subject:      pkix.Name{CommonName: "Adit internal CA " + hex.EncodeToString(id[:4])},
		SubjectKeyId: id[:20],
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:                    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: names,
		ExcludedIPRanges: []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func (i *Internal) writeFile() error {
	if i.cfg.File == "" {
		return nil
	}
	roots := i.roots()
	if old, err := os.ReadFile(i.cfg.File); err == nil && bytes.Equal(old, roots) {
		return nil
	}
	tmp := i.cfg.File + ".tmp"
	if err := os.WriteFile(tmp, roots, 0o644); err != nil { //nolint:gosec // a CA certificate is public
		return fmt.Errorf("write the CA certificate: %w", err)
	}
	return os.Rename(tmp, i.cfg.File)
}

func (i *Internal) permits(name string) bool {
	return slices.ContainsFunc(i.ca.PermittedDNSDomains, func(p string) bool {
		return name == p || hostname.Below(name, p)
	})
}

// Certificate is a P-256 leaf for exactly name, renewed after two thirds of its life. A name that
// the CA does not permit yet reissues the CA.
func (i *Internal) Certificate(ctx context.Context, name string) (*hubv1.Certificate, error) {
	pat, err := hostname.Parse(name)
	if err != nil {
		return nil, err
	}
	switch {
	case pat.Depth == hostname.Many:
		return problem(name, "a certificate covers one label of a wildcard only; declare *."+pat.Name+" or exact names"), nil
	case pat.Depth == hostname.One && !strings.Contains(pat.Name, "."):
		return problem(name, "clients refuse a certificate for *."+pat.Name+"; declare exact names"), nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.takeOver(ctx); err != nil {
		return nil, err
	}
	if !i.permits(pat.Name) {
		// Another hub may have seen to it.
		if keyPEM, err := i.cfg.Store.GetSecret(ctx, secretCAKey); err == nil {
			if err := i.load(ctx, keyPEM); err != nil {
				return nil, err
			}
		}
	}
	if !i.permits(pat.Name) {
		if err := i.reissue(ctx, append(i.ca.PermittedDNSDomains, pat.Name), "the name "+pat.Name+" is served now"); err != nil {
			return nil, err
		}
	}
	l := i.leaves[name]
	if l == nil {
		l = i.loadLeaf(ctx, name)
	}
	if l == nil || !i.cfg.Now().Before(l.notBefore.Add(l.notAfter.Sub(l.notBefore)*2/3)) {
		if l, err = i.issue(ctx, name); err != nil {
			return nil, fmt.Errorf("certificate for %s: %w", name, err)
		}
	}
	i.leaves[name] = l
	return &hubv1.Certificate{Name: name, ChainPem: l.chain, KeyPem: l.key, NotAfter: timestamppb.New(l.notAfter)}, nil
}

// loadLeaf returns a stored leaf that this CA's key has signed, else nil.
func (i *Internal) loadLeaf(ctx context.Context, name string) *leaf {
	data, err := i.cfg.Store.GetSecret(ctx, secretLeaf+name)
	if err != nil {
		return nil
	}
	certBlock, rest := pem.Decode(data)
	keyBlock, _ := pem.Decode(rest)
	if certBlock == nil || keyBlock == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil || cert.CheckSignatureFrom(i.ca) != nil {
		return nil
	}
	return &leaf{chain: pem.EncodeToMemory(certBlock), key: pem.EncodeToMemory(keyBlock), notBefore: cert.NotBefore, notAfter: cert.NotAfter}
}

func (i *Internal) issue(ctx context.Context, name string) (*leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := i.cfg.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(name) <= 64 {
		tmpl.Subject.CommonName = name
	}
	if tmpl.NotAfter.After(i.ca.NotAfter) {
		tmpl.NotAfter = i.ca.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, i.ca, key.Public(), i.key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	l := &leaf{chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key: keyPEM, notBefore: tmpl.NotBefore, notAfter: tmpl.NotAfter}
	if err := i.cfg.Store.PutSecret(ctx, secretLeaf+name, slices.Concat(l.chain, l.key)); err != nil {
		return nil, err
	}
	i.cfg.Log.Info("certificate issued by the internal CA", "name", name, "not_after", tmpl.NotAfter)
	return l, nil
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
}

func (i *Internal) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.ca.Raw})
}

// CA is the CA certificate as PEM.
func (i *Internal) CA() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pem()
}

// Fingerprint is SHA-256 of the CA certificate, in hex with colons.
func (i *Internal) Fingerprint() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fingerprint()
}

func (i *Internal) fingerprint() string {
	sum := sha256.Sum256(i.ca.Raw)
	parts := make([]string, len(sum))
	for n, b := range sum {
		parts[n] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

// Close does nothing: the CA has no background work.
func (i *Internal) Close() error { return nil }

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("is %T, want ECDSA", key)
	}
	return ec, nil
}
