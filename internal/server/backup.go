package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/adit-dev/adit/internal/config"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/telemetry"
)

// A backup is a gzipped tar: manifest.json, the data folder's keys below data/, and the database
// below db/ as JSON lines, the same for SQLite and PostgreSQL.
const (
	backupFormat   = 1
	manifestName   = "manifest.json"
	backupData     = "data/"
	backupDB       = "db/"
	secretKeyName  = "secret.key"
	maxBackupEntry = 64 << 20
)

// Manifest is the first entry of a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"`
	Schema  int       `json:"schema"`
	MadeAt  time.Time `json:"made_at"`
}

// keyFiles are the files and folders of the data folder that belong to a backup, beside the secret
// key: what agents pinned of an edge in this process, and the ACME account.
var keyFiles = []string{"edge.key", "acme"}

// Backup writes a backup of a server, which may run meanwhile, to w.
func Backup(ctx context.Context, c *config.Store, w io.Writer) (*Manifest, error) {
	st, err := store.Open(ctx, store.Options{URL: c.DatabaseURL, MaxConns: 1})
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	zip := gzip.NewWriter(w)
	out := &backupWriter{tar: tar.NewWriter(zip), now: time.Now()}
	m := &Manifest{Format: backupFormat, Version: telemetry.Version(), Schema: store.SchemaVersion(), MadeAt: out.now.UTC().Truncate(time.Second)}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := out.add(manifestName, append(raw, '\n')); err != nil {
		return nil, err
	}
	// The database first: a secret key that is rotated meanwhile opens what was sealed before.
	err = st.Dump(ctx, func(table string, n int, lines []byte) error {
		return out.add(fmt.Sprintf("%s%s.%04d.jsonl", backupDB, table, n), lines)
	})
	if err != nil {
		return nil, err
	}
	if err := out.addFiles(c); err != nil {
		return nil, err
	}
	return m, errors.Join(out.tar.Close(), zip.Close())
}

type backupWriter struct {
	tar *tar.Writer
	now time.Time
}

func (b *backupWriter) add(name string, content []byte) error {
	err := b.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: b.now, Typeflag: tar.TypeReg})
	if err != nil {
		return err
	}
	_, err = b.tar.Write(content)
	return err
}

func (b *backupWriter) addFiles(c *config.Store) error {
	secret, err := os.ReadFile(c.SecretKeyFile)
	if err != nil {
		return fmt.Errorf("secret key: %w; without it the backup cannot be restored: name it with --secret-key-file", err)
	}
	if err := b.add(backupData+secretKeyName, secret); err != nil {
		return err
	}
	for _, name := range keyFiles {
		root := filepath.Join(c.DataDir, name)
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(c.DataDir, p)
			if err != nil {
				return err
			}
			return b.add(backupData+filepath.ToSlash(rel), content)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("data-dir: %w", err)
		}
	}
	return nil
}

// Restore brings a backup into an empty database and a data folder without keys. It stores all of
// it or nothing.
func Restore(ctx context.Context, c *config.Store, r io.Reader) (*Manifest, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data-dir: %w", err)
	}
	lock, err := lockDataDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the file is no backup of adit: %w", err)
	}
	in := &backupReader{tar: tar.NewReader(zip), cfg: c}
	m, err := in.manifest()
	if err != nil {
		return nil, err
	}
	if in.db, err = store.Restore(ctx, store.Options{URL: c.DatabaseURL, MaxConns: 1}, m.Schema); err != nil {
		return nil, err
	}
	if err := in.entries(); err != nil {
		in.db.Abort()
		in.removeFiles()
		return nil, err
	}
	if err := in.db.Finish(); err != nil {
		in.removeFiles()
		return nil, err
	}
	return m, nil
}

type backupReader struct {
	tar *tar.Reader
	cfg *config.Store
	db  *store.Restoring
	// made are the files that this restore wrote.
	made []string
	// secret is true once the secret key was there.
	secret bool
}

func (b *backupReader) manifest() (*Manifest, error) {
	h, err := b.tar.Next()
	if err != nil || h.Name != manifestName {
		return nil, errors.New("the file is no backup of adit: it does not begin with " + manifestName)
	}
	m := &Manifest{}
	if err := json.NewDecoder(io.LimitReader(b.tar, 1<<20)).Decode(m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Format != backupFormat {
		return nil, fmt.Errorf("the backup has format %d, this build reads %d; restore it with adit %s or newer", m.Format, backupFormat, m.Version)
	}
	return m, nil
}

func (b *backupReader) entries() error {
	for {
		h, err := b.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the backup is cut off or damaged: %w", err)
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxBackupEntry {
			return fmt.Errorf("the backup holds %q, which no backup of adit does", h.Name)
		}
		switch {
		case strings.HasPrefix(h.Name, backupDB):
			table, _, _ := strings.Cut(strings.TrimPrefix(h.Name, backupDB), ".")
			err = b.db.Load(table, b.tar)
		case strings.HasPrefix(h.Name, backupData):
			err = b.file(strings.TrimPrefix(h.Name, backupData))
		default:
			err = fmt.Errorf("the backup holds %q, which no backup of adit does", h.Name)
		}
		if err != nil {
			return err
		}
	}
	if !b.secret {
		return errors.New("the backup is cut off: the secret key is missing")
	}
	return nil
}

// file writes a key of the data folder. One that is there already must be the same.
func (b *backupReader) file(name string) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name {
		return fmt.Errorf("the backup holds %q, which leads out of the data folder", name)
	}
	to := filepath.Join(b.cfg.DataDir, filepath.FromSlash(name))
	if name == secretKeyName {
		to, b.secret = b.cfg.SecretKeyFile, true
	}
	content, err := io.ReadAll(b.tar)
	if err != nil {
		return fmt.Errorf("the backup is cut off or damaged: %w", err)
	}
	old, err := os.ReadFile(to)
	switch {
	case err == nil && bytes.Equal(bytes.TrimSpace(old), bytes.TrimSpace(content)):
		return nil
	case err == nil:
		return fmt.Errorf("%s exists and differs from the backup's; restore into another --data-dir, or move it away", to)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	b.made = append(b.made, to)
	return os.WriteFile(to, content, 0o600)
}

func (b *backupReader) removeFiles() {
	for _, f := range b.made {
		_ = os.Remove(f)
	}
}
