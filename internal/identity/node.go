// Package identity holds node keys, tokens, the key pairs derived from a token and the
// proofs made with them.
package identity

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// NodeKey is the Ed25519 key of one process (agent) or one node (edge, hub).
type NodeKey struct {
	private ed25519.PrivateKey
	cert    tls.Certificate
}

// NewNodeKey makes a fresh key.
func NewNodeKey() (*NodeKey, error) {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate node key: %w", err)
	}
	return nodeKey(priv)
}

// NodeKeyFromSeed rebuilds a key from its 32-byte seed.
func NodeKeyFromSeed(seed []byte) (*NodeKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("node key seed has %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	return nodeKey(ed25519.NewKeyFromSeed(seed))
}

// LoadOrCreateNodeKey reads the PKCS#8 PEM file at path, or makes a key and writes it (0600).
func LoadOrCreateNodeKey(path string) (*NodeKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		k, err := NewNodeKey()
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(k.private)
		if err != nil {
			return nil, err
		}
		data = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		tmp := path + ".tmp"
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			return nil, fmt.Errorf("write node key: %w", err)
		}
		if err := os.Rename(tmp, path); err != nil {
			return nil, fmt.Errorf("write node key: %w", err)
		}
		return k, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("node key %s: not a PEM file; restore it from a backup, or delete it to get a new identity", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("node key %s: %w", path, err)
	}
	priv, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("node key %s: is %T, want Ed25519", path, key)
	}
	return nodeKey(priv)
}

func nodeKey(priv ed25519.PrivateKey) (*NodeKey, error) {
	// The certificate only carries the key; peers pin the key and ignore dates and names.
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "adit"},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, priv.Public(), priv)
	if err != nil {
		return nil, fmt.Errorf("node certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &NodeKey{private: priv, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: priv, Leaf: leaf}}, nil
}

// Certificate is the identity certificate, self-signed unless k succeeds another key.
func (k *NodeKey) Certificate() tls.Certificate { return k.cert }

// Succeed has k's certificate signed by the key before it, until a time: peers that pin that one
// and do not know k yet believe k meanwhile.
func (k *NodeKey) Succeed(before *NodeKey, until time.Time) error {
	tmpl := *k.cert.Leaf
	tmpl.NotAfter = until
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, before.cert.Leaf, k.Public(), before.private)
	if err != nil {
		return fmt.Errorf("node certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	k.cert = tls.Certificate{Certificate: [][]byte{der, before.cert.Certificate[0]}, PrivateKey: k.private, Leaf: leaf}
	return nil
}

// Public is the public key.
func (k *NodeKey) Public() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }

// Seed is the private seed, for sealed storage only.
func (k *NodeKey) Seed() []byte { return k.private.Seed() }

// Hash is the pin of this key.
func (k *NodeKey) Hash() []byte { return KeyHash(k.Public()) }

// ID is the first 16 hex digits of Hash.
func (k *NodeKey) ID() string { return KeyID(k.Hash()) }

// Derive returns 32 bytes that only this identity can make, for label (e.g. a stateless reset key).
func (k *NodeKey) Derive(label string) [32]byte {
	return sha256.Sum256(append(append([]byte("adit derive v1\x00"), label...), k.private.Seed()...))
}

// KeyHash is SHA-256 of the key's SubjectPublicKeyInfo.
func KeyHash(pub crypto.PublicKey) []byte {
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil
	}
	h := sha256.Sum256(spki)
	return h[:]
}

// KeyID is the first 16 hex digits of a key hash.
func KeyID(hash []byte) string {
	if len(hash) < 8 {
		return ""
	}
	return hex.EncodeToString(hash[:8])
}

// PeerKey is the Ed25519 key that the peer of a TLS connection proved, or an error that says
// what it presented instead.
func PeerKey(cs tls.ConnectionState) (ed25519.PublicKey, error) {
	if len(cs.PeerCertificates) == 0 {
		return nil, errors.New("peer presented no identity certificate")
	}
	pub, ok := cs.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("peer identity key is %T, want Ed25519", cs.PeerCertificates[0].PublicKey)
	}
	return pub, nil
}

// VerifyPin returns a tls.Config.VerifyConnection that accepts only a peer whose key hash is
// one of pins, or whose key one of pins vouches for (Succeed). It also runs on resumption.
func VerifyPin(pins func() [][]byte) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		pub, err := PeerKey(cs)
		if err != nil {
			return err
		}
		h := string(KeyHash(pub))
		for _, p := range pins() {
			if string(p) == h {
				return nil
			}
		}
		if v := vouches(cs.PeerCertificates); v != nil && time.Now().Before(cs.PeerCertificates[0].NotAfter) {
			h := string(KeyHash(v))
			for _, p := range pins() {
				if string(p) == h {
					return nil
				}
			}
		}
		return fmt.Errorf("peer identity key %s is not the one this token pins", KeyID([]byte(h)))
	}
}

// vouches is the key that signed the peer's certificate, if that is another one that it shows.
func vouches(chain []*x509.Certificate) ed25519.PublicKey {
	if len(chain) != 2 {
		return nil
	}
	pub, ok := chain[1].PublicKey.(ed25519.PublicKey)
	if !ok || chain[1].CheckSignature(chain[0].SignatureAlgorithm, chain[0].RawTBSCertificate, chain[0].Signature) != nil {
		return nil
	}
	return pub
}
