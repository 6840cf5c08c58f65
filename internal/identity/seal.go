package identity

import (
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
)

const sealVersion = 1

// Sealer encrypts secrets at rest with a 32-byte key (secret.key). While the key is rotated it opens
// with the old and the new one. It is safe for concurrent use.
type Sealer struct {
	mu sync.RWMutex
	// keys[0] seals; all open.
	keys []cipher.AEAD
}

// NewSealer returns a sealer for keys as LoadOrCreateSecrets returns them: the first one seals, all
// open.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	s := &Sealer{}
	return s, s.Use(keys...)
}

// Use replaces the keys.
func (s *Sealer) Use(keys ...[]byte) error {
	if len(keys) == 0 {
		return errors.New("secret key: there is none")
	}
	aeads := make([]cipher.AEAD, len(keys))
	for i, k := range keys {
		var err error
		if aeads[i], err = chacha20poly1305.NewX(k); err != nil {
			return fmt.Errorf("secret key: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = aeads
	return nil
}

func (s *Sealer) now() []cipher.AEAD {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys
}

// Seal encrypts plain. The same purpose is needed to open it, so that a sealed value cannot stand
// in for another.
func (s *Sealer) Seal(purpose string, plain []byte) ([]byte, error) {
	aead := s.now()[0]
	out := make([]byte, 1+aead.NonceSize(), 1+aead.NonceSize()+len(plain)+aead.Overhead())
	out[0] = sealVersion
	if _, err := rand.Read(out[1:]); err != nil {
		return nil, err
	}
	return aead.Seal(out, out[1:], plain, []byte(purpose)), nil
}

// Open decrypts what Seal made.
func (s *Sealer) Open(purpose string, sealed []byte) ([]byte, error) {
	const n = 1 + chacha20poly1305.NonceSizeX
	if len(sealed) < n || sealed[0] != sealVersion {
		return nil, errors.New("sealed value has an unknown format")
	}
	for _, aead := range s.now() {
		if plain, err := aead.Open(nil, sealed[1:n], sealed[n:], []byte(purpose)); err == nil {
			return plain, nil
		}
	}
	return nil, errors.New("sealed value does not open with this secret key; restore the secret.key it was sealed with")
}
