package certs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// failing is a store that fails from the nth write on: the process ends there.
type failing struct {
	*memory
	left int
}

var errKilled = errors.New("killed")

func (f *failing) PutSecret(ctx context.Context, name string, v []byte) error {
	if f.left--; f.left < 0 {
		return errKilled
	}
	return f.memory.PutSecret(ctx, name, v)
}

func TestRotateCA(t *testing.T) {
	begin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	store, file := &memory{}, filepath.Join(t.TempDir(), "ca.crt")
	cfg := InternalConfig{Domain: "example.com", Store: store, File: file, Now: func() time.Time { return now }}
	i := internal(t, cfg)
	oldCA, oldLeaf := i.CA(), get(t, i, "a.example.com")
	newCA, err := RotateCA(t.Context(), store, begin.Add(30*24*time.Hour), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RotateCA(t.Context(), store, begin.Add(time.Hour), now); err == nil {
		t.Error("a second rotation within the first")
	}
	trust := func(when string, ca []byte, want bool, names ...string) {
		t.Helper()
		for _, n := range names {
			if err := verify(t, ca, get(t, i, n), n, now); (err == nil) != want {
				t.Errorf("%s: %s: %v", when, n, err)
			}
		}
	}
	roots := func() []byte {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	i = internal(t, cfg)
	trust("before", oldCA, true, "a.example.com", "b.example.com")
	if !bytes.Contains(roots(), oldCA) || !bytes.Contains(roots(), newCA) {
		t.Error("ca.crt does not hold both CAs before the change")
	}
	now = begin.Add(31 * 24 * time.Hour) // and the server goes on
	trust("after", newCA, true, "a.example.com", "c.example.com")
	trust("after", oldCA, false, "a.example.com")
	if err := verify(t, roots(), oldLeaf, "a.example.com", now); err != nil {
		t.Errorf("a certificate of the old CA is not trusted by ca.crt: %v", err)
	}
	get(t, i, "x.other.org") // reissues the CA
	trust("another domain", roots(), true, "x.other.org")
	i = internal(t, cfg)
	trust("restarted", roots(), true, "a.example.com", "x.other.org")
	now = begin.Add(31*24*time.Hour + leafLife)
	i = internal(t, cfg)
	trust("at the end", roots(), true, "a.example.com")
	if bytes.Contains(roots(), oldCA) {
		t.Error("the old CA stays")
	}
}

// TestRotateCAKilled: wherever the change is cut short, the next start has a CA whose key fits.
func TestRotateCAKilled(t *testing.T) {
	for n := range 4 {
		begin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
		now := begin
		store := &failing{&memory{}, 1000}
		cfg := InternalConfig{Domain: "example.com", Store: store, Now: func() time.Time { return now }}
		internal(t, cfg)
		if _, err := RotateCA(t.Context(), store, begin.Add(time.Hour), now); err != nil {
			t.Fatal(err)
		}
		now = begin.Add(2 * time.Hour)
		store.left = n
		if _, err := NewInternal(t.Context(), cfg); n < 3 && !errors.Is(err, errKilled) {
			t.Fatalf("after %d writes: %v", n, err)
		}
		store.left = 1000
		i := internal(t, cfg)
		if err := verify(t, i.CA(), get(t, i, "a.example.com"), "a.example.com", now); err != nil {
			t.Errorf("after %d writes: %v", n, err)
		}
	}
}
