package hub

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/adit-dev/adit/internal/hub/store"
)

const (
	hubKeySecret = "hub identity key"
	adminPrefix  = "adit_admin_"
	// AdminKeyFile is the name of the local administrator's key in the data directory.
	AdminKeyFile = "admin.key"
)

// loadKeys makes or reads what the hub is: secret.key, the identity key, admin.key.
func (h *Hub) loadKeys(ctx context.Context) error {
	if err := h.loadSecrets(ctx, h.secretPath()); err != nil {
		return err
	}
	if err := h.loadIdentity(ctx); err != nil {
		return err
	}
	return h.loadAdminKey()
}

func (h *Hub) secretPath() string {
	if h.cfg.SecretKeyFile != "" {
		return h.cfg.SecretKeyFile
	}
	return filepath.Join(h.cfg.DataDir, "secret.key")
}

// loadAdminKey makes admin.key if it is not there; whoever can write the data directory decides
// what it is. It belongs to this host alone: no other hub on the database knows it.
func (h *Hub) loadAdminKey() error {
	path := filepath.Join(h.cfg.DataDir, AdminKeyFile)
	data, err := os.ReadFile(path)
	key := strings.TrimSpace(string(data))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		raw := make([]byte, 32)
		if _, err := rand.Read(raw); err != nil {
			return err
		}
		key = adminPrefix + base64.RawURLEncoding.EncodeToString(raw)
		if err := writeFile(path, key+"\n"); err != nil {
			return fmt.Errorf("admin key: %w", err)
		}
	case err != nil:
		return fmt.Errorf("admin key: %w", err)
	case len(key) < len(adminPrefix)+43 || !strings.HasPrefix(key, adminPrefix):
		return fmt.Errorf("admin key %s: is not a key that adit made; delete the file and start again to get a new one", path)
	default:
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("admin key: %w", err)
		}
	}
	h.adminHash = sha256.Sum256([]byte(key))
	return nil
}

// setMeta writes only what differs: a hub starts with a full disk too.
func (h *Hub) setMeta(ctx context.Context, name string, value []byte, changed ...string) error {
	var old []byte
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) { old, err = tx.Meta(name); return err })
	if err != nil || bytes.Equal(old, value) {
		return err
	}
	return h.store.Write(ctx, func(tx *store.Tx) error {
		for _, item := range changed {
			tx.Changed(item)
		}
		return tx.SetMeta(name, value)
	})
}

// writeFile writes a secret to a new file in one step.
func writeFile(path, content string) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// GetSecret returns what PutSecret stored, or an error that is fs.ErrNotExist.
func (s *Secrets) GetSecret(ctx context.Context, name string) ([]byte, error) {
	var sealed []byte
	err := s.store.Read(ctx, func(tx *store.Tx) (err error) { sealed, err = tx.Secret(name); return err })
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		return nil, fmt.Errorf("secret %q: %w", name, fs.ErrNotExist)
	}
	plain, err := s.sealer.Open(name, sealed)
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", name, err)
	}
	return plain, nil
}

// MakeSecret returns the secret of a name, storing value if there is none: hubs that start together
// end up with the same one.
func (s *Secrets) MakeSecret(ctx context.Context, name string, value []byte) ([]byte, error) {
	got, err := s.GetSecret(ctx, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return got, err
	}
	sealed, err := s.sealer.Seal(name, value)
	if err != nil {
		return nil, err
	}
	var there []byte
	err = s.store.Write(ctx, func(tx *store.Tx) (err error) {
		if there, err = tx.Secret(name); err != nil || there != nil {
			return err
		}
		return tx.SetSecret(name, sealed)
	})
	if err != nil || there == nil {
		return value, err
	}
	return s.GetSecret(ctx, name)
}

// PutSecret stores value sealed with secret.key.
func (s *Secrets) PutSecret(ctx context.Context, name string, value []byte) error {
	sealed, err := s.sealer.Seal(name, value)
	if err != nil {
		return err
	}
	return s.store.Write(ctx, func(tx *store.Tx) error { return tx.SetSecret(name, sealed) })
}

func (h *Hub) secrets() *Secrets { return &Secrets{h.store, h.sealer} }

// GetSecret is that of Secrets.
func (h *Hub) GetSecret(ctx context.Context, name string) ([]byte, error) {
	return h.secrets().GetSecret(ctx, name)
}

// MakeSecret is that of Secrets.
func (h *Hub) MakeSecret(ctx context.Context, name string, value []byte) ([]byte, error) {
	return h.secrets().MakeSecret(ctx, name, value)
}

// PutSecret is that of Secrets.
func (h *Hub) PutSecret(ctx context.Context, name string, value []byte) error {
	return h.secrets().PutSecret(ctx, name, value)
}
