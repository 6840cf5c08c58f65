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
	"github.com/adit-dev/adit/internal/identity"
)

const (
	hubKeySecret = "hub identity key"
	adminHash    = "admin_key_sha256"
	adminPrefix  = "adit_admin_"
	// AdminKeyFile is the name of the local administrator's key in the data directory.
	AdminKeyFile = "admin.key"
)

// loadKeys makes or reads what the hub is: secret.key, the identity key, admin.key.
func (h *Hub) loadKeys(ctx context.Context) error {
	path := h.cfg.SecretKeyFile
	if path == "" {
		path = filepath.Join(h.cfg.DataDir, "secret.key")
	}
	secret, err := identity.LoadOrCreateSecret(path)
	if err != nil {
		return err
	}
	if h.sealer, err = identity.NewSealer(secret); err != nil {
		return err
	}
	seed, err := h.GetSecret(ctx, hubKeySecret)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if h.key, err = identity.NewNodeKey(); err != nil {
			return err
		}
		err = h.PutSecret(ctx, hubKeySecret, h.key.Seed())
	case err == nil:
		h.key, err = identity.NodeKeyFromSeed(seed)
	default:
		err = fmt.Errorf("hub identity key: %w (secret key file %s)", err, path)
	}
	if err != nil {
		return err
	}
	return h.loadAdminKey(ctx)
}

// loadAdminKey makes admin.key if it is not there; whoever can write the data directory decides
// what it is. The store keeps its hash only.
func (h *Hub) loadAdminKey(ctx context.Context) error {
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
	sum := sha256.Sum256([]byte(key))
	return h.setMeta(ctx, adminHash, sum[:])
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
func (h *Hub) GetSecret(ctx context.Context, name string) ([]byte, error) {
	var sealed []byte
	err := h.store.Read(ctx, func(tx *store.Tx) (err error) { sealed, err = tx.Secret(name); return err })
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		return nil, fmt.Errorf("secret %q: %w", name, fs.ErrNotExist)
	}
	plain, err := h.sealer.Open(name, sealed)
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", name, err)
	}
	return plain, nil
}

// PutSecret stores value sealed with secret.key.
func (h *Hub) PutSecret(ctx context.Context, name string, value []byte) error {
	sealed, err := h.sealer.Seal(name, value)
	if err != nil {
		return err
	}
	return h.store.Write(ctx, func(tx *store.Tx) error { return tx.SetSecret(name, sealed) })
}
