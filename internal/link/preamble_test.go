package link

import (
	"bytes"
	"testing"
)

func testKey() *rawKey {
	k := &rawKey{}
	for i := range k.id {
		k.id[i] = byte(i)
	}
	k.mac[0] = 7
	return k
}

func TestPreamble(t *testing.T) {
	admit := func(k *rawKey, b []byte) bool {
		id, n, err := parsePreamble(b)
		return err == nil && id == k.id && k.admit(b, n)
	}
	t.Run("first byte is not a TLS handshake", func(t *testing.T) {
		if testKey().preamble(1)[0] == 0x16 {
			t.Fatal("a hello")
		}
	})
	t.Run("once only, in any order within the history", func(t *testing.T) {
		k := testKey()
		for _, n := range []uint64{1, 3, 2, 900, 901, 4, 1500, 1501, 1499, 600} {
			if !admit(k, k.preamble(n)) {
				t.Errorf("%d refused", n)
			}
		}
		for _, n := range []uint64{1, 2, 3, 4, 600, 900, 901, 1499, 1500, 1501, 477, 5} {
			if admit(k, k.preamble(n)) {
				t.Errorf("%d admitted: seen, or too old to tell", n)
			}
		}
		if !admit(k, k.preamble(1<<63)) || admit(k, k.preamble(1<<63)) || !admit(k, k.preamble(1<<63-1023)) {
			t.Error("after a leap")
		}
	})
	t.Run("every byte counts", func(t *testing.T) {
		for i := range preambleSize {
			k := testKey()
			b := k.preamble(9)
			b[i] ^= 0x10
			if admit(k, b) {
				t.Errorf("admitted with byte %d changed", i)
			}
			if !admit(k, k.preamble(9)) {
				t.Error("a forged preamble used the counter up")
			}
		}
	})
	t.Run("another session's", func(t *testing.T) {
		k, other := testKey(), testKey()
		other.mac[0]++
		if admit(k, other.preamble(1)) {
			t.Error("admitted")
		}
	})
}

func FuzzPreamble(f *testing.F) {
	f.Add(testKey().preamble(1))
	f.Add(testKey().preamble(1 << 40))
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, n, err := parsePreamble(b)
		if err != nil {
			return
		}
		k := testKey()
		ok := k.admit(b, n)
		if want := id == k.id && bytes.Equal(b, k.preamble(n)); ok != want && id == k.id {
			t.Fatalf("%x: admitted %v", b, ok)
		}
		if ok && k.admit(b, n) {
			t.Fatalf("%x: admitted twice", b)
		}
	})
}
