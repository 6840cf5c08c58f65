package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/identity"
)

const (
	// secretInUse is the id of the key that seals, of those in the secret key file.
	secretInUse = "secret_key_id"
	// resealedItem says that the store's secrets are sealed with another key.
	resealedItem = hubItems + "resealed"
	// hubKeyBefore is the identity key that vouches for the one in use.
	hubKeyBefore = "hub identity key before"
)

// sealedColumns are all values that are sealed with the secret key: a rotation seals each again. A
// column that is missing here is lost with the old key, so a test looks for them.
var sealedColumns = []struct {
	table, key, column string
	purpose            func(key string) string
}{
	{"secrets", "name", "sealed", func(name string) string { return name }},
	{"certificates", "name", "sealed_key", certPurpose},
	{"tunnels", "id", "sealed", func(id string) string { return "tunnel/" + id }},
	{"notice_targets", "name", "secrets", noticePurpose},
	{"providers", "name", "secret", secretPurpose},
}

// sealedForMinutes are tables whose sealed rows a rotation drops: sign-ins in progress begin again.
var sealedForMinutes = []string{"oidc_flows"}

// loadSecrets reads the secret key file and finds the key that the store's secrets are sealed with.
func (h *Hub) loadSecrets(ctx context.Context, path string) error {
	if _, err := os.Stat(path); h.store.Shared() && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--secret-key-file: %s does not exist; copy the file of the other hubs of this database, or for the first one make it with `openssl rand -base64 32`", path)
	}
	keys, err := identity.LoadOrCreateSecrets(path)
	if err != nil {
		return err
	}
	inUse, err := secretKeyInUse(ctx, h.store, keys)
	if err != nil {
		return err
	}
	if keys, err = inUseFirst(keys, inUse); err != nil {
		return fmt.Errorf("%w: --secret-key-file names %s", err, path)
	}
	if h.sealer == nil {
		h.sealer, err = identity.NewSealer(keys...)
		return err
	}
	return h.sealer.Use(keys...)
}

// secretKeyInUse is the id that the store names; a store that names none uses the first of keys
// from now on.
func secretKeyInUse(ctx context.Context, st *store.Store, keys [][]byte) (string, error) {
	var id []byte
	if err := st.Read(ctx, func(tx *store.Tx) (err error) { id, err = tx.Meta(secretInUse); return err }); err != nil || id != nil {
		return string(id), err
	}
	err := st.Write(ctx, func(tx *store.Tx) (err error) {
		if id, err = tx.Meta(secretInUse); err != nil || id != nil {
			return err
		}
		id = []byte(identity.SecretID(keys[0]))
		return tx.SetMeta(secretInUse, id)
	})
	return string(id), err
}

func inUseFirst(keys [][]byte, id string) ([][]byte, error) {
	i := slices.IndexFunc(keys, func(k []byte) bool { return identity.SecretID(k) == id })
	if i < 0 {
		return nil, errors.New("the secret key is not the one that this database is sealed with; every hub of a database needs the same one")
	}
	return slices.Concat([][]byte{keys[i]}, keys[:i], keys[i+1:]), nil
}

// resealed has a running hub read the secret key file again: another process sealed the store with
// another key.
func (h *Hub) resealed(ctx context.Context) {
	if err := h.loadSecrets(ctx, h.secretPath()); err != nil {
		h.log.Error("the store is sealed with a key that this hub does not have", "error", err)
	}
}

// RotateStep is one step of a rotation of the secret key.
type RotateStep int

const (
	// AddKey puts a new key beside the one in use into the file.
	AddKey RotateStep = iota
	// Reseal seals everything in the store with the newest key of the file.
	Reseal
	// DropKeys removes all keys from the file but the one in use.
	DropKeys
)

// RotateSecretKey does one step on the store and the secret key file. After each step, and when it
// is cut short, hubs with that file open everything in the store. It returns the id of the key in
// use.
func RotateSecretKey(ctx context.Context, st *store.Store, path string, step RotateStep) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("--secret-key-file: %w", err)
	}
	keys, err := identity.LoadOrCreateSecrets(path)
	if err != nil {
		return "", err
	}
	inUse, err := secretKeyInUse(ctx, st, keys)
	if err != nil {
		return "", err
	}
	if keys, err = inUseFirst(keys, inUse); err != nil {
		return "", fmt.Errorf("%w: --secret-key-file names %s", err, path)
	}
	switch step {
	case AddKey:
		if len(keys) > 1 {
			return inUse, nil // done, by an earlier run
		}
		fresh, err := identity.NewSecret()
		if err != nil {
			return "", err
		}
		return inUse, identity.WriteSecrets(path, keys[0], fresh)
	case Reseal:
		if len(keys) == 1 {
			return "", fmt.Errorf("--secret-key-file: %s holds the key in use only; add a new one first", path)
		}
		next := keys[len(keys)-1]
		return identity.SecretID(next), reseal(ctx, st, keys, next)
	default:
		// What a hub sealed with the old key in the moment of the change is sealed again.
		if err := reseal(ctx, st, keys, keys[0]); err != nil {
			return "", err
		}
		return inUse, identity.WriteSecrets(path, keys[0])
	}
}

