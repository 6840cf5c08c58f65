package identity

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newKey(t *testing.T) *NodeKey {
	t.Helper()
	k, err := NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestSucceed: a peer that pins the old key believes the new one while the old one vouches for it.
func TestSucceed(t *testing.T) {
	before, other := newKey(t), newKey(t)
	shown := func(k *NodeKey) tls.ConnectionState {
		var cs tls.ConnectionState
		for _, der := range k.Certificate().Certificate {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			cs.PeerCertificates = append(cs.PeerCertificates, c)
		}
		return cs
	}
	pin := func(k *NodeKey) func(tls.ConnectionState) error {
		return VerifyPin(func() [][]byte { return [][]byte{k.Hash()} })
	}
	now, over := newKey(t), newKey(t)
	if err := now.Succeed(before, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := over.Succeed(before, time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	forged := shown(now)
	forged.PeerCertificates[1] = shown(before).PeerCertificates[0]
	forged.PeerCertificates[0] = shown(other).PeerCertificates[0]
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"the old key is pinned":       {pin(before)(shown(now)), true},
		"the new key is pinned":       {pin(now)(shown(now)), true},
		"another key is pinned":       {pin(other)(shown(now)), false},
		"the overlap is over":         {pin(before)(shown(over)), false},
		"the old key did not sign it": {pin(before)(forged), false},
	} {
		if got := c.err == nil; got != c.want {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestSealerKeys(t *testing.T) {
	a, _ := NewSecret()
	b, _ := NewSecret()
	s, err := NewSealer(a)
	if err != nil {
		t.Fatal(err)
	}
	old, _ := s.Seal("p", []byte("x"))
	if err := s.Use(b, a); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Open("p", old); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	now, _ := s.Seal("p", []byte("y"))
	if err := s.Use(b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open("p", old); err == nil {
		t.Error("opened without its key")
	}
	if got, err := s.Open("p", now); err != nil || string(got) != "y" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x", "secret.key")
	first, err := LoadOrCreateSecrets(path)
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	b, _ := NewSecret()
	if err := WriteSecrets(path, b, first[0]); err != nil {
		t.Fatal(err)
	}
	got, err := LoadOrCreateSecrets(path)
	if err != nil || len(got) != 2 || string(got[0]) != string(b) || string(got[1]) != string(first[0]) {
		t.Errorf("%v, %v", got, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	for name, text := range map[string]string{"empty": "\n", "short": "AAAA\n", "one bad": strings.Repeat("A", 43) + "=\nx\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOrCreateSecrets(path); err == nil || !strings.Contains(err.Error(), "restore it from a backup") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
