package identity

import (
	"bytes"
	"testing"
)

func TestSeal(t *testing.T) {
	s, err := NewSealer(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := s.Seal("a", []byte("secret"))
	if err != nil || bytes.Contains(sealed, []byte("secret")) {
		t.Fatalf("%x, %v", sealed, err)
	}
	if got, err := s.Open("a", sealed); err != nil || string(got) != "secret" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Open("b", sealed); err == nil {
		t.Error("opened for another purpose")
	}
	other, _ := NewSealer(bytes.Repeat([]byte{2}, 32))
	if _, err := other.Open("a", sealed); err == nil {
		t.Error("opened with another key")
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := s.Open("a", sealed); err == nil {
		t.Error("opened although changed")
	}
	for _, b := range [][]byte{nil, {1}, make([]byte, 64)} {
		if _, err := s.Open("a", b); err == nil {
			t.Errorf("opened %x", b)
		}
	}
	if _, err := NewSealer([]byte("short")); err == nil {
		t.Error("short key accepted")
	}
}