func reseal(ctx context.Context, st *store.Store, keys [][]byte, next []byte) error {
	open, err := identity.NewSealer(keys...)
	if err != nil {
		return err
	}
	seal, err := identity.NewSealer(next)
	if err != nil {
		return err
	}
	return st.Write(ctx, func(tx *store.Tx) error {
		for _, c := range sealedColumns {
			err := tx.Replace(c.table, c.key, c.column, func(key string, sealed []byte) ([]byte, error) {
				plain, err := open.Open(c.purpose(key), sealed)
				if err != nil {
					return nil, fmt.Errorf("%s %s: %w", c.table, key, err)
				}
				return seal.Seal(c.purpose(key), plain)
			})
			if err != nil {
				return err
			}
		}
		for _, table := range sealedForMinutes {
			if err := tx.Clear(table); err != nil {
				return err
			}
		}
		tx.Changed(resealedItem)
		return tx.SetMeta(secretInUse, []byte(identity.SecretID(next)))
	})
}

// Secrets are the sealed values of a store whose hub may run or not.
type Secrets struct {
	store  *store.Store
	sealer *identity.Sealer
}

// OpenSecrets opens those of a store with the keys in the file at path.
func OpenSecrets(ctx context.Context, st *store.Store, path string) (*Secrets, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("--secret-key-file: %w", err)
	}
	keys, err := identity.LoadOrCreateSecrets(path)
	if err != nil {
		return nil, err
	}
	inUse, err := secretKeyInUse(ctx, st, keys)
	if err != nil {
		return nil, err
	}
	if keys, err = inUseFirst(keys, inUse); err != nil {
		return nil, fmt.Errorf("%w: --secret-key-file names %s", err, path)
	}
	sealer, err := identity.NewSealer(keys...)
	return &Secrets{st, sealer}, err
}

// keyBefore is the identity key that vouches for the one in use, until a time.
type keyBefore struct {
	Seed  []byte    `json:"seed"`
	Until time.Time `json:"until"`
}

// RotateIdentity gives the hub a new identity key, which hubs use from their next start on. Tokens
// that pin the old one work for the overlap: the old key vouches for the new one.
func RotateIdentity(ctx context.Context, st *store.Store, path string, overlap time.Duration, now time.Time) (hash []byte, err error) {
	secrets, err := OpenSecrets(ctx, st, path)
	if err != nil {
		return nil, err
	}
	sealer := secrets.sealer
	fresh, err := identity.NewNodeKey()
	if err != nil {
		return nil, err
	}
	return fresh.Hash(), st.Write(ctx, func(tx *store.Tx) error {
		sealed, err := tx.Secret(hubKeySecret)
		if err != nil {
			return err
		}
		if sealed == nil {
			return errors.New("the hub has no identity key yet: it was never started")
		}
		seed, err := sealer.Open(hubKeySecret, sealed)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(keyBefore{seed, now.Add(overlap)})
		if err != nil {
			return err
		}
		if sealed, err = sealer.Seal(hubKeyBefore, raw); err != nil {
			return err
		}
		if err := tx.SetSecret(hubKeyBefore, sealed); err != nil {
			return err
		}
		if sealed, err = sealer.Seal(hubKeySecret, fresh.Seed()); err != nil {
			return err
		}
		return tx.SetSecret(hubKeySecret, sealed)
	})
}

// loadIdentity makes or reads the hub's identity key, and the one before it while that vouches.
func (h *Hub) loadIdentity(ctx context.Context) error {
	fresh, err := identity.NewNodeKey()
	if err != nil {
		return err
	}
	seed, err := h.MakeSecret(ctx, hubKeySecret, fresh.Seed())
	if err != nil {
		return fmt.Errorf("hub identity key: %w", err)
	}
	if h.key, err = identity.NodeKeyFromSeed(seed); err != nil {
		return fmt.Errorf("hub identity key: %w", err)
	}
	h.pins = [][]byte{h.key.Hash()}
	raw, err := h.GetSecret(ctx, hubKeyBefore)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b := keyBefore{}
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return fmt.Errorf("hub identity key before: %w", err)
	}
	if !h.cfg.Now().Before(b.Until) {
		return nil
	}
	before, err := identity.NodeKeyFromSeed(b.Seed)
	if err != nil {
		return fmt.Errorf("hub identity key before: %w", err)
	}
	if bytes.Equal(before.Hash(), h.key.Hash()) {
		return nil
	}
	// Hubs that have not been started again still show the old key: new tokens pin both.
	h.pins = append(h.pins, before.Hash())
	h.log.Info("the identity key before this one vouches for it: tokens made with it still work", "until", b.Until)
	return h.key.Succeed(before, b.Until)
}
