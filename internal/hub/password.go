package hub

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"github.com/adit-dev/adit/internal/reason"
)

// Argon2id as OWASP recommends: 19 MiB, two passes, one lane.
const (
	argonMemory = 19 << 10 // KiB
	argonTime   = 2
	argonKey    = 32
	argonSalt   = 16
)

const (
	// minPassword and maxPassword bound a password, in characters and bytes.
	minPassword = 10
	maxPassword = 1024
	// maxHashQueue is how many wait for a hash, hashPatience how long.
	maxHashQueue = 16
	hashPatience = 2 * time.Second
)

// hashing admits one hash per core at a time: each takes 19 MiB and a good part of a second's CPU,
// and anybody may ask for one.
type hashing struct {
	running, queue chan struct{}
}

func newHashing() *hashing {
	n := runtime.GOMAXPROCS(0)
	return &hashing{running: make(chan struct{}, n), queue: make(chan struct{}, n+maxHashQueue)}
}

// enter waits for a turn; leave ends it.
func (l *hashing) enter(ctx context.Context) (leave func(), err error) {
	busy := reason.New(reason.RateLimited, reason.HopHub, "too many people sign in at this moment; try again in a few seconds")
	select {
	case l.queue <- struct{}{}:
	default:
		return nil, busy
	}
	t := time.NewTimer(hashPatience)
	defer t.Stop()
	select {
	case l.running <- struct{}{}:
		return func() { <-l.running; <-l.queue }, nil
	case <-t.C:
		<-l.queue
		return nil, busy
	case <-ctx.Done():
		<-l.queue
		return nil, ctx.Err()
	}
}

// checkPassword tells whether a new password will do.
func checkPassword(field, password string) error {
	switch {
	case !utf8.ValidString(password) || len(password) > maxPassword:
		return invalid(field, "", fmt.Sprintf("use at most %d bytes of text", maxPassword), "is too long, or no text")
	case utf8.RuneCountInString(password) < minPassword:
		return invalid(field, "", "some words in a row are easy to keep in mind", "is shorter than %d characters", minPassword)
	}
	return nil
}

// hashPassword makes the PHC string of a password.
func (h *Hub) hashPassword(ctx context.Context, password string) (string, error) {
	leave, err := h.hashing.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	salt := make([]byte, argonSalt)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	key := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, 1, argonKey)
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=1$%s$%s", argon2.Version, argonMemory, argonTime, b64.EncodeToString(salt), b64.EncodeToString(key)), nil
}

// nobody is the hash that a password is compared with where there is no account: it takes as long.
const nobody = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// verifyPassword compares a password with a PHC string; an empty one matches nothing, in the same
// time.
func (h *Hub) verifyPassword(ctx context.Context, phc, password string) (bool, error) {
	if len(password) > maxPassword {
		password = password[:maxPassword+1]
	}
	known := phc != ""
	if !known {
		phc = nobody
	}
	salt, want, memory, passes, err := parsePHC(phc)
	if err != nil {
		return false, err
	}
	leave, err := h.hashing.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	got := argon2.IDKey([]byte(password), salt, passes, memory, 1, uint32(len(want)))
	return subtle.ConstantTimeCompare(got, want) == 1 && known, nil
}

func parsePHC(s string) (salt, key []byte, memory, passes uint32, err error) {
	bad := errors.New("stored password: not an argon2id hash")
	p := strings.Split(s, "$")
	if len(p) != 6 || p[1] != "argon2id" || p[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return nil, nil, 0, 0, bad
	}
	if _, err := fmt.Sscanf(p[3], "m=%d,t=%d,p=1", &memory, &passes); err != nil || memory == 0 || memory > 1<<20 || passes == 0 || passes > 100 {
		return nil, nil, 0, 0, bad
	}
	if salt, err = base64.RawStdEncoding.DecodeString(p[4]); err != nil {
		return nil, nil, 0, 0, bad
	}
	if key, err = base64.RawStdEncoding.DecodeString(p[5]); err != nil || len(key) == 0 {
		return nil, nil, 0, 0, bad
	}
	return salt, key, memory, passes, nil
}
