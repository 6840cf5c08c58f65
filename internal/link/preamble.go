package link

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"sync"
)

// The preamble of a raw lane: version byte, id of the session that vouches for it, counter, MAC
// over all before.
const (
	// rawVersion is no TLS record type, so that one port serves both.
	rawVersion    = 0xad
	rawIDSize     = 16
	preambleSize  = 1 + rawIDSize + 8 + sha256.Size
	preambleBody  = preambleSize - sha256.Size
	rawLabel      = "EXPORTER-adit-raw-lane"
	replayHistory = 1024
)

var errPreamble = errors.New("not the preamble of a raw lane")

// rawKey is what a session vouches for raw lanes with. Both ends export it from the session's TLS
// connection, the id too, so it never travels.
type rawKey struct {
	id  [rawIDSize]byte
	mac [sha256.Size]byte

	mu   sync.Mutex
	last uint64
	seen [replayHistory / 64]uint64 // counters from last down, by counter modulo replayHistory
}

func newRawKey(cs tls.ConnectionState) (*rawKey, error) {
	b, err := cs.ExportKeyingMaterial(rawLabel, nil, rawIDSize+sha256.Size)
	if err != nil {
		return nil, err
	}
	k := &rawKey{}
	copy(k.id[:], b)
	copy(k.mac[:], b[rawIDSize:])
	return k, nil
}

// preamble is what a lane with this counter begins with.
func (k *rawKey) preamble(counter uint64) []byte {
	b := make([]byte, 0, preambleSize)
	b = append(b, rawVersion)
	b = append(b, k.id[:]...)
	b = binary.BigEndian.AppendUint64(b, counter)
	return k.sum(b)
}

// sum appends the MAC of body to it.
func (k *rawKey) sum(body []byte) []byte {
	h := hmac.New(sha256.New, k.mac[:])
	h.Write(body)
	return h.Sum(body)
}

// parsePreamble reads the claims of a preamble; admit tells whether they are true.
func parsePreamble(b []byte) (id [rawIDSize]byte, counter uint64, err error) {
	if len(b) != preambleSize || b[0] != rawVersion {
		return id, 0, errPreamble
	}
	copy(id[:], b[1:])
	return id, binary.BigEndian.Uint64(b[1+rawIDSize:]), nil
}

// admit reports whether b, which parsePreamble took, comes from the session's other end and was
// never admitted before. A counter that is older than the history counts as seen.
func (k *rawKey) admit(b []byte, counter uint64) bool {
	if !hmac.Equal(k.sum(b[:preambleBody:preambleBody])[preambleBody:], b[preambleBody:]) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if counter > k.last {
		if counter-k.last >= replayHistory {
			clear(k.seen[:])
		} else {
			for n := k.last + 1; n <= counter; n++ {
				k.mark(n, false)
			}
		}
		k.last = counter
	} else if k.last-counter >= replayHistory || k.seen[counter%replayHistory/64]&(1<<(counter%64)) != 0 {
		return false
	}
	k.mark(counter, true)
	return true
}

func (k *rawKey) mark(n uint64, on bool) {
	word, bit := &k.seen[n%replayHistory/64], uint64(1)<<(n%64)
	if on {
		*word |= bit
	} else {
		*word &^= bit
	}
}
