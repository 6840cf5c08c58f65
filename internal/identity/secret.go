package identity

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LoadOrCreateSecret reads the 32 bytes (base64) in the file at path, or makes them and writes
// the file (0600).
func LoadOrCreateSecret(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret := make([]byte, 32)
		if _, err := rand.Read(secret); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		tmp := path + ".tmp"
		if err := os.WriteFile(tmp, []byte(base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("secret key cannot be written: %w; make the folder writable, or name another file with --secret-key-file", err)
		}
		return secret, os.Rename(tmp, path)
	}
	if err != nil {
		return nil, fmt.Errorf("secret key cannot be read: %w; give this user the right to, or name another file with --secret-key-file", err)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(secret) != 32 {
		return nil, fmt.Errorf("secret key %s: is not 32 bytes in base64; restore it from a backup", path)
	}
	return secret, nil
}
