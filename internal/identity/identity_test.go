package identity_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adit-dev/adit/internal/identity"
)

func newToken(t *testing.T) (*identity.Token, string) {
	t.Helper()
	tok, err := identity.NewToken(identity.KindInvite, "https://hub.example.com", [][]byte{bytes.Repeat([]byte{7}, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := tok.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return tok, s
}

func TestTokenRoundTrip(t *testing.T) {
	tok, s := newToken(t)
	if !strings.HasPrefix(s, "adit_invite_") {
		t.Fatalf("token %q has no kind prefix", s[:12])
	}
	got, err := identity.ParseToken("  " + s + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if got.Kind != identity.KindInvite || got.Body.HubUrl != tok.Body.HubUrl || !bytes.Equal(got.Body.Seed, tok.Body.Seed) {
		t.Fatalf("parsed token differs: %v", got.Kind)
	}
	a, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	b, err := got.Keys()
	if err != nil {
		t.Fatal(err)
	}
	if a.Public().HexID() != b.Public().HexID() || len(a.Public().ID()) != 16 {
		t.Fatal("the same seed gave two identities")
	}
}

func TestTokenKeepsSecretOutOfString(t *testing.T) {
	tok, s := newToken(t)
	if strings.Contains(s, tok.String()) || len(tok.String()) > 16 {
		t.Fatalf("String shows the token: %s", tok)
	}
}

func TestParseTokenErrors(t *testing.T) {
	_, good := newToken(t)
	flipped := []byte(good)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct{ in, want string }{
		"empty":        {"", "ADIT_TOKEN_FILE"},
		"prefix":       {"tt_inv_2_abc", "does not start with adit_"},
		"no body":      {"adit_invite", "no part after its kind"},
		"kind":         {"adit_lease_AAAA", `kind "lease" is unknown`},
		"cut":          {good[:len(good)-3], "copy"},
		"changed":      {string(flipped), "copy"},
		"short":        {"adit_invite_" + base64.RawURLEncoding.EncodeToString([]byte{1, 2, 3}), "too short"},
		"not base64":   {"adit_invite_!!!!", "characters that no token has"},
		"much too big": {"adit_invite_" + strings.Repeat("A", 5000), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := identity.ParseToken(c.in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			if len(c.in) > 40 && strings.Contains(err.Error(), c.in[14:40]) {
				t.Fatal("the error repeats the token")
			}
		})
	}
}

func TestProofNeedsBothSignatures(t *testing.T) {
	tok, _ := newToken(t)
	keys, err := tok.Keys()
	if err != nil {
		t.Fatal(err)
	}
	node, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	msg := identity.ProofMessage("ROLE_AGENT", node.Public(), peer.Public(), make([]byte, identity.ExporterSize))
	ed, ml, err := keys.Sign(msg)
	if err != nil {
		t.Fatal(err)
	}
	pub := keys.Public()
	if err := pub.Verify(msg, ed, ml); err != nil {
		t.Fatal(err)
	}
	bad := func(b []byte) []byte { c := bytes.Clone(b); c[3] ^= 1; return c }
	if pub.Verify(msg, bad(ed), ml) == nil {
		t.Error("a wrong Ed25519 signature passed")
	}
	if pub.Verify(msg, ed, bad(ml)) == nil {
		t.Error("a wrong ML-DSA-65 signature passed")
	}
	other := identity.ProofMessage("ROLE_AGENT", node.Public(), node.Public(), make([]byte, identity.ExporterSize))
	if pub.Verify(other, ed, ml) == nil {
		t.Error("a proof for one peer passed for another")
	}
}

func TestNodeKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "edge.key")
	a, err := identity.LoadOrCreateNodeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := identity.LoadOrCreateNodeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID() != b.ID() || len(a.ID()) != 16 {
		t.Fatalf("ids %s and %s", a.ID(), b.ID())
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v", st.Mode())
	}
	if a.Derive("x") == a.Derive("y") {
		t.Fatal("labels do not separate derived keys")
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadOrCreateNodeKey(path); err == nil || !strings.Contains(err.Error(), "restore it from a backup") {
		t.Fatalf("a damaged key file gave %v", err)
	}
}

func TestVerifyPin(t *testing.T) {
	k, err := identity.NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	cs := tls.ConnectionState{}
	if identity.VerifyPin(func() [][]byte { return [][]byte{k.Hash()} })(cs) == nil {
		t.Fatal("a peer without a certificate passed")
	}
	cs.PeerCertificates = append(cs.PeerCertificates, k.Certificate().Leaf)
	if err := identity.VerifyPin(func() [][]byte { return [][]byte{make([]byte, 32), k.Hash()} })(cs); err != nil {
		t.Fatal(err)
	}
	if identity.VerifyPin(func() [][]byte { return [][]byte{make([]byte, 32)} })(cs) == nil {
		t.Fatal("an unpinned key passed")
	}
}

func FuzzParseToken(f *testing.F) {
	tok, err := identity.NewToken(identity.KindAgent, "https://hub.example.com", [][]byte{make([]byte, 32)}, nil)
	if err != nil {
		f.Fatal(err)
	}
	s, err := tok.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s)
	f.Add("adit_invite_")
	f.Add("adit_invite_AQ")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := identity.ParseToken(s)
		if err != nil {
			return
		}
		enc, err := tok.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := identity.ParseToken(enc)
		if err != nil || again.Kind != tok.Kind || !bytes.Equal(again.Body.Seed, tok.Body.Seed) {
			t.Fatalf("a parsed token does not survive its own encoding: %v", err)
		}
	})
}
