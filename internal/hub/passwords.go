package hub

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"github.com/adit-dev/adit/internal/reason"
)

// Cost of a password hash: argon2id with 19 MiB and two passes.
const (
	argonMemory  = 19 << 10
	argonTime    = 2
	argonThreads = 1
	argonSize    = 32
	argonSalt    = 16
)

const (
	minPassword = 10
	maxPassword = 256
	// hashWait is how long a hash may wait for its turn, hashQueue how many may wait per core.
	hashWait  = 3 * time.Second
	hashQueue = 4
)

// hasher makes password hashes, at most one per core at a time: each takes 19 MiB and all of a core.
type hasher struct {
	turns, queue chan struct{}
	// dummy is compared with where there is no user or no password, so that both take as long.
	dummy string
}

func newHasher() *hasher {
	n := runtime.GOMAXPROCS(0)
	p := &hasher{turns: make(chan struct{}, n), queue: make(chan struct{}, n*(1+hashQueue))}
	salt := make([]byte, argonSalt+argonSize)
	_, _ = rand.Read(salt) // never fails
	p.dummy = phc(salt[:argonSalt], salt[argonSalt:])
	return p
}

// turn waits for a core; many who wait are sent away.
func (p *hasher) turn(ctx context.Context) (done func(), err error) {
	busy := &Problem{Code: reason.RateLimited, Text: "too many people sign in at this moment", Remedy: "try again in a few seconds"}
	select {
	case p.queue <- struct{}{}:
	default:
		return nil, busy
	}
	t := time.NewTimer(hashWait)
	defer t.Stop()
	select {
	case p.turns <- struct{}{}:
		return func() { <-p.turns; <-p.queue }, nil
	case <-t.C:
		err = busy
	case <-ctx.Done():
		err = ctx.Err()
	}
	<-p.queue
	return nil, err
}

// hash returns the PHC text of a password.
func (p *hasher) hash(ctx context.Context, password string) (string, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	salt := make([]byte, argonSalt)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	return phc(salt, argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, argonSize)), nil
}

// verify tells whether password is the one of a PHC text; "" is nobody's password.
func (p *hasher) verify(ctx context.Context, text, password string) (bool, error) {
	known := text != ""
	if !known {
		text = p.dummy
	}
	var version int
	var memory, passes uint32
	var threads uint8
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[1] != "argon2id" {
		return false, fmt.Errorf("a password hash of an unknown format")
	}
	if _, err := fmt.Sscanf(parts[2]+" "+parts[3], "v=%d m=%d,t=%d,p=%d", &version, &memory, &passes, &threads); err != nil {
		return false, fmt.Errorf("a password hash of an unknown format: %w", err)
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return false, fmt.Errorf("salt of a password hash: %w", err)
	}
	want, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || len(want) == 0 {
		return false, fmt.Errorf("a password hash does not parse")
	}
	done, err := p.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	got := argon2.IDKey([]byte(password), salt, passes, memory, threads, uint32(len(want)))
	return subtle.ConstantTimeCompare(got, want) == 1 && known, nil
}

func phc(salt, sum []byte) string {
	e := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonThreads, e.EncodeToString(salt), e.EncodeToString(sum))
}

// checkPassword tells what is wrong with a new password. Its value is in no error.
func checkPassword(password, name string) error {
	n := utf8.RuneCountInString(password)
	switch {
	case n < minPassword:
		return invalid("password", "", fmt.Sprintf("use at least %d characters; several words make a good one", minPassword), "is too short")
	case len(password) > 4*maxPassword || n > maxPassword:
		return invalid("password", "", fmt.Sprintf("use at most %d characters", maxPassword), "is too long")
	case name != "" && strings.EqualFold(password, name):
		return invalid("password", "", "choose another one", "is the user name")
	}
	return nil
}
