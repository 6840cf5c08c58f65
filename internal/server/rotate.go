package server

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/adit-dev/adit/internal/certs"
	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hub"
	"github.com/adit-dev/adit/internal/hub/store"
)

// withStore opens the store of a server for f.
func withStore(ctx context.Context, c *config.Store, f func(*store.Store) error) error {
	st, err := store.Open(ctx, store.Options{URL: c.DatabaseURL, MaxConns: 1})
	if err != nil {
		return err
	}
	return errors.Join(f(st), st.Close())
}

// RotateSecretKey does one step on a database that hubs share, or with SQLite, where the server
// must not run, all of them.
func RotateSecretKey(ctx context.Context, c *config.Store, steps ...hub.RotateStep) (id string, err error) {
	if !store.IsPostgres(c.DatabaseURL) {
		lock, err := lockDataDir(c.DataDir)
		if err != nil {
			return "", err
		}
		defer func() { _ = lock.Close() }()
	}
	err = withStore(ctx, c, func(st *store.Store) (err error) {
		for _, step := range steps {
			if id, err = hub.RotateSecretKey(ctx, st, c.SecretKeyFile, step); err != nil {
				return err
			}
		}
		return nil
	})
	return id, err
}

// RotateHubKey gives the hub a new identity key from its next start on; it returns the key's hash in
// hex.
func RotateHubKey(ctx context.Context, c *config.Store, overlap time.Duration) (hash string, err error) {
	err = withStore(ctx, c, func(st *store.Store) error {
		h, err := hub.RotateIdentity(ctx, st, c.SecretKeyFile, overlap, time.Now())
		hash = hex.EncodeToString(h)
		return err
	})
	return hash, err
}

// RotateCA makes a new internal CA that takes over at from; it returns its certificate as PEM.
func RotateCA(ctx context.Context, c *config.Store, from time.Time) (pem []byte, err error) {
	err = withStore(ctx, c, func(st *store.Store) error {
		secrets, err := hub.OpenSecrets(ctx, st, c.SecretKeyFile)
		if err != nil {
			return err
		}
		pem, err = certs.RotateCA(ctx, secrets, from, time.Now())
		return err
	})
	return pem, err
}
