package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

// quiet is how long a folder must be still before its files count as written.
const quiet = 200 * time.Millisecond

// FilesConfig is for certificates that the operator of the server provides.
type FilesConfig struct {
	// Dir holds <name>.crt and <name>.key; a wildcard's files are _wildcard.<x> or *.<x>.
	Dir string
	// Changed is called when files changed; nil = none.
	Changed func()
	Log     *slog.Logger
}

// Files reads certificates from a directory and notices changes.
type Files struct {
	cfg     FilesConfig
	watcher *fsnotify.Watcher
	done    sync.WaitGroup
	stop    chan struct{}
	once    sync.Once
}

// NewFiles watches the directory, which it makes if it is missing.
func NewFiles(cfg FilesConfig) (*Files, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	f := &Files{cfg: cfg, stop: make(chan struct{})}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(cfg.Dir); err != nil {
			_ = w.Close()
		}
	}
	if err != nil {
		// The hub asks again every minute, so a change is found a little later.
		cfg.Log.Warn("changes of certificate files are found within a minute only", "dir", cfg.Dir, "error", err)
		return f, nil
	}
	f.watcher = w
	f.done.Go(f.watch)
	return f, nil
}

func (f *Files) watch() {
	var still <-chan time.Time
	for {
		select {
		case <-f.stop:
			return
		case <-f.watcher.Events:
			still = time.After(quiet)
		case err := <-f.watcher.Errors:
			f.cfg.Log.Debug("watching certificate files", "error", err)
		case <-still:
			still = nil
			f.cfg.Log.Info("certificate files changed", "dir", f.cfg.Dir)
			if f.cfg.Changed != nil {
				f.cfg.Changed()
			}
		}
	}
}

// Certificate is the pair of files for name, else that of the wildcard that covers it. What is
// wrong with a pair is its problem: it never hides behind another one.
func (f *Files) Certificate(_ context.Context, name string) (*hubv1.Certificate, error) {
	pat, err := hostname.Parse(name)
	if err != nil {
		return nil, err
	}
	var bases []string
	switch pat.Depth {
	case hostname.Many:
		return problem(name, "a certificate covers one label of a wildcard only; declare *."+pat.Name+" or exact names"), nil
	case hostname.Exact:
		bases = append(bases, pat.Name)
		if _, parent, ok := strings.Cut(pat.Name, "."); ok {
			bases = append(bases, "_wildcard."+parent, "*."+parent)
		}
	default:
		bases = append(bases, "_wildcard."+pat.Name, "*."+pat.Name)
	}
	for _, base := range bases {
		c, err := f.read(name, base)
		if errors.Is(err, errNoPair) {
			continue
		}
		if err != nil {
			return problem(name, err.Error()), nil
		}
		return c, nil
	}
	return problem(name, fmt.Sprintf("there are no files %s.crt and %s.key in %s; put them there", bases[0], bases[0], f.cfg.Dir)), nil
}

// errNoPair means that neither file of a pair is there.
var errNoPair = errors.New("no files")

// read checks one pair of files.
func (f *Files) read(name, base string) (*hubv1.Certificate, error) {
	crt, key := filepath.Join(f.cfg.Dir, base+".crt"), filepath.Join(f.cfg.Dir, base+".key")
	chain, errCrt := os.ReadFile(crt)
	keyPEM, errKey := os.ReadFile(key)
	switch {
	case errors.Is(errCrt, fs.ErrNotExist) && errors.Is(errKey, fs.ErrNotExist):
		return nil, errNoPair
	case errCrt != nil:
		return nil, fmt.Errorf("certificate file: %w", errCrt)
	case errKey != nil:
		return nil, fmt.Errorf("key file: %w", errKey)
	}
	pair, err := tls.X509KeyPair(chain, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s and %s do not work together: %s", crt, key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	leaf := pair.Leaf
	if err := leaf.VerifyHostname(strings.Replace(name, "*.", "wildcard.", 1)); err != nil {
		return nil, fmt.Errorf("%s is not a certificate for %s, but for %s", crt, name, strings.Join(leaf.DNSNames, ", "))
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("%s expired at %s; replace it", crt, leaf.NotAfter.Format(time.RFC3339))
	}
	return &hubv1.Certificate{Name: name, ChainPem: onlyCertificates(chain), KeyPem: keyPEM, NotAfter: timestamppb.New(leaf.NotAfter)}, nil
}

// onlyCertificates drops what else a file may hold, such as the key.
func onlyCertificates(data []byte) []byte {
	var out []byte
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return out
		}
		if _, err := x509.ParseCertificate(b.Bytes); err == nil && b.Type == "CERTIFICATE" {
			out = append(out, pem.EncodeToMemory(b)...)
		}
	}
}

// Close ends the watch.
func (f *Files) Close() error {
	f.once.Do(func() { close(f.stop) })
	f.done.Wait()
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Close()
}
