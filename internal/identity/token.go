package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"filippo.io/mldsa"
	"google.golang.org/protobuf/proto"

	wirev1 "github.com/adit-dev/adit/api/wire/v1"
)

// TokenKind is what a token is for.
type TokenKind string

// Token kinds; the string is the second word of a token.
const (
	KindInvite TokenKind = "invite"
	KindAgent  TokenKind = "agent"
	KindEdge   TokenKind = "edge"
	KindKey    TokenKind = "key"
)

const (
	tokenPrefix  = "adit_"
	tokenVersion = 1
	seedSize     = 32
	pinSize      = sha256.Size
	maxTokenSize = 4096
)

// Token is a parsed token string. It holds a secret: never log it.
type Token struct {
	Kind TokenKind
	Body *wirev1.Token
}

// NewToken makes a token with a fresh seed.
func NewToken(kind TokenKind, hubURL string, pins [][]byte, edges []*wirev1.EdgeAddress) (*Token, error) {
	seed := make([]byte, seedSize)
	if _, err := rand.Read(seed); err != nil {
		return nil, err
	}
	if len(edges) > 3 {
		edges = edges[:3]
	}
	return &Token{Kind: kind, Body: &wirev1.Token{HubUrl: hubURL, Seed: seed, HubPins: pins, Edges: edges}}, nil
}

// Encode is the token as people copy it: adit_<kind>_ and base64url of version, body, checksum.
func (t *Token) Encode() (string, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.Body)
	if err != nil {
		return "", err
	}
	raw := append([]byte{tokenVersion}, body...)
	sum := sha256.Sum256(raw)
	raw = append(raw, sum[:4]...)
	return tokenPrefix + string(t.Kind) + "_" + base64.RawURLEncoding.EncodeToString(raw), nil
}

// ParseToken checks prefix, length, checksum and content, before any dial. No error repeats
// the token.
func ParseToken(s string) (*Token, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, errors.New("token is empty; set ADIT_TOKEN, or ADIT_TOKEN_FILE to a file that holds one")
	}
	if len(s) > maxTokenSize {
		return nil, fmt.Errorf("token has %d characters, at most %d are possible; copy it again", len(s), maxTokenSize)
	}
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok {
		return nil, errors.New("token does not start with adit_; copy the whole token as it was shown")
	}
	kind, enc, ok := strings.Cut(rest, "_")
	if !ok {
		return nil, errors.New("token has no part after its kind; copy the whole token as it was shown")
	}
	switch TokenKind(kind) {
	case KindInvite, KindAgent, KindEdge, KindKey:
	default:
		return nil, fmt.Errorf("token kind %q is unknown; kinds are invite, agent, edge and key", printable(kind))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(enc)
	if err != nil {
		return nil, errors.New("token has characters that no token has, or was cut; copy the whole token as it was shown")
	}
	if len(raw) < 1+4+seedSize {
		return nil, fmt.Errorf("token is too short (%d bytes); copy the whole token as it was shown", len(raw))
	}
	payload, sum := raw[:len(raw)-4], raw[len(raw)-4:]
	if want := sha256.Sum256(payload); string(want[:4]) != string(sum) {
		return nil, errors.New("token checksum is wrong: a character is missing or changed; copy the whole token as it was shown")
	}
	if payload[0] != tokenVersion {
		return nil, fmt.Errorf("token format %d is not known to this version; update adit", payload[0])
	}
	body := &wirev1.Token{}
	if err := proto.Unmarshal(payload[1:], body); err != nil {
		return nil, errors.New("token content does not parse; ask for a new token")
	}
	if len(body.Seed) != seedSize {
		return nil, fmt.Errorf("token seed has %d bytes, want %d; ask for a new token", len(body.Seed), seedSize)
	}
	u, err := url.Parse(body.HubUrl)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("token names no https hub URL; ask for a new token")
	}
	if len(body.HubPins) == 0 {
		return nil, errors.New("token pins no hub key; ask for a new token")
	}
	for _, p := range body.HubPins {
		if len(p) != pinSize {
			return nil, errors.New("token pin has a wrong length; ask for a new token")
		}
	}
	return &Token{Kind: TokenKind(kind), Body: body}, nil
}

func printable(s string) string {
	if len(s) > 16 {
		s = s[:16]
	}
	return s
}

// String hides the secret.
func (t *Token) String() string { return tokenPrefix + string(t.Kind) + "_…" }

// Keys derives the token's key pairs.
func (t *Token) Keys() (*TokenKeys, error) { return DeriveTokenKeys(t.Body.GetSeed()) }

// TokenKeys are the two key pairs of a token. Both must verify.
type TokenKeys struct {
	ed  ed25519.PrivateKey
	ml  *mldsa.PrivateKey
	pub TokenPublic
}

// TokenPublic are the public keys that the hub keeps.
type TokenPublic struct {
	Ed25519 []byte
	MLDSA65 []byte
}

// DeriveTokenKeys makes the key pairs of a 32-byte seed with HKDF-SHA256 (RFC 5869).
func DeriveTokenKeys(seed []byte) (*TokenKeys, error) {
	if len(seed) != seedSize {
		return nil, fmt.Errorf("token seed has %d bytes, want %d", len(seed), seedSize)
	}
	edSeed, err := hkdf.Key(sha256.New, seed, nil, "adit token ed25519 v1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	mlSeed, err := hkdf.Key(sha256.New, seed, nil, "adit token mldsa65 v1", 32)
	if err != nil {
		return nil, err
	}
	ml, err := mldsa.NewPrivateKey(mldsa.MLDSA65(), mlSeed)
	if err != nil {
		return nil, fmt.Errorf("derive ML-DSA-65 key: %w", err)
	}
	ed := ed25519.NewKeyFromSeed(edSeed)
	return &TokenKeys{ed: ed, ml: ml, pub: TokenPublic{
		Ed25519: ed.Public().(ed25519.PublicKey), MLDSA65: ml.PublicKey().Bytes(),
	}}, nil
}

// Public returns the public halves.
func (k *TokenKeys) Public() TokenPublic { return k.pub }

// ID is the token id: the first 16 bytes of SHA-256 over both public keys.
func (p TokenPublic) ID() []byte {
	h := sha256.New()
	h.Write(p.Ed25519)
	h.Write(p.MLDSA65)
	return h.Sum(nil)[:16]
}

// HexID is ID as resources and the CLI spell it.
func (p TokenPublic) HexID() string { return hex.EncodeToString(p.ID()) }
