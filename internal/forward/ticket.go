// Package forward is what hub, edges and the command line share of forwards: tickets, the protocol
// between a person's tool and an edge, and both ends of its connections.
package forward

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hostname"
)

const (
	// TicketTime is how long a ticket may be used to open connections.
	TicketTime = time.Minute
	// clockSkew is what the clocks of hub and edge may differ.
	clockSkew = 10 * time.Second
	// maxTicket bounds a ticket, in characters.
	maxTicket = 2048
	// purpose keeps the signature from being one of anything else.
	purpose = "adit forward ticket v1\x00"
)

// Sign makes the text of a ticket.
func Sign(key ed25519.PrivateKey, t *hubv1.ForwardTicket) (string, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding.EncodeToString
	return enc(body) + "." + enc(ed25519.Sign(key, append([]byte(purpose), body...))), nil
}

// Errors of Verify.
var (
	ErrTicket  = errors.New("the ticket is not one of this hub's")
	ErrExpired = errors.New("the ticket has expired")
)

// Verify reads a ticket that one of keys has signed and that has not expired.
func Verify(keys [][]byte, text string, now time.Time) (*hubv1.ForwardTicket, error) {
	body, sig, ok := strings.Cut(text, ".")
	if !ok || len(text) > maxTicket {
		return nil, ErrTicket
	}
	raw, err1 := base64.RawURLEncoding.DecodeString(body)
	mark, err2 := base64.RawURLEncoding.DecodeString(sig)
	if err1 != nil || err2 != nil {
		return nil, ErrTicket
	}
	signed := false
	for _, k := range keys {
		signed = signed || len(k) == ed25519.PublicKeySize && ed25519.Verify(k, append([]byte(purpose), raw...), mark)
	}
	t := &hubv1.ForwardTicket{}
	if !signed || proto.Unmarshal(raw, t) != nil {
		return nil, ErrTicket
	}
	if now.After(t.GetExpiresAt().AsTime().Add(clockSkew)) {
		return nil, ErrExpired
	}
	return t, nil
}

// Target reads what people write, tcp://HOST:PORT or HOST:PORT, and returns host:port.
func Target(text string) (string, error) {
	rest := strings.TrimPrefix(text, "tcp://")
	if strings.Contains(rest, "://") {
		return "", errors.New("write tcp://HOST:PORT or HOST:PORT: a forward carries TCP, whatever is spoken in it")
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", errors.New("write HOST:PORT, an IPv6 address in brackets")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.String()
	} else if host, err = hostname.Normalize(host); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(n))), nil
}
