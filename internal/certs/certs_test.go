package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/test/need"
)

func TestMain(m *testing.M) {
	// certmagic's keeper of a lock file ends by itself within 5 s of the lock's release.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

type memory struct {
	mu sync.Mutex
	m  map[string][]byte
}

func (s *memory) GetSecret(_ context.Context, name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.m[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return v, nil
}

func (s *memory) MakeSecret(ctx context.Context, name string, v []byte) ([]byte, error) {
	if got, err := s.GetSecret(ctx, name); err == nil {
		return got, nil
	}
	return v, s.PutSecret(ctx, name, v)
}

func (s *memory) PutSecret(_ context.Context, name string, v []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[string][]byte{}
	}
	s.m[name] = v
	return nil
}

func internal(t *testing.T, cfg InternalConfig) *Internal {
	t.Helper()
	i, err := NewInternal(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func get(t *testing.T, s Source, name string) *hubv1.Certificate {
	t.Helper()
	c, err := s.Certificate(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// verify checks a chain as a client does that trusts ca only.
func verify(t *testing.T, ca []byte, c *hubv1.Certificate, name string, at time.Time) error {
	t.Helper()
	pair, err := tls.X509KeyPair(c.GetChainPem(), c.GetKeyPem())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no CA")
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: at})
	return err
}

func TestInternal(t *testing.T) {
	store, now := &memory{}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "ca.crt")
	var events []string
	cfg := InternalConfig{Domain: "example.com", Store: store, File: file, Now: func() time.Time { return now }, Event: func(s string) { events = append(events, s) }}
	i := internal(t, cfg)

	t.Run("leaf for an exact name", func(t *testing.T) {
		c := get(t, i, "a.example.com")
		if err := verify(t, i.CA(), c, "a.example.com", now); err != nil {
			t.Error(err)
		}
		block, _ := pem.Decode(c.GetChainPem())
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		life := leaf.NotAfter.Sub(leaf.NotBefore)
		if leaf.PublicKeyAlgorithm != x509.ECDSA || life < 30*24*time.Hour || life > 91*24*time.Hour || len(leaf.DNSNames) != 1 {
			t.Errorf("%v for %v, life %v", leaf.PublicKeyAlgorithm, leaf.DNSNames, life)
		}
	})
	t.Run("the CA file is what signs", func(t *testing.T) {
		b, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(b, i.CA()) {
			t.Errorf("%v, differs %v", err, !bytes.Equal(b, i.CA()))
		}
		if f := i.Fingerprint(); len(f) != 95 {
			t.Errorf("fingerprint %q", f)
		}
	})
	t.Run("names that cannot be public are permitted from the first issue", func(t *testing.T) {
		for _, n := range []string{"hello.localhost", "x.test", "db.internal", "nas.local", "nas.lan", "a.home.arpa"} {
			if err := verify(t, i.CA(), get(t, i, n), n, now); err != nil {
				t.Errorf("%s: %v", n, err)
			}
		}
		if len(events) > 0 {
			t.Errorf("reissued: %v", events)
		}
	})
	t.Run("the same leaf until it is due, also after a restart", func(t *testing.T) {
		first := get(t, i, "a.example.com")
		if again := get(t, internal(t, cfg), "a.example.com"); !bytes.Equal(first.GetChainPem(), again.GetChainPem()) {
			t.Error("another leaf")
		}
		now = now.Add(45 * 24 * time.Hour)
		renewed := get(t, i, "a.example.com")
		if bytes.Equal(first.GetChainPem(), renewed.GetChainPem()) {
			t.Error("not renewed")
		}
		if err := verify(t, i.CA(), renewed, "a.example.com", now.Add(30*24*time.Hour)); err != nil {
			t.Error(err)
		}
	})
	t.Run("another name reissues the CA under the same key, with an event", func(t *testing.T) {
		old := i.CA()
		c := get(t, i, "www.other.org")
		if len(events) != 1 || !strings.Contains(events[0], "www.other.org") {
			t.Fatalf("events %q", events)
		}
		if bytes.Equal(old, i.CA()) {
			t.Fatal("not reissued")
		}
		if err := verify(t, i.CA(), c, "www.other.org", now); err != nil {
			t.Error(err)
		}
		if err := verify(t, old, c, "www.other.org", now); err == nil {
			t.Error("the old CA accepts a name outside its constraints")
		}
		// Who imported the old one keeps the old names.
		if err := verify(t, old, get(t, i, "b.example.com"), "b.example.com", now); err != nil {
			t.Error(err)
		}
		if b, _ := os.ReadFile(file); !bytes.Equal(b, i.CA()) {
			t.Error("the file has the old one")
		}
	})
	t.Run("a new base domain reissues the CA at start", func(t *testing.T) {
		moved := cfg
		moved.Domain = "moved.net"
		m := internal(t, moved)
		if err := verify(t, m.CA(), get(t, m, "x.moved.net"), "x.moved.net", now); err != nil {
			t.Error(err)
		}
		if err := verify(t, m.CA(), get(t, m, "www.other.org"), "www.other.org", now); err != nil {
			t.Errorf("a name permitted before is lost: %v", err)
		}
	})
	t.Run("wildcards", func(t *testing.T) {
		if err := verify(t, i.CA(), get(t, i, "*.example.com"), "any.example.com", now); err != nil {
			t.Error(err)
		}
		for _, n := range []string{"*.localhost", "**.example.com"} {
			if c := get(t, i, n); c.GetProblem() == "" || len(c.GetChainPem()) > 0 {
				t.Errorf("%s: %v, want a problem", n, c)
			}
		}
	})
	t.Run("an address cannot be signed for", func(t *testing.T) {
		if _, err := i.Certificate(t.Context(), "127.0.0.1"); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("OpenSSL accepts chain and constraints", func(t *testing.T) {
		openssl := need.Program(t, "openssl")[0]
		real := internal(t, InternalConfig{Domain: "example.com", Store: &memory{}, File: filepath.Join(t.TempDir(), "ca.crt")})
		leaf := filepath.Join(t.TempDir(), "leaf.crt")
		if err := os.WriteFile(leaf, get(t, real, "hello.localhost").GetChainPem(), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(openssl, "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "hello.localhost", "-CAfile", real.cfg.File, leaf).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func TestFiles(t *testing.T) {
	ca := internal(t, InternalConfig{Domain: "example.com", Store: &memory{}})
	dir := filepath.Join(t.TempDir(), "certs")
	changed := make(chan struct{}, 16)
	f, err := NewFiles(FilesConfig{Dir: dir, Changed: func() { changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	put := func(base string, crt, key []byte) {
		t.Helper()
		for ext, data := range map[string][]byte{".crt": crt, ".key": key} {
			if data == nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, base+ext), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantProblem := func(t *testing.T, name string, parts ...string) {
		t.Helper()
		c := get(t, f, name)
		for _, p := range parts {
			if !strings.Contains(c.GetProblem(), p) {
				t.Errorf("%s: problem %q lacks %q", name, c.GetProblem(), p)
			}
		}
	}
	a, b, wild := get(t, ca, "a.example.com"), get(t, ca, "b.example.com"), get(t, ca, "*.example.com")

	wantProblem(t, "a.example.com", "a.example.com.crt and a.example.com.key", dir)
	put("a.example.com", a.GetChainPem(), a.GetKeyPem())
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no change was noticed")
	}
	if err := verify(t, ca.CA(), get(t, f, "a.example.com"), "a.example.com", time.Now()); err != nil {
		t.Error(err)
	}
	t.Run("C05 a wildcard file covers a name at once", func(t *testing.T) {
		put("_wildcard.example.com", wild.GetChainPem(), wild.GetKeyPem())
		for _, n := range []string{"c.example.com", "*.example.com"} {
			if c := get(t, f, n); c.GetProblem() != "" || c.GetName() != n {
				t.Errorf("%s: %v", n, c.GetProblem())
			}
		}
		wantProblem(t, "c.d.example.com", "c.d.example.com.crt")
		wantProblem(t, "**.example.com", "one label")
	})
	t.Run("the other spelling of a wildcard", func(t *testing.T) {
		w := get(t, ca, "*.test.example.com")
		put("*.test.example.com", w.GetChainPem(), w.GetKeyPem())
		if c := get(t, f, "x.test.example.com"); c.GetProblem() != "" {
			t.Error(c.GetProblem())
		}
	})
	t.Run("a key of another certificate", func(t *testing.T) {
		put("b.example.com", b.GetChainPem(), a.GetKeyPem())
		wantProblem(t, "b.example.com", "do not work together", "b.example.com.key")
		put("b.example.com", b.GetChainPem(), b.GetKeyPem())
		if c := get(t, f, "b.example.com"); c.GetProblem() != "" {
			t.Error(c.GetProblem())
		}
	})
	t.Run("a certificate for another name", func(t *testing.T) {
		put("d.other.org", a.GetChainPem(), a.GetKeyPem())
		wantProblem(t, "d.other.org", "is not a certificate for d.other.org, but for a.example.com")
	})
	t.Run("half a pair", func(t *testing.T) {
		put("e.other.org", a.GetChainPem(), nil)
		wantProblem(t, "e.other.org", "key file", "e.other.org.key")
	})
	t.Run("expired", func(t *testing.T) {
		past := internal(t, InternalConfig{Domain: "example.com", Store: &memory{}, Now: func() time.Time { return time.Now().Add(-100 * 24 * time.Hour) }})
		old := get(t, past, "f.example.com")
		put("f.example.com", old.GetChainPem(), old.GetKeyPem())
		wantProblem(t, "f.example.com", "expired at")
	})
	t.Run("no path leads out of the folder", func(t *testing.T) {
		for _, n := range []string{"../a.example.com", "a/b.example.com", ".."} {
			if _, err := f.Certificate(t.Context(), n); err == nil {
				t.Errorf("%q accepted", n)
			}
		}
	})
}

func TestCannotBePublic(t *testing.T) {
	for n, want := range map[string]bool{"localhost": true, "a.localhost": true, "nas.home.arpa": true, "intranet": true, "example.com": false, "notlocal": true, "local.example.com": false, "my-test": true} {
		if got := CannotBePublic(n); got != want {
			t.Errorf("%s: %v", n, got)
		}
	}
}
