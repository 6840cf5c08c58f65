package front

import (
	"crypto/rand"
	"crypto/tls"
	"time"
)

const (
	ticketRotation = 12 * time.Hour
	ticketKeys     = 3
)

// tickets gives visitors' TLS configurations session ticket keys of their own, so that no ticket
// of a visitor is one of an agent's session, and changes them twice a day.
type tickets struct {
	keys [][32]byte
}

func (t *tickets) rotate(configs ...*tls.Config) {
	var k [32]byte
	_, _ = rand.Read(k[:]) // never fails
	t.keys = append([][32]byte{k}, t.keys...)
	if len(t.keys) > ticketKeys {
		t.keys = t.keys[:ticketKeys]
	}
	for _, c := range configs {
		c.SetSessionTicketKeys(t.keys)
	}
}
