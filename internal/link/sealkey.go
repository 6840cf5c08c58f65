package link

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/adit-dev/adit/internal/datagram"
)

// A sealed packet is
//
//	head of datagram.Carrier (mark with the kind, number of the receiver), 48-bit counter, ciphertext, tag
//
// The head and the counter are authenticated with it. The number and the first key of either
// direction are exported from the session's TLS, so only its two ends know them.
const (
	sealedHead    = datagram.HeadSize + counterSize
	counterSize   = 6
	tagSize       = 16
	sealedExtra   = sealedHead + tagSize
	sealedExport  = 2 * (sha256.Size + 8)
	sealedLabel   = "EXPORTER-adit-datagrams"
	sealedKeyText = "adit datagrams key"
	sealedNonce   = "adit datagrams nonce"
	sealedNext    = "adit datagrams next"
	// packetsPerKey is after how many packets a direction changes its key: what QUIC allows one key
	// of AES-GCM (RFC 9001, 6.6).
	packetsPerKey = 1 << 23
)

// Kinds of sealed packets.
const (
	sealedData   = 0 // an encoded datagram
	sealedAsk    = 1 // bytes sent so far, time of the sender
	sealedAnswer = 2 // what was asked, and bytes that have arrived
)

var errSealed = errors.New("sealed packet")

// sealKey is the key of one direction for packetsPerKey packets. Every key but the first is
// derived from the one before.
type sealKey struct {
	suite  uint16
	number uint64
	secret []byte
	aead   cipher.AEAD
	fixed  [12]byte
}

func newSealKey(suite uint16, number uint64, secret []byte) (*sealKey, error) {
	size := 16
	if suite != tls.TLS_AES_128_GCM_SHA256 {
		size = 32
	}
	key, err := hkdf.Expand(sha256.New, secret, sealedKeyText, size)
	if err != nil {
		return nil, err
	}
	k := &sealKey{suite: suite, number: number, secret: secret}
	if suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		k.aead, err = chacha20poly1305.New(key)
	} else {
		var block cipher.Block
		if block, err = aes.NewCipher(key); err == nil {
			k.aead, err = cipher.NewGCM(block)
		}
	}
	if err != nil {
		return nil, err
	}
	fixed, err := hkdf.Expand(sha256.New, secret, sealedNonce, len(k.fixed))
	k.fixed = [12]byte(fixed)
	return k, err
}

// next is the key after k.
func (k *sealKey) next() (*sealKey, error) {
	secret, err := hkdf.Expand(sha256.New, k.secret, sealedNext, sha256.Size)
	if err != nil {
		return nil, err
	}
	return newSealKey(k.suite, k.number+1, secret)
}

// nonce is the nonce of packet counter.
func (k *sealKey) nonce(n *[12]byte, counter uint64) {
	*n = k.fixed
	binary.BigEndian.PutUint64(n[4:], binary.BigEndian.Uint64(n[4:])^counter)
}

// sealer seals the packets of one direction.
type sealer struct {
	id      uint64
	key     *sealKey
	counter uint64
	nonce   [12]byte
}

// seal appends the packet that carries the two pieces of a text to b.
func (s *sealer) seal(b []byte, kind byte, one, two []byte) ([]byte, error) {
	if s.counter/packetsPerKey != s.key.number {
		key, err := s.key.next()
		if err != nil {
			return b, err
		}
		s.key = key
	}
	start := len(b)
	b = datagram.AppendHead(b, kind, s.id)
	var c [8]byte
	binary.BigEndian.PutUint64(c[:], s.counter)
	b = append(b, c[2:]...)
	text := len(b)
	b = append(append(b, one...), two...)
	s.key.nonce(&s.nonce, s.counter)
	s.counter++
	return s.key.aead.Seal(b[:text], s.nonce[:], b[text:], b[start:text]), nil
}

// unsealer opens the packets of the other direction, each once.
type unsealer struct {
	id uint64
	// key opens what is new, before what the key before it sealed.
	key, before *sealKey
	seen        replayWindow
	nonce       [12]byte
}

// open returns what b carries, in the place where it was.
func (u *unsealer) open(b []byte) (kind byte, text []byte, err error) {
	if len(b) < sealedExtra {
		return 0, nil, fmt.Errorf("%w: %d bytes are too short", errSealed, len(b))
	}
	var c [8]byte
	copy(c[2:], b[datagram.HeadSize:sealedHead])
	counter := binary.BigEndian.Uint64(c[:])
	if u.seen.has(counter) {
		return 0, nil, fmt.Errorf("%w: number %d again", errSealed, counter)
	}
	key, fresh := u.key, false
	switch n := counter / packetsPerKey; {
	case n == u.key.number:
	case n == u.key.number+1:
		if key, err = u.key.next(); err != nil {
			return 0, nil, err
		}
		fresh = true
	case u.before != nil && n == u.before.number:
		key = u.before
	default:
		return 0, nil, fmt.Errorf("%w: no key for number %d", errSealed, counter)
	}
	key.nonce(&u.nonce, counter)
	text, err = key.aead.Open(b[sealedHead:sealedHead], u.nonce[:], b[sealedHead:], b[:sealedHead])
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errSealed, err)
	}
	if fresh {
		u.before, u.key = u.key, key
	}
	u.seen.add(counter)
	return b[0] &^ datagram.Mark, text, nil
}

// replayWindow remembers which of the latest numbers came; older ones count as having come.
type replayWindow struct {
	// next is the number after the highest that came.
	next uint64
	bits [replaySize / 64]uint64
}

// replaySize is by how much packets may overtake each other.
const replaySize = 2048

func (w *replayWindow) has(n uint64) bool {
	switch {
	case n >= w.next:
		return false
	case n+replaySize < w.next:
		return true
	}
	return w.bits[n%replaySize/64]>>(n%64)&1 == 1
}

// add notes n, of which has said that it did not come.
func (w *replayWindow) add(n uint64) {
	if n >= w.next {
		if n-w.next >= replaySize {
			clear(w.bits[:])
		} else {
			for i := w.next; i < n; i++ {
				w.bits[i%replaySize/64] &^= 1 << (i % 64)
			}
		}
		w.next = n + 1
	}
	w.bits[n%replaySize/64] |= 1 << (n % 64)
}
