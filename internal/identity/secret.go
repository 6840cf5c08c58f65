package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LoadOrCreateSecret is the first of LoadOrCreateSecrets.
func LoadOrCreateSecret(path string) ([]byte, error) {
	keys, err := LoadOrCreateSecrets(path)
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

// LoadOrCreateSecrets reads the keys in the file at path, each 32 bytes in base64 on a line of its
// own, or makes one and writes the file (0600). There are several only while a key is rotated.
func LoadOrCreateSecrets(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err := NewSecret()
		if err != nil {
			return nil, err
		}
		return [][]byte{secret}, WriteSecrets(path, secret)
	}
	if err != nil {
		return nil, fmt.Errorf("secret key cannot be read: %w; give this user the right to, or name another file with --secret-key-file", err)
	}
	var keys [][]byte
	for line := range strings.FieldsSeq(string(data)) {
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(secret) != secretSize {
			return nil, fmt.Errorf("secret key %s: is not 32 bytes in base64; restore it from a backup", path)
		}
		keys = append(keys, secret)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("secret key %s: is not 32 bytes in base64; restore it from a backup", path)
	}
	return keys, nil
}

const secretSize = 32

// NewSecret makes a secret key.
func NewSecret() ([]byte, error) {
	secret := make([]byte, secretSize)
	_, err := rand.Read(secret)
	return secret, err
}

// WriteSecrets writes keys to the file at path (0600) in one step.
func WriteSecrets(path string, keys ...[]byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	var text strings.Builder
	for _, k := range keys {
		text.WriteString(base64.StdEncoding.EncodeToString(k) + "\n")
	}
	tmp := path + ".tmp"
	if err := writeSynced(tmp, text.String()); err != nil {
		return fmt.Errorf("secret key cannot be written: %w; make the folder writable, or name another file with --secret-key-file", err)
	}
	return os.Rename(tmp, path)
}

func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// SecretID names a secret key without telling it.
func SecretID(key []byte) string {
	h := sha256.Sum256(append([]byte("adit secret key id v1\x00"), key...))
	return hex.EncodeToString(h[:8])
}
