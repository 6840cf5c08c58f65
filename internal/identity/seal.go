package identity

import (
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

const sealVersion = 1

// Sealer encrypts secrets at rest with a 32-byte key (secret.key).
type Sealer struct{ aead cipher.AEAD }

// NewSealer returns a sealer for key, as LoadOrCreateSecret returns it.
func NewSealer(key []byte) (*Sealer, error) {
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, fmt.Errorf("secret key: %w", err)
	}
	return &Sealer{aead}, nil
}

// Seal encrypts plain. The same purpose is needed to open it, so that a sealed value cannot stand
// in for another.
func (s *Sealer) Seal(purpose string, plain []byte) ([]byte, error) {
	out := make([]byte, 1+s.aead.NonceSize(), 1+s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	out[0] = sealVersion
	if _, err := rand.Read(out[1:]); err != nil {
		return nil, err
	}
	return s.aead.Seal(out, out[1:], plain, []byte(purpose)), nil
}

// Open decrypts what Seal made.
func (s *Sealer) Open(purpose string, sealed []byte) ([]byte, error) {
	n := 1 + s.aead.NonceSize()
	if len(sealed) < n || sealed[0] != sealVersion {
		return nil, errors.New("sealed value has an unknown format")
	}
	plain, err := s.aead.Open(nil, sealed[1:n], sealed[n:], []byte(purpose))
	if err != nil {
		return nil, errors.New("sealed value does not open with this secret key; restore the secret.key it was sealed with")
	}
	return plain, nil
}
